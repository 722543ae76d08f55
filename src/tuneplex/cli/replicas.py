"""`replicas`: drain one, let it take requests again, start it again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli import render
from tuneplex.cli.admin import Admin
from tuneplex.cli.terminal import Terminal
from tuneplex.errors import StateError
from tuneplex.types import ReplicaState, ReplicaStatus

__all__ = ["Wish", "drain", "restart", "resume"]

_LOOK_S = 0.25
_AWAY_S = 30.0  # so long may control be away while somebody waits
_NEWS_S = 10.0
_NUMBER = re.compile(r"[0-9.hms]+")
_Condition = Callable[[ReplicaStatus], bool]


@dataclass(frozen=True, slots=True)
class Wish:
    """How `drain` or `restart` was called.

    Attributes:
        now: Its streams should go elsewhere at once.
        force: Even if it is the last one.
        wait_s: For how long to wait for the end of it, seconds; None: not at all.
        as_json: For scripts.
    """

    now: bool = False
    force: bool = False
    wait_s: float | None = None
    as_json: bool = False


def drain(state: StateDir, name: str, wish: Wish) -> int:
    """Let a replica take no new requests; 1 when it was waited for and requests are left.

    Raises:
        UserError: There is none of this name, or it is the last one.
        TuneplexError: Control does not answer, or cannot keep it.
    """
    with Admin(state.admin_socket) as admin:
        replica = admin.drain(name, now=wish.now, force=wish.force)
    return _done(state, replica, lambda one: one.drained, wish)


def restart(state: StateDir, name: str, wish: Wish) -> int:
    """Drain a replica and start it again; 1 when it was waited for and is not ready.

    Raises:
        UserError: There is none of this name, it is the last one, or not ours.
        TuneplexError: Control does not answer, or cannot keep it.
    """
    with Admin(state.admin_socket) as admin:
        replica = admin.restart(name, now=wish.now, force=wish.force)
    return _done(state, replica, lambda one: not one.held and one.state is ReplicaState.READY, wish)


def resume(state: StateDir, name: str, *, as_json: bool) -> int:
    """Let a replica take requests again.

    Raises:
        UserError: There is none of this name, or it goes away.
        TuneplexError: Control does not answer, or cannot keep it.
    """
    with Admin(state.admin_socket) as admin:
        _print(admin.resume(name), as_json=as_json)
    return 0


def _done(state: StateDir, replica: ReplicaStatus, condition: _Condition, wish: Wish) -> int:
    last = replica if wish.wait_s is None else _waited(state, replica.name, condition, wish.wait_s)
    _print(last, as_json=wish.as_json)
    return 0 if wish.wait_s is None or condition(last) else 1


def _waited(state: StateDir, name: str, condition: _Condition, wait_s: float) -> ReplicaStatus:
    """What has become of a replica when the condition holds, or the time is over; what happens meanwhile is told."""
    terminal, told, at = Terminal.standard(), "", 0.0
    deadline = time.monotonic() + wait_s
    while not condition(last := _look(state, name)) and time.monotonic() < deadline:
        words = _words(last)
        if _NUMBER.sub("", words) != _NUMBER.sub("", told) or time.monotonic() - at > _NEWS_S:
            terminal.note(words)
            told, at = words, time.monotonic()
        time.sleep(_LOOK_S)
    return last


def _look(state: StateDir, name: str) -> ReplicaStatus:
    """A replica now. A control process that is just being started again is no reason to end.

    Raises:
        StateError: Control does not answer, or the replica is gone.
    """
    deadline = time.monotonic() + _AWAY_S
    while True:
        try:
            with Admin(state.admin_socket) as admin:
                found = {replica.name: replica for replica in admin.status().replicas}
        except StateError:
            if time.monotonic() > deadline or not state.is_locked():
                raise
            time.sleep(_LOOK_S)
            continue
        if name not in found:
            raise StateError(f"{name} is gone")
        return found[name]


def _print(replica: ReplicaStatus, *, as_json: bool) -> None:
    terminal = Terminal.standard()
    if as_json:
        terminal.json(msgspec.to_builtins(replica))
    else:
        terminal.say(_words(replica))


def _words(replica: ReplicaStatus) -> str:
    """Its name and state, and what a person should know of it."""
    return f"{replica.name} is {', '.join(filter(None, (replica.state.value, render.note(replica))))}"
