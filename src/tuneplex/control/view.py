"""What the gateways are told, from what was seen: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import count

import msgspec

from tuneplex.control.adapters import Use, engine_name, in_use, uses
from tuneplex.control.decide import Situation, gave_up, restart_at
from tuneplex.control.seen import Seen
from tuneplex.control.wanted import match, wanted
from tuneplex.identity import Limits as Allowance
from tuneplex.types import FleetSpec, FleetView, Model, PoolSpec, Replica, ReplicaState

__all__ = ["Outlook", "fleet_view", "unmentioned"]

_NO_TENANT = frozenset({""})  # no tenant is called so
_NO_LIMITS = Allowance()


class Outlook(msgspec.Struct, frozen=True):
    """What control remembers beside the situation.

    Attributes:
        created: When the fleet was started, Unix time.
        tokenizer: As in `FleetView`.
        starts: By pool, how long its last start took, seconds.
        troubles: Pools of which a replica could not be launched.
        ahead: How far the gateways' clock is ahead of control's, seconds.
        gateways: How many live; while one is replaced, one more than there should be.
    """

    created: int = 0
    tokenizer: str = ""
    starts: Mapping[str, float] = {}
    troubles: Collection[str] = ()
    ahead: float = 0.0
    gateways: int = 0

    def told(self, time: float | None) -> float | None:
        """A time of control's, as gateways read it off their clock."""
        return None if time is None else time + self.ahead


def fleet_view(situation: Situation, outlook: Outlook, *, generation: int) -> FleetView:
    """The fleet as gateways should see it: every model of the fleet, and what each replica can really answer now.

    Replicas that are expected but do not live yet, or not again, are in it, too: without an endpoint.
    """
    spec = situation.spec
    used = in_use(spec, situation.seen)
    created = outlook.created
    base = _model(spec, Model(spec.base.name, spec.base.name, created=created))
    adapters = (_model(spec, Model(name, use.version, parent=base.name, created=created)) for name, use in used.items())
    replicas = (
        *(_replica(situation, outlook, replica, used) for replica in situation.seen if replica.alive),
        *(coming for pool in spec.pools for coming in _coming(situation, outlook, pool)),
    )
    answering = {version for replica in replicas for version in replica.serves}
    return FleetView(
        generation=generation,
        models={model.name: _tried(spec, model, answering) for model in (base, *adapters)},
        aliases=spec.aliases,
        replicas=replicas,
        settings=spec.gateway,
        gateways=max(spec.listen.gateways, outlook.gateways),
        tokenizer=outlook.tokenizer,
        versions={version.id: version.name for version in spec.loaded if version.id in answering},
    )


def _tried(spec: FleetSpec, model: Model, answering: Collection[str]) -> Model:
    """With the trial of its new version, as long as anybody answers with that."""
    trials = (one.trial for one in spec.candidates if one.trial is not None and one.version.name == model.name)
    trial = next((trial for trial in trials if trial.version in answering), None)
    return model if trial is None else msgspec.structs.replace(model, trial=trial)


def _model(spec: FleetSpec, model: Model) -> Model:
    """With its limits and its price."""
    limits = spec.limits.get(model.name, _NO_LIMITS)
    return msgspec.structs.replace(model, limits=limits, price=spec.prices.get(model.name))


def unmentioned(view: FleetView, replica: Seen) -> frozenset[str]:
    """The adapters that a replica has and that a view does not mention."""
    adapters = frozenset(model.id for model in replica.models if model.parent is not None)
    mentioned = (known.serves.values() for known in view.replicas if known.name == replica.name)
    return adapters.difference(*mentioned)


def _replica(situation: Situation, outlook: Outlook, replica: Seen, used: Mapping[str, Use]) -> Replica:
    spec, record = situation.spec, replica.launched
    pool = next((known for known in spec.pools if known.name == record.pool), None)
    serves, state = _serves(spec, replica, used), situation.state(replica)
    took = outlook.starts.get(record.pool) if state is ReplicaState.STARTING else None
    ready_at = record.started + took if took is not None else None
    return Replica(
        name=record.replica,
        pool=record.pool,
        engine=record.engine,
        endpoint=record.endpoint,
        secret=record.secret,
        state=state,
        serves=serves,
        routes=replica.routes,
        tenants=_tenants(spec, record.pool),
        concurrent=pool.concurrent if pool is not None else None,
        slots=_slots(pool, replica),
        pinned=_pinned(replica, serves),
        context=replica.context(serves.values()),
        awaited=_awaited(situation, pool, replica, serves) if pool is not None else frozenset(),
        ready_at=outlook.told(ready_at),
        leave_at=outlook.told(replica.leave_at),
        started=record.started,
    )


def _slots(pool: PoolSpec | None, replica: Seen) -> int | None:
    """As the engine tells; until it does, as we start it."""
    told = replica.residency.slots if replica.residency is not None else None
    ours = pool is not None and pool.launcher == "local" and pool.engine == "vllm"
    return told or (pool.max_loras if pool is not None and ours else 0) or None


def _pinned(replica: Seen, serves: Mapping[str, str]) -> frozenset[str]:
    """As the engine tells. What gateways should not use any more keeps no slot from others for long."""
    told = replica.residency.adapters if replica.residency is not None else ()
    names = {one.name for one in told if one.pinned}
    return frozenset(version for version, name in serves.items() if name in names)


def _awaited(situation: Situation, pool: PoolSpec, replica: Seen, serves: Collection[str]) -> frozenset[str]:
    """What a living replica does not answer now and is going to, as far as anybody can tell."""
    hold = replica.hold
    if hold is not None:  # whatever it serves, it takes no requests for it before it has started again
        return _when_started(situation, pool, replica) if hold.restarts else frozenset()
    if situation.state(replica) is ReplicaState.STARTING:
        return _when_started(situation, pool, replica)
    return _loaded_soon(situation, pool, replica).difference(serves)


def _when_started(situation: Situation, pool: PoolSpec, replica: Seen) -> frozenset[str]:
    away = replica.is_unreachable(situation.now, situation.limits) or not _is_wanted(situation, pool, replica)
    return frozenset() if away else _versions(situation.spec, pool)


def _loaded_soon(situation: Situation, pool: PoolSpec, replica: Seen) -> frozenset[str]:
    limits = situation.limits
    if situation.state(replica) is not ReplicaState.READY or not replica.loads_adapters:
        return frozenset()
    adapters = (version for version in situation.spec.loaded if version.pool == pool.name)
    failed = {name for name, failure in replica.failures.items() if failure.count >= limits.hopeless_loads}
    return frozenset(version.id for version in adapters if engine_name(replica, version) not in failed)


def _is_wanted(situation: Situation, pool: PoolSpec, replica: Seen) -> bool:
    mine = [other for other in situation.seen if other.launched.pool == pool.name]
    return any(kept is replica for _wish, kept in match(wanted(pool, situation.spec.base), mine).kept)


def _coming(situation: Situation, outlook: Outlook, pool: PoolSpec) -> Iterator[Replica]:
    """The replicas of a pool that will be started: for the first time, or again."""
    mine = [replica for replica in situation.seen if replica.launched.pool == pool.name]
    found = match(wanted(pool, situation.spec.base), mine)
    took = outlook.starts.get(pool.name)
    for _wish, replica in found.kept:
        begins = _begins(situation, replica)
        if begins is not None:
            ready_at = outlook.told(begins + took if took is not None else None)
            yield _expected(situation.spec, pool, replica.name, ReplicaState.STARTING, ready_at)
    if pool.name not in outlook.troubles:
        taken = {replica.name for replica in mine}
        names = (name for name in (f"{pool.name}-{index}" for index in count()) if name not in taken)
        for _wish, name in zip(found.missing, names, strict=False):
            yield _expected(situation.spec, pool, name, ReplicaState.REQUESTED, None)


def _begins(situation: Situation, replica: Seen) -> float | None:
    """When one that has ended starts again, and takes requests then; None for any other one."""
    record, hold = replica.launched, replica.hold
    if record.ended is None:
        return None
    if hold is not None:
        return record.ended if hold.restarts else None
    hopeless = gave_up(record, situation.applied_at, situation.limits)
    return None if hopeless else restart_at(record, situation.applied_at, situation.limits)


def _expected(spec: FleetSpec, pool: PoolSpec, name: str, state: ReplicaState, ready_at: float | None) -> Replica:
    return Replica(
        name=name,
        pool=pool.name,
        engine=pool.engine,
        endpoint="",
        state=state,
        tenants=frozenset(pool.tenants),
        awaited=_versions(spec, pool),
        ready_at=ready_at,
    )


def _versions(spec: FleetSpec, pool: PoolSpec) -> frozenset[str]:
    """All that a pool's replicas should serve."""
    return frozenset((spec.base.name, *(version.id for version in spec.loaded if version.pool == pool.name)))


def _tenants(spec: FleetSpec, pool: str) -> frozenset[str]:
    """Who a pool is reserved for. A replica whose pool has just gone is for nobody: it may have been reserved."""
    return next((frozenset(known.tenants) for known in spec.pools if known.name == pool), _NO_TENANT)


def _serves(spec: FleetSpec, replica: Seen, used: Mapping[str, Use]) -> dict[str, str]:
    base = replica.base_name(spec.base.name)
    serves = {spec.base.name: base} if base is not None else {}
    for version in spec.adapters:
        use = used[version.name]
        name = uses(use, replica, version)
        if name is not None:
            serves[use.version] = name
    tried = (candidate.version for candidate in spec.candidates if candidate.version.pool == replica.launched.pool)
    return serves | {version.id: version.id for version in tried if version.id in replica.listed}
