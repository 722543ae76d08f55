"""A fleet whose base and adapters come from an object store, as its owner sees it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, write_adapter
from tests.support.object_proxy import Asked, Proxy
from tests.support.object_stores import ObjectStore


class Owner(CommandLine):
    """Somebody with a bucket."""

    bucket = ""


@pytest.fixture
def cli(tmp_path: Path, weed: ObjectStore, front: Proxy) -> Iterator[Owner]:
    """A directory with models; its fleet file takes all of them from the store, which is behind a proxy."""
    line = Owner(tmp_path)
    line.bucket = weed.bucket()
    file = line.write_fleet(f"gateway: {{port: 0}}\nstorage: {{s3: {{endpoint: '{front.url}'}}, cache: 1GiB}}")
    file.write_text(file.read_text().replace("models/", f"s3://{line.bucket}/models/"))
    line.env |= {"AWS_ENDPOINT_URL_S3": front.url}
    yield line
    line.close()


def push(cli: Owner, name: str) -> None:
    """Push one of the models."""
    done = cli.run("push", f"models/{name}", f"s3://{cli.bucket}/models/{name}")
    assert done.returncode == 0, done.stderr


def versions(cli: Owner) -> dict[str, str]:
    """The adapters of the running fleet, and their digests."""
    status = json.loads(cli.run("status", "--json").stdout)
    return {one["version"]["name"]: one["version"]["digest"] for one in status["adapters"]}


def test_a_fleet_starts_from_a_store(cli: Owner, front: Proxy) -> None:
    """Base and adapters are pushed, fetched and served; new weights come with `apply`, and then the store may go."""
    for name in ("tiny", "contacts", "sql"):
        push(cli, name)
    started = cli.run("up", "--detach")
    assert started.returncode == 0, started.stderr
    assert f"downloading s3://{cli.bucket}/models/tiny" in started.stderr
    assert cli.run("ask", "contacts", "hello").returncode == 0
    before = versions(cli)

    write_adapter(cli.directory / "new", rank=4)
    done = cli.run("push", "new", f"s3://{cli.bucket}/models/contacts", "--json")
    pushed = json.loads(done.stdout)
    assert cli.run("apply", "--yes").returncode == 0
    assert versions(cli) == before | {"contacts": pushed["digest"]}

    kept = json.loads(cli.run("cache", "show", "--json").stdout)["kept"]
    serving = {one["source"].rpartition("/")[2] for one in kept if one["serves"]}
    assert serving == {"tiny", "contacts", "sql", ""}  # the last one is what requests could go back to
    assert json.loads(cli.run("cache", "prune", "--to", "0", "--json").stdout)["removed"] == []

    front.before = lambda _: 503
    again = cli.run("apply", "--dry-run")
    assert again.returncode == 0, again.stderr
    assert "the object store is out of reach" in again.stderr
    assert cli.run("down").returncode == 0


def test_errors_name_the_line(cli: Owner) -> None:
    """What is wrong with a place is said with the line of the fleet file that names it, and nothing is started."""
    done = cli.run("up", "--detach")
    assert done.returncode == 2
    assert f"fleet.yaml:2: base.source: s3://{cli.bucket}/models/tiny: nothing is there" in done.stderr
    assert cli.processes() == {}


def test_a_push_that_is_interrupted(cli: Owner, front: Proxy) -> None:
    """Ctrl-C ends a push at once, says that it can be gone on with, and the same command does."""

    def hold(asked: Asked) -> None:
        if asked.path.endswith("adapter_model.safetensors") and asked.method == "PUT":
            running.process.send_signal(signal.SIGINT)

    front.before = hold
    running = cli.start("push", "models/contacts", f"s3://{cli.bucket}/models/contacts")
    assert running.wait() == 130
    assert running.lines[-1] == "what has arrived is kept; the same command goes on with it"
    front.before = lambda _: None
    push(cli, "contacts")
    again = cli.run("push", "models/contacts", f"s3://{cli.bucket}/models/contacts")
    assert "all of it was there" in again.stdout


def test_push_says_what_is_wrong(cli: Owner) -> None:
    """A place that is none, and a directory that is no model, are wrong input."""
    for words, said in {
        ("models/tiny", "models/there"): "is not a place in an object store",
        ("models", "s3://bucket/models"): "is neither an adapter nor a base",
    }.items():
        done = cli.run("push", *words)
        assert done.returncode == 2
        assert said in done.stderr
