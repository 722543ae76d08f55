"""What people are told: `Status`, from what was seen. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tuneplex.control.adapters import engine_name, is_complete
from tuneplex.control.decide import Situation, gave_up, restart_at
from tuneplex.control.ledger import Figures
from tuneplex.control.seen import Seen
from tuneplex.control.wanted import match, wanted
from tuneplex.engines.server import EngineMetrics
from tuneplex.types import (
    AdapterStatus,
    AdapterVersion,
    GatewayReport,
    GatewayStatus,
    PoolSpec,
    ReplicaState,
    ReplicaStatus,
    Status,
)

__all__ = ["Surroundings", "fleet_status"]

_SIGNAL_BASE = 128


class Surroundings(msgspec.Struct, frozen=True):
    """What `fleet_status` needs beside the situation.

    Attributes:
        url: Where clients call.
        started: When the fleet was started, Unix time.
        reports: The latest report of each gateway that is connected.
        gateways: The indexes of those that live, or should.
        since: Since when each replica is in its state, Unix times.
        troubles: By pool, why a replica could not be launched.
        ledger: By replica, where its adapters are.
    """

    url: str
    started: float
    reports: tuple[GatewayReport, ...] = ()
    gateways: tuple[int, ...] = (0,)
    since: dict[str, float] = {}
    troubles: dict[str, str] = {}
    ledger: dict[str, Figures] = {}


def fleet_status(situation: Situation, around: Surroundings) -> Status:
    """The fleet as people see it."""
    spec, seen = situation.spec, situation.seen
    latest = {report.gateway: report for report in around.reports}
    gateways = tuple(_gateway(index, latest.get(index)) for index in around.gateways)
    connected = any(gateway.connected for gateway in gateways)
    return Status(
        name=spec.name,
        url=around.url,
        base=spec.base.name,
        ready=connected and bool(spec.pools) and all(_pool_ready(situation, pool) for pool in spec.pools),
        started=around.started,
        gateways=gateways,
        replicas=(
            *(_replica(situation, replica, around) for replica in sorted(seen, key=lambda one: one.name)),
            *(status for pool in spec.pools for status in _not_launched(situation, pool, around.troubles)),
        ),
        adapters=(
            *(_adapter(situation, version) for version in spec.adapters),
            *(_adapter(situation, one.version, one.trial.share if one.trial else 0.0) for one in spec.candidates),
        ),
        aliases=spec.aliases,
    )


def _pool_ready(situation: Situation, pool: PoolSpec) -> bool:
    """Whether one replica of the pool answers, with all adapters it should have and can load."""
    spec = situation.spec
    return pool.replicas == 0 or any(
        replica.launched.pool == pool.name
        and situation.state(replica) is ReplicaState.READY
        and is_complete(spec, replica)
        for replica in situation.seen
    )


def _gateway(index: int, report: GatewayReport | None) -> GatewayStatus:
    if report is None:
        return GatewayStatus(index)
    outstanding = sum(report.outstanding.values())
    return GatewayStatus(index, report.pid, True, outstanding, report.waiting, report.name, report.stage)


def _replica(situation: Situation, replica: Seen, around: Surroundings) -> ReplicaStatus:
    record, figures = replica.launched, replica.metrics or EngineMetrics()
    wanted_names = {engine_name(replica, version): version.id for version in situation.spec.loaded}
    state = situation.state(replica)
    kept = around.ledger.get(replica.name) or Figures(replica.residency)
    return ReplicaStatus(
        name=record.replica,
        pool=record.pool,
        state=state,
        phase=replica.phase if state is ReplicaState.STARTING else "",
        since_s=max(0.0, situation.now - around.since.get(record.replica, record.started)),
        pid=record.pid if replica.alive else None,
        restarts=record.restarts,
        gave_up=gave_up(record, situation.applied_at, situation.limits),
        detail=_detail(situation, replica),
        log=record.log,
        adapters=tuple(sorted(wanted_names[name] for name in replica.listed if name in wanted_names)),
        running=figures.running,
        waiting=figures.waiting,
        kv_use=figures.kv_use,
        residency=kept.residency if replica.alive else None,
        drift=kept.drift,
        notice="; ".join(filter(None, (_notice(situation, replica), _shut(record.replica, around.reports)))),
        tenants=next((pool.tenants for pool in situation.spec.pools if pool.name == record.pool), ()),
        outstanding=sum(report.outstanding.get(record.replica, 0) for report in around.reports),
        drained=replica.drains and replica.drained,
        held="" if replica.hold is None else "restart" if replica.hold.restarts else "drain",
        leave_s=max(0.0, replica.leave_at - situation.now) if replica.alive and replica.leave_at is not None else None,
    )


def _detail(situation: Situation, replica: Seen) -> str:
    record = replica.launched
    if record.ended is None:
        starting = not replica.answered and record.launcher == "local"  # then its silence is no news
        return "" if starting or replica.silent_since is None else replica.words
    how = _ending(record.exit_code)
    last = replica.words.strip()
    if gave_up(record, situation.applied_at, situation.limits):
        return f"{how}, too often in a row; its last lines:\n{last}"
    wait = max(0.0, restart_at(record, situation.applied_at, situation.limits) - situation.now)
    why = f" ({last.splitlines()[-1]})" if last else ""
    return f"{how}{why}; starts again in {wait:.0f} s"


def _notice(situation: Situation, replica: Seen) -> str:
    """How an engine looks after its adapters is of no interest where there are none."""
    serves = any(version.pool == replica.launched.pool for version in situation.spec.adapters)
    return replica.notice if serves and replica.alive else ""


def _shut(name: str, reports: Sequence[GatewayReport]) -> str:
    """What gateways think of a replica that control may find healthy."""
    found = {report.shut.get(name) for report in reports}
    if found & {"open", "half-open"}:
        return "requests to it keep failing, so it gets none for a moment"
    return "it asks for no requests for a moment" if "held" in found else ""


def _ending(code: int | None) -> str:
    if code is None:
        return "ended"
    if code < 0:
        return f"its keeper was ended by signal {-code}"
    if code > _SIGNAL_BASE:
        return f"ended by signal {code - _SIGNAL_BASE}"
    return f"ended with code {code}"


def _not_launched(situation: Situation, pool: PoolSpec, troubles: Mapping[str, str]) -> list[ReplicaStatus]:
    """Replicas that are wanted, and that nothing stands for yet."""
    mine = [replica for replica in situation.seen if replica.launched.pool == pool.name]
    missing = match(wanted(pool, situation.spec.base), mine).missing
    taken = {replica.name for replica in mine}
    names = [name for name in (f"{pool.name}-{i}" for i in range(len(taken) + len(missing))) if name not in taken]
    detail = troubles.get(pool.name, "")
    return [
        ReplicaStatus(name, pool.name, ReplicaState.REQUESTED, detail=detail, tenants=pool.tenants)
        for name, _wish in zip(names, missing, strict=False)
    ]


def _adapter(situation: Situation, version: AdapterVersion, share: float | None = None) -> AdapterStatus:
    mine = [replica for replica in situation.seen if replica.launched.pool == version.pool and replica.alive]
    have = tuple(replica.name for replica in mine if engine_name(replica, version) in replica.listed)
    problems = (f"{replica.name}: {_problem(replica, version)}" for replica in mine if _problem(replica, version))
    return AdapterStatus(version, have, "; ".join(problems), share)


def _problem(replica: Seen, version: AdapterVersion) -> str:
    name = engine_name(replica, version)
    if name in replica.listed:
        return ""
    failure = replica.failures.get(name)
    if failure is not None:
        return f"{failure.words} (tried {failure.count} times)" if failure.count > 1 else failure.words
    if not replica.loads_adapters and replica.answered:
        return f"the server does not list a model named {version.name}, and cannot load one"
    return ""
