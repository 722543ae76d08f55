"""`usage reconcile`: what engines have counted, against what requests say."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli import render_reconcile as render
from tuneplex.cli.admin import Admin
from tuneplex.cli.days import moment_of
from tuneplex.cli.offline import settled
from tuneplex.cli.terminal import Terminal
from tuneplex.control.usage_bodies import EngineUse
from tuneplex.journal import Finished, Follower, Replay
from tuneplex.records import EngineCounters, Store
from tuneplex.records.reconcile import EDGE_S, Line, Reckoning
from tuneplex.types import FleetSpec

__all__ = ["show"]

_TRIES = 5
_AHEAD_S = 86400.0  # for clocks that differ


def show(state: StateDir, since: str, *, as_json: bool) -> int:
    """Print each start of each engine with the explanation of its difference; 1 if one has none.

    Raises:
        UserError: `since` is nothing, or the store cannot be used.
        TuneplexError: Control or the database does not answer.
    """
    first = moment_of(since, "--since", time.time())
    terminal = Terminal.standard()
    with settled(state) as store:
        lines = _lines(state, store, first)
    if as_json:
        terminal.json(msgspec.to_builtins(lines))
    else:
        terminal.show(render.engines(lines))
        for text in render.meanings(lines):
            terminal.say(text)
    return 0 if all(line.settled for line in lines) else 1


def _lines(state: StateDir, store: Store, since: float) -> tuple[Line, ...]:
    spec = state.read_spec()
    # The engines first: what is read of requests afterwards is never older.
    counters = [one for one in _counters(state, store, spec.name) if one.at / 1000 >= since]
    if not counters:
        return ()
    reckoning = Reckoning(counters, _contexts(spec), store.last_added_up(spec.name))
    under_way, over = _pending(state.journal) if state.is_locked() else ({}, {})
    first = min(one.since for one in counters) / 1000 - EDGE_S
    for request in store.each_request(spec.name, first, time.time() + _AHEAD_S):
        under_way.pop(request.id, None)
        over.pop(request.id, None)
        reckoning.add(request)
    for request in over.values():
        reckoning.add(request)
    for request in under_way.values():
        reckoning.add(request, under_way=True)
    return reckoning.lines()


def _counters(state: StateDir, store: Store, fleet: str) -> list[EngineCounters]:
    if not state.is_locked():
        return store.counters(fleet)
    with Admin(state.admin_socket) as admin:
        return [_kept(one) for one in admin.engines()]


def _kept(one: EngineUse) -> EngineCounters:
    return EngineCounters(
        engine=one.engine,
        replica=one.replica,
        pool=one.pool,
        since=round(one.since * 1000),
        at=round(one.at * 1000),
        first_prompt=one.first_prompt_tokens,
        first_completion=one.first_completion_tokens,
        prompt=one.prompt_tokens,
        completion=one.completion_tokens,
    )


def _contexts(spec: FleetSpec) -> dict[str, int]:
    """How many tokens a request can have in each pool, where that is known."""
    whole = _positions(spec.base.path)
    found = {pool.name: pool.max_model_len or whole for pool in spec.pools}
    return {name: context for name, context in found.items() if context is not None}


def _positions(base: str) -> int | None:
    try:
        found = json.loads((Path(base) / "config.json").read_bytes()).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int) else None


def _pending(journal: Path) -> tuple[dict[str, Finished], dict[str, Finished]]:
    """What the gateways' journals say: requests that are under way, and those that the store may not have yet."""
    under_way: dict[str, Finished] = {}
    over: dict[str, Finished] = {}
    for directory in sorted(journal.glob("*/")) if journal.is_dir() else ():
        if directory.name.startswith("."):
            continue
        replay = Replay(directory.name)
        over |= {one.id: one for one in _finished(directory, replay)}
        under_way |= {one.id: one for one in replay.abandon()}
    return under_way, over


def _finished(directory: Path, replay: Replay) -> Iterator[Finished]:
    """What is over, by one journal; control may remove a file meanwhile, and has kept what was in it."""
    follower = Follower(directory)
    for _ in range(_TRIES):
        try:
            while entries := follower.read():
                found = (replay.take(one.number, one.entry) for one in entries)
                yield from (one for one in found if one is not None)
        except FileNotFoundError:
            follower = Follower(directory)
        else:
            return
