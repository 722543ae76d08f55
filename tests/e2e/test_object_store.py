"""A real vLLM whose base and adapter come from an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.lora import write_adapter
from tests.support.object_stores import ObjectStore, seaweedfs

pytestmark = pytest.mark.engine


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    """SeaweedFS."""
    directory = tmp_path / "seaweedfs"
    directory.mkdir()
    with seaweedfs(directory) as found:
        yield found


@pytest.fixture
def cli(tmp_path: Path, store: ObjectStore) -> Iterator[CommandLine]:
    """A home of its own, with credentials for the store."""
    line = CommandLine(tmp_path)
    line.env |= store.env
    yield line
    line.close()


@pytest.mark.full  # tests/integration/objects starts such a fleet with FakeEngine each time
def test_base_and_adapter_from_a_store(
    cli: CommandLine, store: ObjectStore, base_model: Path, engine_python: Path
) -> None:
    """A base and an adapter are pushed, and a fleet that names nothing but their places serves both with vLLM."""
    bucket = store.bucket()
    write_adapter(cli.directory / "ada", rank=8, seed=1)
    for directory, name in ((base_model, "base"), (cli.directory / "ada", "ada")):
        pushed = cli.run("push", str(directory), f"s3://{bucket}/{name}")
        assert pushed.returncode == 0, pushed.stderr
    (cli.directory / "fleet.yaml").write_text(
        f"name: stored\nbase: s3://{bucket}/base\nadapters:\n  ada: s3://{bucket}/ada\n"
        f"engine: {{python: {engine_python}}}\ngateway: {{port: 0}}\n"
        f"storage: {{s3: {{endpoint: '{store.url}', region: us-east-1}}}}\n"
        "pools: {default: {max_model_len: 512, kv_cache: 256MiB}}\n"
    )
    up = cli.run("up", "--detach", "--timeout", "10m", patience_s=900)
    assert up.returncode == 0, up.stderr
    said = {name: cli.run("ask", name, "hello", "--max-tokens", "8").stdout for name in ("base", "ada")}
    assert all(said.values())
    assert said["base"] != said["ada"]
    kept = json.loads(cli.run("cache", "show", "--json").stdout)["kept"]
    serving = {Path(one["path"]).parent.name: one["source"] for one in kept if one["serves"]}
    assert serving == {"bases": f"s3://{bucket}/base", "adapters": f"s3://{bucket}/ada"}
    assert cli.run("down").returncode == 0
