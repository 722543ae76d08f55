"""What should change: from the fleet's description, what was seen, and the time, to actions. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from tuneplex.control.actions import Action, Drain, Forget, Keep, Launch, Stop
from tuneplex.control.adapters import adapter_actions, is_complete
from tuneplex.control.seen import Limits, Seen
from tuneplex.control.wanted import Match, Wanted, local_peers, match, wanted
from tuneplex.launchers.launcher import Launched, Order
from tuneplex.types import FleetSpec, PoolSpec, ReplicaState
from tuneplex.units import format_duration

__all__ = ["Situation", "decide", "failures", "gave_up", "restart_at"]


class Situation(msgspec.Struct, frozen=True):
    """All that a decision depends on.

    Attributes:
        spec: What should be.
        seen: What is.
        now: Unix time.
        applied_at: When `spec` was applied; failures from before do not count.
        free_gpus: GPUs of this machine that no replica uses.
        limits: How patient to be.
    """

    spec: FleetSpec
    seen: tuple[Seen, ...]
    now: float
    applied_at: float = 0.0
    free_gpus: int = 0
    limits: Limits = Limits()

    def state(self, replica: Seen) -> ReplicaState:
        """Where a replica is in its life."""
        return replica.state(self.now, self.limits)


def decide(situation: Situation) -> tuple[Action, ...]:
    """Every action that makes sense now. Carrying them out and deciding again comes to rest."""
    pools = {pool.name for pool in situation.spec.pools}
    actions: list[Action] = []
    for pool in situation.spec.pools:
        actions += _pool(situation, pool)
    for replica in situation.seen:
        if replica.launched.pool not in pools:
            actions += _leave(situation, replica, "its pool was removed", may_drain=True)
    return (*actions, *adapter_actions(situation.spec, situation.seen, situation.now, situation.limits))


def failures(record: Launched, applied_at: float, limits: Limits) -> tuple[float, ...]:
    """When starts of a replica ended, those that still count: since the fleet was applied, and close together."""
    if record.ended is None:
        return tuple(time for time in record.failures if time > applied_at)
    since = max(applied_at, record.ended - limits.give_up_window_s)
    return tuple(time for time in (*record.failures, record.ended) if time > since)


def gave_up(record: Launched, applied_at: float, limits: Limits) -> bool:
    """Whether a replica that ended is left alone."""
    return record.ended is not None and len(failures(record, applied_at, limits)) >= limits.give_up_after


def restart_at(record: Launched, applied_at: float, limits: Limits) -> float:
    """When a replica that ended should start again, Unix time."""
    count = len(failures(record, applied_at, limits))
    if record.ended is None or count == 0:
        return 0.0
    return record.ended + min(limits.first_restart_s * 2.0 ** (count - 1), limits.longest_restart_s)


def _pool(situation: Situation, pool: PoolSpec) -> Iterator[Action]:
    mine = [replica for replica in situation.seen if replica.launched.pool == pool.name]
    found = match(wanted(pool, situation.spec.base), mine)
    for wish, replica in found.kept:
        yield from _stay(situation, wish, replica)
    yield from _start(situation, pool, found)
    yield from _replace(situation, pool, found)


def _stay(situation: Situation, wish: Wanted, replica: Seen) -> Iterator[Action]:
    """One that is wanted: start it again when it ended, and when it hangs."""
    if not replica.alive:
        yield from _again(situation, wish, replica)
        return
    if replica.stopping:
        return
    if replica.draining_since is not None:
        yield Keep(replica.name)
    if replica.hold is not None and replica.hold.restarts:
        yield from _end(situation, replica, replica.hold.since, "it is started again, as somebody wished")
    silent_s = situation.now - replica.silent_since if replica.silent_since is not None else 0.0
    if replica.answered and replica.launched.launcher != "external" and silent_s > situation.limits.silent_s:
        yield Stop(replica.name, f"it has not answered a health check for {silent_s:.0f} s")


def _again(situation: Situation, wish: Wanted, replica: Seen) -> Iterator[Action]:
    """One that ended is started again: at once if somebody wished so, else with patience, which has an end."""
    record, applied_at, limits = replica.launched, situation.applied_at, situation.limits
    if replica.hold is not None and replica.hold.restarts:
        yield Launch(_order(situation, wish, record, ()))
    elif not gave_up(record, applied_at, limits) and situation.now >= restart_at(record, applied_at, limits):
        yield Launch(_order(situation, wish, record, failures(record, applied_at, limits)))


def _start(situation: Situation, pool: PoolSpec, found: Match) -> Iterator[Action]:
    """Start what is missing; while old ones are replaced, one more than wanted runs at a time, if there is room."""
    taken = {replica.name for replica in situation.seen}
    names = (name for name in (f"{pool.name}-{index}" for index in itertools.count()) if name not in taken)
    for wish in found.missing[: _room(situation, pool, found)]:
        yield Launch(_first_order(situation, wish, next(names)))


def _room(situation: Situation, pool: PoolSpec, found: Match) -> int:
    old = [replica for replica in found.spare if replica.alive]
    room = len(found.missing)
    if old:
        running = len(old) + sum(replica.alive for _wish, replica in found.kept)
        room = max(0, len(found.kept) + len(found.missing) + 1 - running)
    if pool.gpus and pool.launcher == "local" and old:  # a GPU that an old one holds comes free when that one ends
        room = min(room, situation.free_gpus // pool.gpus)
    return room


def _replace(situation: Situation, pool: PoolSpec, found: Match) -> Iterator[Action]:
    """Let go of what is not wanted, but never of one that serves while too few others do."""
    ready = [replica for _wish, replica in found.kept if _takes_over(situation, replica)]
    serving = [replica for replica in found.spare if situation.state(replica) is ReplicaState.READY]
    wishes = len(found.kept) + len(found.missing)
    dispensable = len(ready) + len(serving) - wishes
    leaving = any(replica.alive and replica.draining_since is not None for replica in found.spare)
    if found.missing and not _room(situation, pool, found) and not leaving:
        dispensable = max(dispensable, 1)  # there is no room for a new one beside the old ones
    for replica in found.spare:
        serves = replica in serving
        yield from _leave(situation, replica, "another one takes its place", may_drain=not serves or dispensable > 0)
        dispensable -= serves


def _takes_over(situation: Situation, replica: Seen) -> bool:
    return situation.state(replica) is ReplicaState.READY and is_complete(situation.spec, replica)


def _leave(situation: Situation, replica: Seen, why: str, *, may_drain: bool) -> Iterator[Action]:
    """One that is not wanted: drain it, then stop it, then forget it."""
    if not replica.alive:
        yield Forget(replica.name)
    elif replica.stopping:
        return
    elif replica.draining_since is None:
        if may_drain:
            yield Drain(replica.name, why)
    else:
        yield from _end(situation, replica, replica.draining_since, why)


def _end(situation: Situation, replica: Seen, since: float, why: str) -> Iterator[Action]:
    """Stop one that drains since then, once nothing is left to be done there, or its time is over."""
    if replica.drained:
        yield Stop(replica.name, f"{why}; it is drained")
    elif situation.now - since > replica.drain_s:
        yield Stop(replica.name, f"{why}; its requests did not end within {format_duration(replica.drain_s)}")


def _first_order(situation: Situation, wish: Wanted, name: str) -> Order:
    spec = situation.spec
    return Order(name, wish.pool, spec.base, wish.settings, wish.url, peers=local_peers(spec))


def _order(situation: Situation, wish: Wanted, record: Launched, past: tuple[float, ...]) -> Order:
    """The same one once more."""
    first = _first_order(situation, wish, record.replica)
    return msgspec.structs.replace(first, failures=past, restarts=record.restarts + 1)
