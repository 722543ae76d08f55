"""Which fleets of this user serve from the cache: each is noted when it starts, and asked whether it still runs."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from tuneplex.app.state import StateDir
from tuneplex.files import write_whole

__all__ = ["in_use", "note_user"]


def note_user(cache: Path, state: StateDir) -> None:
    """Note that a fleet with this state directory may serve from the cache.

    Where that cannot be written, nothing can be removed from the cache either.
    """
    path = str(state.path.absolute())
    users = cache / "fleets"
    with contextlib.suppress(OSError):
        users.mkdir(parents=True, exist_ok=True)
        write_whole(users / hashlib.sha256(path.encode()).hexdigest()[:32], path.encode())


def in_use(cache: Path) -> Iterator[Path]:
    """The directories that fleets which run now were told to serve from.

    Raises:
        StateError: One runs, and nobody can tell from what.
    """
    for note in cache.glob("fleets/*"):
        state = _running(note)
        if state is not None:
            yield from map(Path, filter(None, _paths(state)))


def _paths(state: StateDir) -> Iterator[str]:
    """What a fleet serves from, and what it could go back to."""
    spec = state.read_spec()
    yield spec.base.path
    yield from (version.path for version in spec.adapters)
    for record in state.read_versions():
        needed = {record.promoted, *record.before[:1], record.rollout.digest if record.rollout else ""}
        yield from (known.version.path for known in record.versions if known.version.digest in needed)


def _running(note: Path) -> StateDir | None:
    """The state directory of the fleet that was noted, if it runs; the note of one whose state is gone goes, too."""
    try:
        state = StateDir(Path(note.read_text()))
    except FileNotFoundError:  # another process has removed it
        return None
    if not state.path.is_dir():
        note.unlink(missing_ok=True)
        return None
    return state if state.is_locked() else None
