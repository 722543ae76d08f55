"""Models and adapters from an object store: what arrives, what is kept, and what is refused."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.object_proxy import Proxy
from tests.support.object_stores import ObjectStore
from tests.support.steps import Steps
from tuneplex.adapters import Room, digest, fetch_base
from tuneplex.adapters.filesets import ADAPTER_FILES
from tuneplex.adapters.s3 import Prefix
from tuneplex.errors import SourceError
from tuneplex.objects import Place
from tuneplex.types import ObjectStore as Settings

ADAPTER = {"adapter_config.json": b'{"r": 8}', "adapter_model.safetensors": b"weights" * 1000}
RANGE = 1024 * 1024
LARGE = ADAPTER | {"adapter_model.safetensors": bytes(range(256)) * 4096 * 4}  # four ranges


def fetch(cache: Path, source: str, steps: Steps | None = None, settings: Settings | None = None) -> Path:
    """Fetch an adapter in short ranges."""
    place = Place.parse(source)
    return Prefix(place, Room(cache), steps or Steps(), settings, length=RANGE).fetch(ADAPTER_FILES)


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("server", ["weed", "moto"])
def test_adapter_arrives(server: str, request: pytest.FixtureRequest, cache: Path) -> None:
    """An adapter's files arrive under the digest of their content; code, pickles and deeper objects do not."""
    store: ObjectStore = request.getfixturevalue(server)
    others = {"README.md": b"x", "run.py": b"x", "adapter_model.bin": b"x", "sub/adapter_config.json": b"x"}
    source = store.put(store.bucket(), "team/lora", LARGE | others)
    steps = Steps()
    directory = fetch(cache, source, steps, Settings(store.url, "us-east-1"))
    assert contents(directory) == LARGE
    assert directory == cache / "adapters" / digest(directory)
    total = sum(map(len, LARGE.values()))
    assert steps.steps == [f"downloading {source} (4.0 MiB)"]
    assert steps.last == (total, total)


def test_base_arrives(weed: ObjectStore, cache: Path) -> None:
    """A base arrives with its configuration, tokenizer and safetensors, by the endpoint that the settings name."""
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w", "model-2.safetensors": b""}
    source = weed.put(weed.bucket(), "base", files | {"pytorch_model.bin": b"x", "modeling_x.py": b"x"})
    found = fetch_base(
        "tiny", source, cache, Steps(), python=Path("/none"), env={}, store=Settings(weed.url, "us-east-1")
    )
    assert (found.name, found.source) == ("tiny", source)
    assert contents(Path(found.path)) == files
    assert Path(found.path).parent == cache / "bases"


def test_nothing_is_fetched_twice(weed: ObjectStore, front: Proxy, cache: Path) -> None:
    """The second time only the listing is asked for; the same content elsewhere, or under a new ETag, comes once."""
    bucket = weed.bucket()
    source = weed.put(bucket, "lora", LARGE)
    first = fetch(cache, source)
    front.asked.clear()
    assert fetch(cache, source) == first
    assert len(front.asked) == 1
    weed.put(bucket, "lora", {"vocab.json": b"new"})
    front.asked.clear()
    second = fetch(cache, source)
    assert contents(second) == LARGE | {"vocab.json": b"new"}
    assert second != first
    assert contents(first) == LARGE
    assert front.gets("adapter_model.safetensors") == []
    copy = weed.put(bucket, "copy", LARGE)
    assert fetch(cache, copy) == first
    assert len(list((cache / "files").iterdir())) == 3


def test_contents_are_named_by_their_sha256(weed: ObjectStore, cache: Path) -> None:
    """Each content is one file of the cache under its SHA-256, which nobody can change by accident."""
    directory = fetch(cache, weed.put(weed.bucket(), "lora", LARGE))
    for name, content in LARGE.items():
        file = cache / "files" / hashlib.sha256(content).hexdigest()
        assert file.samefile(directory / name)
        assert not file.stat().st_mode & 0o222
    assert list((cache / "fetching").iterdir()) == [next((cache / "fetching").glob("*.lock"))]


def test_without_the_store(weed: ObjectStore, front: Proxy, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fetched once is usable while the store is out of reach; a store that refuses is another matter."""
    source = weed.put(weed.bucket(), "lora", ADAPTER)
    first = fetch(cache, source)
    steps = Steps()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    assert fetch(cache, source, steps) == first
    assert steps.steps == [f"the object store is out of reach; {source} is {first.name[:12]} from the cache"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", front.url)
    front.refused[("GET", "")] = 403
    with pytest.raises(SourceError, match="may not do that"):
        fetch(cache, source)


def test_wrong_secret(weed: ObjectStore, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong secret and an unknown key are told apart, and neither the secret nor a part of it is shown."""
    source = weed.put(weed.bucket(), "lora", ADAPTER)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(SourceError, match="the secret key is wrong") as caught:
        fetch(cache, source)
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.hint
    assert "not-the-secret" not in f"{caught.value} {caught.value.hint}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(SourceError, match="the access key is not known there"):
        fetch(cache, source)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(SourceError, match="there are no credentials"):
        fetch(cache, source)


def test_nothing_there(weed: ObjectStore, cache: Path) -> None:
    """A bucket that is not there, a prefix without objects, and one without weights are named as what they are."""
    bucket = weed.bucket()
    with pytest.raises(SourceError, match="there is no such bucket"):
        fetch(cache, "s3://no-such-bucket-here/lora")
    with pytest.raises(SourceError, match="nothing is there"):
        fetch(cache, f"s3://{bucket}/lora")
    weed.put(bucket, "pickled", {"adapter_config.json": b"{}", "adapter_model.bin": b"x"})
    with pytest.raises(SourceError, match=r"only adapter_model\.bin, a pickle"):
        fetch(cache, f"s3://{bucket}/pickled")


@pytest.mark.parametrize(
    "server, name",
    [("moto", "tokenizer\\..\\..\\x"), ("weed", "tokenizer\n.json"), ("moto", "tokenizer" + "x" * 250)],
)
def test_names_that_are_none(server: str, name: str, request: pytest.FixtureRequest, cache: Path) -> None:
    """An object whose name could lead elsewhere, or is no name of a file, is refused."""
    store: ObjectStore = request.getfixturevalue(server)
    source = store.put(store.bucket(), "lora", ADAPTER | {name: b"x"})
    with pytest.raises(SourceError, match="cannot be the name of a file"):
        fetch(cache, source, settings=Settings(store.url, "us-east-1"))
    assert not (cache / "adapters").exists()


def test_keys_that_lead_out(moto: ObjectStore, cache: Path, tmp_path: Path) -> None:
    """Keys with `..`, with an empty part or with a path of this machine become no files."""
    bucket = moto.bucket()
    source = moto.put(bucket, "lora", ADAPTER)
    moto.put(bucket, "lora/..", {"adapter_config.json": b"x", "../vocab.json": b"x"})
    moto.put(bucket, "lora/", {"etc/vocab.json": b"x", f"{tmp_path}/vocab.json": b"x"})
    assert contents(fetch(cache, source, settings=Settings(moto.url, "us-east-1"))) == ADAPTER
    assert not list(tmp_path.rglob("vocab.json"))


def test_the_command_line_does_not_load_the_client() -> None:
    """Commands that have nothing to do with an object store do not pay for its client."""
    code = "import sys, tuneplex.cli.main, tuneplex.cli.up, tuneplex.adapters; print('botocore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
