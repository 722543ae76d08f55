"""`push`: what arrives in an object store, what is not sent twice, and what is left when it is cut off."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.command_line import write_adapter, write_base
from tests.support.object_proxy import Asked, Proxy
from tests.support.object_stores import ObjectStore
from tests.support.steps import Steps
from tuneplex.adapters import digest, fetch_adapter, fetch_base
from tuneplex.adapters.manifest import MANIFEST, decoded
from tuneplex.adapters.push import Push, Pushed
from tuneplex.errors import SourceError
from tuneplex.objects import Place
from tuneplex.types import ObjectStore as Settings

PART = 5 * 1024 * 1024
WEIGHTS = "adapter_model.safetensors"
RANK = 65536  # 16 MiB, so four parts


def write_large(directory: Path, seed: int = 1) -> Path:
    """An adapter whose weights are sent in four parts, all of them different."""
    file = write_adapter(directory, rank=RANK) / WEIGHTS
    content = bytearray(file.read_bytes())
    content[-RANK * 256 :] = random.Random(seed).randbytes(RANK * 256)  # noqa: S311 - weights are no secret
    file.write_bytes(content)
    return directory


def push(directory: Path, source: str, steps: Steps | None = None, settings: Settings | None = None) -> Pushed:
    """Push in the smallest parts that stores take."""
    return Push(directory, Place.parse(source), steps or Steps(), settings, part=PART).run()


def contents(directory: Path) -> dict[str, bytes]:
    """All files of a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("server", ["weed", "moto"])
def test_adapter_goes_there_and_back(server: str, request: pytest.FixtureRequest, cache: Path, tmp_path: Path) -> None:
    """What was pushed is fetched as it was, under the digest that push has told; cards stay at home."""
    store: ObjectStore = request.getfixturevalue(server)
    settings = Settings(store.url, "us-east-1")
    directory = write_large(tmp_path / "legal") if server == "weed" else write_adapter(tmp_path / "legal")
    (directory / "README.md").write_text("a card")
    source = f"s3://{store.bucket()}/team/legal"
    steps = Steps()
    pushed = push(directory, source, steps, settings)
    (directory / "README.md").unlink()
    found = fetch_adapter("legal", source, cache, Steps(), store=settings)
    assert contents(found) == contents(directory)
    assert (pushed.kind, pushed.digest, pushed.place) == ("adapter", digest(directory), source)
    assert pushed.sent == steps.last[0] == steps.last[1] == sum(map(len, contents(directory).values()))
    assert found.name == pushed.digest


def test_base_goes_there_and_back(weed: ObjectStore, cache: Path, tmp_path: Path) -> None:
    """A base arrives as it was, without hidden files and directories."""
    directory = write_base(tmp_path / "base")
    (directory / ".cache").mkdir()
    (directory / ".gitattributes").write_text("x")
    source = f"s3://{weed.bucket()}/base"
    assert push(directory, source).kind == "base"
    found = fetch_base("tiny", source, cache, Steps(), python=Path("/none"), env={})
    assert contents(Path(found.path)).keys() == {"config.json", "model.safetensors"}


def test_nothing_is_sent_twice(weed: ObjectStore, front: Proxy, tmp_path: Path) -> None:
    """A second push sends nothing; after a change only the file that has changed and the manifest, twice."""
    directory, bucket = write_large(tmp_path / "legal"), weed.bucket()
    push(directory, f"s3://{bucket}/legal")
    front.asked.clear()
    assert push(directory, f"s3://{bucket}/legal").sent == 0
    assert [one for one in front.asked if one.method in {"PUT", "POST"}] == []
    config = directory / "adapter_config.json"
    config.write_text(config.read_text() + " ")
    assert push(directory, f"s3://{bucket}/legal").sent == config.stat().st_size
    assert front.puts(WEIGHTS) == []
    assert len(front.puts(MANIFEST)) == 2


def arrived(store: ObjectStore, bucket: str) -> list[int]:
    """The numbers of the parts that the store has of the one upload that was begun."""
    (upload,) = store.client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    there = store.client.list_parts(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    return [part["PartNumber"] for part in there.get("Parts", ())]


def cut(store: ObjectStore, front: Proxy, directory: Path, source: str) -> None:
    """Push, and let the store refuse the third and the fourth part when it has the first two."""

    def away(asked: Asked) -> None:
        if "partNumber=3" in asked.path or "partNumber=4" in asked.path:
            while len(arrived(store, Place.parse(source).bucket)) < 2:
                pass
            front.refused[("PUT", WEIGHTS)] = 403

    front.before = away
    with pytest.raises(SourceError, match="may not do that"):
        push(directory, source)
    front.before = lambda _: None
    front.refused.clear()


def test_a_push_is_cut_off(weed: ObjectStore, front: Proxy, cache: Path, tmp_path: Path) -> None:
    """It is refused to those who fetch, and the next push sends only the parts that have not arrived."""
    directory, bucket = write_large(tmp_path / "legal"), weed.bucket()
    source = f"s3://{bucket}/legal"
    cut(weed, front, directory, source)
    with pytest.raises(SourceError, match="under way, or was cut off"):
        fetch_adapter("legal", source, cache, Steps())
    assert arrived(weed, bucket) == [1, 2]
    front.asked.clear()
    push(directory, source)
    assert sorted(one.path.partition("partNumber=")[2][0] for one in front.puts(WEIGHTS)) == ["3", "4"]
    assert "Uploads" not in weed.client.list_multipart_uploads(Bucket=bucket)
    assert contents(fetch_adapter("legal", source, cache, Steps())) == contents(directory)


def test_other_weights_after_a_cut(weed: ObjectStore, front: Proxy, cache: Path, tmp_path: Path) -> None:
    """Parts of other weights than those that are pushed now are given up, and never end up among them."""
    bucket = weed.bucket()
    source = f"s3://{bucket}/legal"
    cut(weed, front, write_large(tmp_path / "old", seed=1), source)
    new = write_large(tmp_path / "new", seed=2)
    front.asked.clear()
    push(new, source)
    assert len(front.puts(WEIGHTS)) == 4
    assert "Uploads" not in weed.client.list_multipart_uploads(Bucket=bucket)
    assert contents(fetch_adapter("legal", source, cache, Steps())) == contents(new)


def test_the_manifest_is_written_last(weed: ObjectStore, front: Proxy, tmp_path: Path) -> None:
    """First the manifest says that a push is under way, then the files come, then it says that they are there."""
    directory, bucket = write_adapter(tmp_path / "legal"), weed.bucket()
    seen: list[tuple[str, bool]] = []

    def note(asked: Asked) -> None:
        if asked.method == "PUT":
            there = weed.files(bucket, "legal").get(MANIFEST)
            seen.append((asked.path.rpartition("/")[2], there is not None and decoded(there).complete))

    front.before = note
    push(directory, f"s3://{bucket}/legal")
    assert [name for name, _ in seen] == [MANIFEST, "adapter_config.json", WEIGHTS, MANIFEST]
    assert not any(complete for _, complete in seen)
    manifest = decoded(weed.files(bucket, "legal")[MANIFEST])
    assert manifest.complete
    assert manifest.files.keys() == {"adapter_config.json", WEIGHTS}


def test_files_change_meanwhile(weed: ObjectStore, front: Proxy, cache: Path, tmp_path: Path) -> None:
    """A directory that somebody trains into while it is pushed never looks like a whole push."""
    directory, source = write_adapter(tmp_path / "legal"), f"s3://{weed.bucket()}/legal"

    def train(asked: Asked) -> None:
        if asked.method == "PUT" and asked.path.endswith(WEIGHTS):
            (directory / "adapter_config.json").write_text("{}")

    front.before = train
    with pytest.raises(SourceError, match="was changed while it was pushed"):
        push(directory, source)
    with pytest.raises(SourceError, match="under way, or was cut off"):
        fetch_adapter("legal", source, cache, Steps())


def test_directories_that_cannot_be_pushed(front: Proxy, tmp_path: Path) -> None:
    """What is neither an adapter nor a base, is not whole, or holds a link out of itself is refused unasked."""
    source = "s3://no-such-bucket/x"
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="is neither an adapter nor a base"):
        push(tmp_path / "empty", source)
    with pytest.raises(SourceError, match="is not a directory"):
        push(tmp_path / "nowhere", source)
    (write_adapter(tmp_path / "half") / WEIGHTS).unlink()
    with pytest.raises(SourceError, match="adapter_model"):
        push(tmp_path / "half", source)
    (tmp_path / "secret").write_text("{}")
    (write_base(tmp_path / "linked") / "tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(SourceError, match=r"tokenizer\.json: is a link out of its directory"):
        push(tmp_path / "linked", source)
    assert front.asked == []
