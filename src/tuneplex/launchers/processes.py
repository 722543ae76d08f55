"""Sessions of processes on Linux: who is in one, and how all of it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

__all__ = ["adopt_orphans", "die_with_parent", "kill_session", "session_members"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 5.0


def session_members(session: int) -> list[int]:
    """The live processes of a session (zombies do nothing any more and are left out)."""
    processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [int(entry.name) for entry in processes if _session_of(entry) == session]


def kill_session(session: int, *, spare: int = 0) -> bool:
    """SIGKILL every process of a session but `spare`, until none is left.

    The session's leader must be alive or not yet reaped, so that its number cannot have passed to somebody else.

    Returns:
        Whether all are gone; False if the kernel could not end one within some seconds.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while members := [pid for pid in session_members(session) if pid != spare]:
        for pid in members:
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


def _session_of(entry: Path) -> int | None:
    """The session of one entry of /proc; None for a zombie or a process that has just gone."""
    try:
        text = (entry / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command stands in parentheses and may itself hold any character, so count from the last one.
    state, _parent, _group, session = text[text.rindex(")") + 2 :].split(" ", 4)[:4]
    return None if state in "ZX" else int(session)
