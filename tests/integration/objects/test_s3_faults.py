"""What goes wrong between an object store and the cache, and what is left of a fetch afterwards."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.object_proxy import Asked, Proxy
from tests.support.object_stores import ObjectStore
from tests.support.steps import Steps
from tuneplex.adapters import Room
from tuneplex.adapters.filesets import ADAPTER_FILES
from tuneplex.adapters.manifest import MANIFEST, Item, Manifest
from tuneplex.adapters.s3 import Prefix
from tuneplex.errors import SourceError
from tuneplex.objects import Place

RANGE = 1024 * 1024
WEIGHTS = "adapter_model.safetensors"
ADAPTER = {"adapter_config.json": b'{"r": 8}', WEIGHTS: bytes(range(256)) * 4096 * 4}  # four ranges
RANGES = {f"{begin}-{begin + RANGE - 1}" for begin in range(0, 4 * RANGE, RANGE)}


def fetch(cache: Path, source: str, steps: Steps | None = None, quota: int | None = None) -> Path:
    """Fetch an adapter in short ranges."""
    prefix = Prefix(Place.parse(source), Room(cache, quota), steps or Steps(), length=RANGE)
    return prefix.fetch(ADAPTER_FILES)


def contents(directory: Path) -> dict[str, bytes]:
    """All files of a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def source(weed: ObjectStore) -> str:
    """An adapter in a store."""
    return weed.put(weed.bucket(), "lora", ADAPTER)


def manifest(files: dict[str, bytes], *, complete: bool = True) -> dict[str, bytes]:
    """What a push of these files writes beside them."""
    items = {name: Item(len(content), hashlib.sha256(content).hexdigest()) for name, content in files.items()}
    return {MANIFEST: Manifest(complete, items).encoded()}


def test_a_connection_is_cut(front: Proxy, cache: Path, source: str) -> None:
    """A range whose connection breaks is gone on with where it broke; nothing arrives twice."""
    front.cuts[WEIGHTS] = [700_000, 200_000]
    steps = Steps()
    assert contents(fetch(cache, source, steps)) == ADAPTER
    # A connection that the store has closed may be tried once more, so the same range may stand there twice.
    again = {int(one.split("-")[0]) % RANGE for one in set(front.gets(WEIGHTS)) - RANGES}
    assert again in ({700_000, 200_000}, {700_000, 900_000})
    assert steps.last[0] == steps.last[1] == sum(map(len, ADAPTER.values()))


def test_a_store_that_goes_away(front: Proxy, cache: Path, source: str) -> None:
    """When the store stays away nothing looks complete, and the next try asks only for what has not arrived."""

    def away(asked: Asked) -> None:
        if asked.range.startswith(f"{3 * RANGE}-"):
            front.refused[("GET", WEIGHTS)] = 503

    front.before = away
    with pytest.raises(SourceError, match="answered 503") as caught:
        fetch(cache, source)
    assert caught.value.hint == "try again later"
    assert not (cache / "adapters").exists()
    arrived = ranges_of_weights(cache)
    front.refused.clear()
    front.before = lambda _: None
    front.asked.clear()
    assert contents(fetch(cache, source)) == ADAPTER
    assert set(front.gets(WEIGHTS)) == RANGES - {f"{begin}-{int(begin) + RANGE - 1}" for begin in arrived}


def ranges_of_weights(cache: Path) -> list[str]:
    """Where the ranges begin that have arrived of the weights."""
    lists = (path for path in cache.glob("fetching/*/*.arrived"))
    large = (one for one in lists if one.with_suffix("").stat().st_size == len(ADAPTER[WEIGHTS]))
    return next((one.read_text().splitlines()[1:] for one in large), [])


SCRIPT = """
import resource, signal, sys
from pathlib import Path
from tests.integration.objects.test_s3_faults import fetch
from tuneplex.errors import SourceError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    print(fetch(Path(sys.argv[1]), sys.argv[2]))
except SourceError as error:
    print("SourceError", error, error.hint)
"""


def started(cache: Path, source: str, *, largest: int = 1 << 30) -> subprocess.Popen[str]:
    """A process of its own that fetches, and cannot write larger files."""
    command = [sys.executable, "-B", "-c", SCRIPT, str(cache), source, str(largest)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."})


def said(process: subprocess.Popen[str]) -> str:
    """What it says at its end."""
    return process.communicate(timeout=120)[0].strip()


def test_the_process_is_killed(front: Proxy, cache: Path, source: str) -> None:
    """After SIGKILL in the middle the ranges that had arrived are not asked for again."""
    reached, release = threading.Event(), threading.Event()

    def hold(asked: Asked) -> None:
        if asked.range.startswith(f"{3 * RANGE}-"):
            reached.set()
            release.wait(60)

    front.before = hold
    process = started(cache, source)
    assert reached.wait(60)
    while len(ranges_of_weights(cache)) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    release.set()
    front.before = lambda _: None
    front.asked.clear()
    assert contents(fetch(cache, source)) == ADAPTER
    assert front.gets(WEIGHTS) == [f"{3 * RANGE}-{4 * RANGE - 1}"]


def test_two_processes_at_once(front: Proxy, cache: Path, source: str) -> None:
    """Of two processes that fetch the same, one asks for each range once, and both get the same directory."""
    processes = [started(cache, source) for _ in range(2)]
    first, second = map(said, processes)
    assert first == second
    assert contents(Path(first)) == ADAPTER
    assert sorted(front.gets(WEIGHTS)) == sorted(RANGES)


def test_a_full_disk(cache: Path, source: str) -> None:
    """A disk that is full while a file is written is named, with where the cache is, and nothing looks complete."""
    answer = said(started(cache, source, largest=2 * RANGE))
    assert answer.startswith(f"SourceError {source}: cannot be stored: File too large the cache is {cache}")
    assert not (cache / "adapters").exists()
    assert contents(fetch(cache, source)) == ADAPTER


def test_a_disk_without_room(front: Proxy, cache: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has not room enough is named before anything is fetched."""
    usage = shutil.disk_usage(cache.parent)._replace(free=2048)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(SourceError, match=r"needs 4\.0 MiB, .* has 2\.0 KiB free"):
        fetch(cache, source)
    assert front.gets(WEIGHTS) == []


def test_an_object_changes_meanwhile(weed: ObjectStore, front: Proxy, cache: Path, source: str) -> None:
    """An object that is replaced between the list and the fetch is not taken, and the next try takes the new one."""
    bucket = Place.parse(source).bucket
    new = {WEIGHTS: bytes(reversed(ADAPTER[WEIGHTS]))}

    def replace(asked: Asked) -> None:
        if asked.range.startswith("0-") and asked.path.startswith(f"/{bucket}/lora/{WEIGHTS}"):
            weed.put(bucket, "lora", new)

    front.before = replace
    with pytest.raises(SourceError, match="not the one that was listed any more") as caught:
        fetch(cache, source)
    assert caught.value.hint == "it was changed meanwhile; try again"
    front.before = lambda _: None
    assert contents(fetch(cache, source)) == ADAPTER | new


def test_a_wrong_checksum(weed: ObjectStore, front: Proxy, cache: Path, source: str) -> None:
    """A file that arrives with another SHA-256 than the manifest says is thrown away, and fetched again next time."""
    weed.put(Place.parse(source).bucket, "lora", manifest(ADAPTER))
    front.damaged.add(WEIGHTS)
    with pytest.raises(SourceError, match="its SHA-256 is not that of what was pushed"):
        fetch(cache, source)
    front.damaged.clear()
    assert contents(fetch(cache, source)) == ADAPTER


def test_half_of_a_push(weed: ObjectStore, cache: Path, source: str) -> None:
    """A push that is not finished is refused; so is one of which a file is gone or has another size."""
    bucket = Place.parse(source).bucket
    weed.put(bucket, "lora", manifest(ADAPTER, complete=False))
    with pytest.raises(SourceError, match="under way, or was cut off") as caught:
        fetch(cache, source)
    assert caught.value.hint == f"go on with it: tuneplex push PATH {source}"
    weed.put(bucket, "lora", manifest(ADAPTER | {"vocab.json": b"{}"}))
    with pytest.raises(SourceError, match=r"vocab\.json is not there"):
        fetch(cache, source)
    weed.put(bucket, "lora", {"vocab.json": b"{ }"})
    with pytest.raises(SourceError, match=r"vocab\.json has another size"):
        fetch(cache, source)
    weed.put(bucket, "lora", {MANIFEST: b'{"complete": true}'})
    with pytest.raises(SourceError, match=r"tuneplex\.json cannot be read"):
        fetch(cache, source)


def test_what_a_push_does_not_name(weed: ObjectStore, cache: Path, source: str) -> None:
    """Where a push has written down its files, others that lie there do not belong to the version."""
    bucket = Place.parse(source).bucket
    weed.put(bucket, "lora", {"vocab.json": b"of an older push", **manifest(ADAPTER)})
    assert contents(fetch(cache, source)) == ADAPTER


def test_a_manifest_that_changes_its_mind(weed: ObjectStore, cache: Path, source: str) -> None:
    """A manifest that comes later, with another checksum than what was fetched, makes the file be fetched again."""
    bucket = Place.parse(source).bucket
    fetch(cache, source)
    weed.put(bucket, "lora", manifest(ADAPTER | {WEIGHTS: bytes(len(ADAPTER[WEIGHTS]))}))
    with pytest.raises(SourceError, match="its SHA-256 is not that of what was pushed"):
        fetch(cache, source)
