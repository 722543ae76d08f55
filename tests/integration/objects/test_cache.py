"""The cache's bounds: what goes when there is too much of it, and what stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.command_line import write_adapter, write_base
from tests.support.object_stores import ObjectStore
from tests.support.steps import Steps
from tuneplex.adapters import Room, fetch_adapter, held, kept, make_version, prune
from tuneplex.adapters.locks import exclusive
from tuneplex.app.cache_users import in_use, note_user
from tuneplex.app.state import StateDir
from tuneplex.cli.main import run
from tuneplex.errors import SourceError, StateError
from tuneplex.types import AdapterVersion, Base, FleetSpec

WIDTH = 16384  # 1 MiB
MIB = 1 << 20


@pytest.fixture
def versions(cache: Path, tmp_path: Path) -> list[Path]:
    """Three versions of a megabyte, used a day, two days and three days ago."""
    made = []
    for days in (1, 2, 3):
        directory = write_adapter(tmp_path / f"v{days}", width=WIDTH)
        made.append(Path(make_version("a", "", directory, cache=cache).path))
        used(made[-1], days)
    return made


def used(path: Path, days: float) -> None:
    """Let it be that long since something was used."""
    os.utime(path, (time.time() - days * 86400,) * 2)


def test_least_recently_used_go_first(cache: Path, versions: list[Path]) -> None:
    """Of what nobody uses, what was used longest ago goes, and no more of it than has to."""
    assert [one.path for one in kept(cache)] == [str(path) for path in reversed(versions)]
    removed = prune(cache, 2 * MIB + MIB // 2, ())
    assert [one.path for one in removed] == [str(versions[2])]
    assert [path.exists() for path in versions] == [True, True, False]
    assert held(cache) < 2 * MIB + MIB // 2
    assert not list(cache.rglob(".gone-*"))


def test_what_must_stay(cache: Path, versions: list[Path]) -> None:
    """What a fleet serves from stays, and so does what was used within the last hour."""
    used(versions[1], 0.01)
    removed = prune(cache, 0, [versions[2]])
    assert [one.path for one in removed] == [str(versions[0])]
    assert [path.exists() for path in versions] == [False, True, True]


def test_using_a_version_again(cache: Path, versions: list[Path], tmp_path: Path) -> None:
    """A version that is used again is the last one to go."""
    make_version("a", "", tmp_path / "v3", cache=cache)
    prune(cache, 2 * MIB + MIB // 2, ())
    assert [path.exists() for path in versions] == [True, False, True]


def test_a_fetch_makes_room(weed: ObjectStore, cache: Path, versions: list[Path]) -> None:
    """A fetch that would pass the quota removes what was used longest ago, before it fetches."""
    files = {path.name: path.read_bytes() + b" " for path in versions[0].iterdir()}
    source = weed.put(weed.bucket(), "new", files)
    quota = 3 * MIB + MIB // 2
    found = fetch_adapter("new", source, cache, Steps(), room=Room(cache, quota))
    assert [path.exists() for path in versions] == [True, True, False]
    assert found.is_dir()
    assert held(cache) <= quota


def test_a_quota_that_is_too_small(weed: ObjectStore, cache: Path, versions: list[Path]) -> None:
    """Where what is in use leaves too little room nothing is fetched, and the error says which bound that is."""
    files = {path.name: path.read_bytes() + b" " for path in versions[0].iterdir()}
    source = weed.put(weed.bucket(), "new", files)
    room = Room(cache, 3 * MIB, lambda: versions)
    with pytest.raises(SourceError, match=r"needs 1\.0 MiB, and the cache may hold 3\.0 MiB") as caught:
        fetch_adapter("new", source, cache, Steps(), room=room)
    assert caught.value.hint == "raise storage.cache in the fleet file"
    assert all(path.exists() for path in versions)


def test_contents_without_a_version_go(weed: ObjectStore, cache: Path, tmp_path: Path) -> None:
    """Contents go with the last version that has them, and what two versions share counts once."""
    bucket = weed.bucket()
    files = {path.name: path.read_bytes() for path in write_adapter(tmp_path / "a", width=WIDTH).iterdir()}
    first = fetch_adapter("a", weed.put(bucket, "a", files), cache, Steps())
    second = fetch_adapter("b", weed.put(bucket, "b", files | {"vocab.json": b"{}"}), cache, Steps())
    assert held(cache) < MIB + MIB // 2
    used(first, 2)
    used(second, 1)
    prune(cache, MIB + MIB // 2, ())
    assert first.exists()
    prune(cache, MIB // 2, ())
    assert not first.exists()
    assert not second.exists()
    assert list((cache / "files").iterdir()) == []


def test_a_fetch_under_way_stays(cache: Path) -> None:
    """What somebody is fetching stays, however long that takes; what was left of a fetch goes like a version."""
    work = cache / "fetching" / "abc"
    work.mkdir(parents=True)
    (work / "part").write_bytes(bytes(MIB))
    used(work, 3)
    with exclusive(work.with_suffix(".lock"), lambda: None):
        assert prune(cache, 0, ()) == []
    assert [one.path for one in prune(cache, 0, ())] == [str(work)]
    assert not work.exists()


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`cache show` lists what is kept, `cache prune` says what it removed, and a wrong size is refused."""
    cache = tmp_path / "home" / "tuneplex"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    assert run(["cache", "show"]) == 0
    assert capsys.readouterr().out == "nothing was fetched yet\n"
    version = Path(make_version("a", "", write_adapter(tmp_path / "a", width=WIDTH), cache=cache).path)
    used(version, 2)
    assert run(["cache", "show"]) == 0
    assert f"adapters/{version.name[:12]} " in capsys.readouterr().out
    assert run(["cache", "prune", "--to", "lots"]) == 2
    assert "--to: 'lots' is not a size" in capsys.readouterr().err
    assert run(["cache", "prune", "--to", "0"]) == 0
    assert capsys.readouterr().out == (f"removed adapters/{version.name[:12]} (1.0 MiB)\n0 B are left in {cache}\n")


def test_fleets_that_run(cache: Path, tmp_path: Path) -> None:
    """In use is what fleets serve from while they run; one that has ended, or whose state is gone, uses nothing."""
    base = write_base(tmp_path / "base")
    spec = FleetSpec("f", Base("b", str(base)), (AdapterVersion("a", "0" * 64, "/adapters/a", 8, "p"),))
    state = StateDir(tmp_path / "state")
    state.create()
    state.write_spec(spec)
    note_user(cache, state)
    assert list(in_use(cache)) == []
    lock = state.lock()
    assert list(in_use(cache)) == [base, Path("/adapters/a")]
    state.fleet_file.write_text("{}")
    with pytest.raises(StateError):
        list(in_use(cache))
    os.close(lock)
    note_user(cache, StateDir(tmp_path / "gone"))
    assert list(in_use(cache)) == []
    assert len(list((cache / "fleets").iterdir())) == 1
