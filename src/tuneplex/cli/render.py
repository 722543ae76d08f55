"""What the commands show: pure functions from the vocabulary's values to sheets and lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tuneplex.cli.terminal import Cell, Sheet
from tuneplex.types import (
    AdapterStatus,
    Change,
    FleetSpec,
    GatewayStatus,
    ReplicaState,
    ReplicaStatus,
    Resident,
    Stage,
    Status,
    Tier,
)
from tuneplex.units import format_duration

__all__ = [
    "STAGES",
    "adapters",
    "changes",
    "config",
    "gateway_name",
    "headline",
    "replaced",
    "replicas",
    "reserved",
    "waiting",
    "welcome",
]

_STATE_STYLES = {
    ReplicaState.REQUESTED: "yellow",
    ReplicaState.STARTING: "yellow",
    ReplicaState.READY: "green",
    ReplicaState.ASLEEP: "blue",
    ReplicaState.DRAINING: "magenta",
    ReplicaState.DEAD: "red",
}
_KIND_STYLES = {"add": "green", "remove": "red", "change": "yellow"}
STAGES = {
    Stage.JOINING: "starts, to take another one's place",
    Stage.SERVING: "serves",
    Stage.DRAINING: "was replaced, and finishes what it has",
}
_HOW = {"live": "nothing restarts", "rolling": "replicas restart one by one", "restart": "needs down and up"}


def headline(status: Status, now: float) -> str:
    """The fleet in one line: its name, whether it is ready, where it listens, how long it has been up."""
    parts = [f"{status.name}: {'ready' if status.ready else 'not ready'}", status.url, f"base {status.base}"]
    gateways = sum(gateway.connected for gateway in status.gateways)
    if gateways < len(status.gateways):
        parts.append(f"gateways {gateways}/{len(status.gateways)}")
    return "  ".join((*parts, f"up {format_duration(max(0.0, now - status.started))}"))


def waiting(status: Status) -> tuple[str, ...]:
    """A line that tells how many requests wait in which gateway, while any do."""
    found = [f"{gateway_name(gateway)} {gateway.waiting}" for gateway in status.gateways if gateway.waiting]
    return (f"requests wait: {', '.join(found)}",) if found else ()


def replaced(status: Status) -> tuple[str, ...]:
    """A line for each gateway process that is on its way in or out."""
    return tuple(
        f"{gateway_name(gateway)}: process {gateway.pid} {STAGES[gateway.stage]} ({gateway.outstanding} under way)"
        for gateway in status.gateways
        if gateway.stage is not Stage.SERVING
    )


def gateway_name(gateway: GatewayStatus) -> str:
    """As in the name of its log."""
    return gateway.name or f"gateway-{gateway.index}"


def replicas(status: Status) -> Sheet:
    """One row for each replica."""
    wanted = _adapters_by_pool(status.adapters)
    return Sheet(
        columns=("REPLICA", "STATE", "SINCE", "ADAPTERS", "SLOTS", "RUNNING", "WAITING", "KV", "RESTARTS", "NOTE"),
        rows=tuple(_replica_row(replica, wanted.get(replica.pool, 0)) for replica in status.replicas),
        empty="no replicas",
        right=frozenset({"SINCE", "ADAPTERS", "SLOTS", "RUNNING", "WAITING", "KV", "RESTARTS"}),
        flexible=frozenset({"NOTE"}),
    )


def reserved(status: Status) -> tuple[str, ...]:
    """A line for each pool that is not for everybody; the table of replicas has no room left on a narrow terminal."""
    found = {replica.pool: replica.tenants for replica in status.replicas if replica.tenants}
    return tuple(f"pool {pool}: only for {', '.join(tenants)}" for pool, tenants in found.items())


def _replica_row(replica: ReplicaStatus, wanted: int) -> tuple[Cell, ...]:
    state = "gave up" if replica.gave_up else replica.state.value
    loaded = f"{len(replica.adapters)}/{wanted}"
    return (
        Cell(replica.name, "bold"),
        Cell(state, _STATE_STYLES[replica.state]),
        Cell(format_duration(replica.since_s)),
        Cell(loaded, "" if len(replica.adapters) >= wanted else "yellow"),
        Cell(_slots(replica)),
        Cell(str(replica.running)),
        Cell(str(replica.waiting)),
        Cell(f"{replica.kv_use:.0%}"),
        Cell(str(replica.restarts), "yellow" if replica.restarts else ""),
        Cell(note(replica), "red" if replica.state is ReplicaState.DEAD else "dim"),
    )


def _slots(replica: ReplicaStatus) -> str:
    """How many of the engine's slots hold an adapter."""
    known = replica.residency
    if known is None or known.slots is None:
        return ""
    return f"{known.slots_used}/{known.slots}{'?' if known.guess else ''}"


def note(replica: ReplicaStatus) -> str:
    """What a replica that is not ready is doing, or why it is not; and what a person should know of one that is."""
    if replica.state is ReplicaState.READY:
        return "; ".join(filter(None, (replica.detail, replica.notice, _drifted(replica))))
    if replica.state is ReplicaState.DRAINING:
        return _draining(replica)
    words = replica.detail or replica.phase
    return f"{words}; drained by hand" if replica.held == "drain" else words


def _drifted(replica: ReplicaStatus) -> str:
    """That adapters were not as control had left them; the log says which."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(replica.drift.items()))
    return f"adapters have drifted: {kinds}" if kinds else ""


def _draining(replica: ReplicaStatus) -> str:
    """How far it is, and what comes then."""
    end = {"drain": "takes none until it is resumed", "restart": "starts again then"}.get(
        replica.held, "goes away then"
    )
    if replica.drained:
        return f"no requests left; {end}"
    left = f"{replica.outstanding} request{'' if replica.outstanding == 1 else 's'} left"
    if replica.leave_s is None:
        return f"{left}; {end}"
    moved = f"moved in {format_duration(replica.leave_s)}" if replica.leave_s else "being moved"
    return f"{left}, {moved}; {end}"


def _adapters_by_pool(found: Iterable[AdapterStatus]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for adapter in found:
        counts[adapter.version.pool] = counts.get(adapter.version.pool, 0) + 1
    return counts


def adapters(status: Status) -> Sheet:
    """One row for each adapter."""
    return Sheet(
        columns=("ADAPTER", "VERSION", "RANK", "POOL", "LOADED", "WHERE", "ALIASES", "SOURCE", "NOTE"),
        rows=tuple(_adapter_row(adapter, status) for adapter in status.adapters),
        empty="no adapters",
        right=frozenset({"RANK"}),
        flexible=frozenset({"WHERE", "ALIASES", "SOURCE", "NOTE"}),
    )


def _adapter_row(adapter: AdapterStatus, status: Status) -> tuple[Cell, ...]:
    version = adapter.version
    in_pool = sum(replica.pool == version.pool for replica in status.replicas)
    aliases = sorted(alias for alias, name in status.aliases.items() if name == version.name)
    return (
        Cell(version.name, "bold"),
        Cell(version.digest[:12], "dim"),
        Cell(str(version.rank)),
        Cell(version.pool),
        Cell(f"{len(adapter.replicas)}/{in_pool}", "green" if adapter.replicas else "yellow"),
        Cell("; ".join(_places(version.id, status.replicas))),
        Cell(", ".join(aliases)),
        Cell(version.source, "dim"),
        Cell(adapter.detail, "red") if adapter.detail else Cell(_tried(adapter), "yellow"),
    )


def _tried(adapter: AdapterStatus) -> str:
    """What becomes of a version that is being rolled out; empty for one that is in use."""
    if adapter.share is None:
        return ""
    return f"tried with {100 * adapter.share:g} % of the requests" if adapter.share else "is being rolled out"


def _places(name: str, among: Iterable[ReplicaStatus]) -> Iterator[str]:
    """Where each replica has an adapter, as far as its engine tells."""
    for replica in among:
        for one in replica.residency.adapters if replica.residency else ():
            if one.name == name and one.tier is not None:
                guess = " (guess)" if replica.residency and replica.residency.guess else ""
                yield f"{replica.name} {_place(one)}{guess}"


def _place(resident: Resident) -> str:
    slot = "in a slot" if resident.slot is None else f"slot {resident.slot}"
    where = slot if resident.tier is Tier.DEVICE else str(resident.tier)
    return f"{where}, pinned" if resident.pinned else where


def changes(found: Sequence[Change]) -> Sheet:
    """One row for each difference between two fleets."""
    return Sheet(
        columns=("CHANGE", "WHAT", "DETAIL", "HOW"),
        rows=tuple(
            (
                Cell(change.kind, _KIND_STYLES.get(change.kind, "")),
                Cell(change.what, "bold"),
                Cell(change.detail),
                Cell(_HOW.get(change.how, change.how), "red" if change.how == "restart" else "dim"),
            )
            for change in found
        ),
        empty="nothing to change: the fleet runs as the file says",
        flexible=frozenset({"DETAIL", "HOW"}),
    )


def config(entries: Iterable[tuple[str, str, str]]) -> Sheet:
    """One row for each effective setting, with where its value came from."""
    return Sheet(
        columns=("KEY", "VALUE", "FROM"),
        rows=tuple(
            (
                Cell(key, "bold"),
                Cell(value),
                Cell(origin, "dim" if origin == "default" else "cyan"),
            )
            for key, value, origin in entries
        ),
        empty="no settings",
        flexible=frozenset({"VALUE", "FROM"}),
    )


def welcome(status: Status, spec: FleetSpec, elapsed_s: float, stop: str, *, keys: bool = False) -> Sheet:
    """What somebody needs who has just started a fleet; `keys` tells whether tenants have ever been given keys."""
    named = (status.base, *(adapter.version.name for adapter in status.adapters), *sorted(status.aliases))
    models = ", ".join(dict.fromkeys(named))
    rows = (
        ("base URL", status.url),
        ("models", models),
        ("key", _key(spec, keys=keys)),
        ("ask", f'tuneplex ask {status.base} "How are you?"'),
        ("stop", stop),
        *(("not loaded", f"{adapter.version.name}: {adapter.detail}") for adapter in status.adapters if adapter.detail),
    )
    return Sheet(
        columns=("READY", f"after {format_duration(elapsed_s)}"),
        rows=tuple((Cell(name, "bold"), Cell(text)) for name, text in rows),
        flexible=frozenset({f"after {format_duration(elapsed_s)}"}),
    )


def _key(spec: FleetSpec, *, keys: bool) -> str:
    if spec.gateway.key_sha256:
        return "the one of the fleet file, or a tenant's" if keys else "the one of the fleet file"
    if keys:
        return "a tenant's; see `tuneplex keys list`"
    if spec.gateway.require_key:
        return "needed, and there is none: `tuneplex keys create --tenant default` makes one"
    return "none is asked for"
