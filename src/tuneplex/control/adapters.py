"""Which adapter versions should be loaded where, and which one of each adapter is in use: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from tuneplex.control.actions import Load, Unload
from tuneplex.control.seen import Limits, Seen, adapter_of
from tuneplex.types import AdapterVersion, FleetSpec, ReplicaState

__all__ = [
    "Use",
    "adapter_actions",
    "differs",
    "engine_name",
    "in_use",
    "is_complete",
    "should_have",
    "uses",
]


class Use(msgspec.Struct, frozen=True):
    """The version of an adapter that requests get.

    Attributes:
        version: An `AdapterVersion.id`.
        pool: The only pool whose replicas answer with it, or None while it is not where it belongs yet.
    """

    version: str
    pool: str | None


def engine_name(replica: Seen, version: AdapterVersion) -> str:
    """The name under which a replica's engine has a version: its id, or its plain name where nothing can be loaded."""
    return version.id if replica.loads_adapters else version.name


def should_have(spec: FleetSpec, replica: Seen) -> tuple[AdapterVersion, ...]:
    """All versions that a replica should have."""
    return tuple(version for version in spec.loaded if version.pool == replica.launched.pool)


def differs(replica: Seen, version: AdapterVersion) -> bool:
    """Whether an engine of ours has something else under a version's name: what it read from another place.

    In an engine that others may use, too, the same version may have been loaded from a place of theirs.
    """
    if replica.launched.launcher == "external" or replica.residency is None:
        return False
    return any(one.name == version.id and one.path not in {None, version.path} for one in replica.residency.adapters)


def in_use(spec: FleetSpec, seen: Sequence[Seen]) -> dict[str, Use]:
    """For each adapter of the fleet, by name, what requests for it should get.

    That is the version in `spec` on the pool in `spec`, unless no replica there has it yet while some replica still
    has it, or an earlier one. So a new content takes over at the moment it can answer, and a content that does not
    load takes nothing away.
    """
    alive = [replica for replica in seen if replica.alive and replica.answered]
    tried = {candidate.version.id for candidate in spec.candidates}
    return {version.name: _use(version, alive, tried) for version in spec.adapters}


def uses(use: Use, replica: Seen, version: AdapterVersion) -> str | None:
    """The engine's name for the version in use, if this replica should answer with it."""
    if use.pool is not None and use.pool != replica.launched.pool:
        return None
    name = engine_name(replica, version) if use.version == version.id else use.version
    return name if name in replica.listed else None


def is_complete(spec: FleetSpec, replica: Seen) -> bool:
    """Whether a replica has all the adapters it should have, apart from those that it could not load."""
    names = (engine_name(replica, version) for version in spec.adapters if version.pool == replica.launched.pool)
    return all(name in replica.listed or name in replica.failures or not replica.loads_adapters for name in names)


def adapter_actions(spec: FleetSpec, seen: Sequence[Seen], now: float, limits: Limits) -> Iterator[Load | Unload]:
    """What each replica that serves should load or unload next. One at a time for each, so that it goes on serving."""
    for replica in seen:
        ready = replica.state(now, limits) is ReplicaState.READY
        if ready and replica.loads_adapters and not replica.changing:
            yield from _next_change(spec, replica, now, limits)


def _use(version: AdapterVersion, alive: Sequence[Seen], tried: Collection[str]) -> Use:
    at_home = (replica for replica in alive if replica.launched.pool == version.pool)
    if any(engine_name(replica, version) in replica.listed for replica in at_home):
        return Use(version.id, version.pool)
    listed = (name for replica in alive for name in sorted(replica.listed) if adapter_of(name) == version.name)
    name = next((name for name in listed if name not in tried), None)  # what is tried takes nothing over
    return Use(version.id, version.pool) if name is None else Use(name, None)


def _next_change(spec: FleetSpec, replica: Seen, now: float, limits: Limits) -> Iterator[Load | Unload]:
    wanted = {version.id: version for version in should_have(spec, replica)}
    for name, version in wanted.items():
        if (name not in replica.listed or differs(replica, version)) and _may_try(replica, name, now, limits):
            yield Load(replica.name, version)
            return
    for name, since in replica.unlisted.items():
        # Unloading waits for an adapter's requests, and loads would wait behind it: so only what is idle is unloaded.
        if name not in wanted and now - since >= limits.unload_s and not replica.is_busy(name):
            yield Unload(replica.name, name)
            return


def _may_try(replica: Seen, name: str, now: float, limits: Limits) -> bool:
    failure = replica.failures.get(name)
    if failure is None:
        return True
    return now >= failure.at + min(limits.first_load_s * 2.0 ** (failure.count - 1), limits.longest_load_s)
