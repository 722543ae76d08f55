"""Sessions of processes on Linux: who is in one, and how all of it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

__all__ = ["adopt_orphans", "die_with_parent", "kill_session", "session_members"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 5.0


def session_members(session: int) -> list[int]:
    """The live processes of a session (zombies do nothing any more and are left out)."""
    return [pid for pid, _parent, found in _live_processes() if found == session]


def kill_session(session: int, *, spare: Collection[int] = (), adopted_by: int | None = None) -> bool:
    """SIGKILL every process of a session, until none is left.

    The session's leader must be alive or not yet reaped, so that its number cannot have passed to somebody else.

    Args:
        session: Its number.
        spare: Processes that stay.
        adopted_by: Children of this process count, too: those that left the session and lost their parent end up there.

    Returns:
        Whether all are gone; False if the kernel could not end one within some seconds.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while victims := [
        pid
        for pid, parent, found in _live_processes()
        if (found == session or parent == adopted_by) and pid not in spare
    ]:
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def die_with_parent() -> None:
    """Ask the kernel to SIGKILL this process when its parent ends; for a child between fork and exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the new parent of descendants whose own parent ends, so that they are found and reaped here."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _live_processes() -> Iterator[tuple[int, int, int]]:
    """Number, parent and session of every process that is not a zombie."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            text = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue  # it has just gone
        # The command stands in parentheses and may itself hold any character, so count from the last one.
        state, parent, _group, session = text[text.rindex(")") + 2 :].split(" ", 4)[:4]
        if state not in "ZX":
            yield int(entry.name), int(parent), int(session)
