"""What happened between two looks at a fleet, in lines for a person: pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tuneplex.cli.render import STAGES, gateway_name, note
from tuneplex.types import AdapterStatus, GatewayStatus, ReplicaState, ReplicaStatus, Status
from tuneplex.units import format_duration

__all__ = ["news", "starting"]

_NUMBER = re.compile(r"\d+")
_TRIED = re.compile(r" \(tried \d+ times\)")
_GONE = ReplicaStatus(name="", pool="", state=ReplicaState.REQUESTED)


def news(before: Status | None, after: Status) -> tuple[str, ...]:
    """What changed from one look to the next; the first look tells what there is."""
    old_replicas = {replica.name: replica for replica in before.replicas} if before else {}
    old_details = {adapter.version.id: adapter.detail for adapter in before.adapters} if before else {}
    old_gateways = {gateway.index: gateway for gateway in before.gateways} if before else {}
    return (
        *(line for now in after.replicas for line in _replica(old_replicas.get(now.name, _GONE), now, after)),
        *(f"{name}: removed" for name in old_replicas if all(name != now.name for now in after.replicas)),
        *(line for now in after.adapters for line in _adapter(old_details.get(now.version.id, ""), now)),
        *(line for now in after.gateways for line in _gateway(old_gateways.get(now.index), now)),
    )


def _replica(before: ReplicaStatus, now: ReplicaStatus, fleet: Status) -> Iterator[str]:
    if _gist(before) != _gist(now):
        yield f"{now.name}: {_state(now)}"
    if len(before.adapters) != len(now.adapters):
        yield f"{now.name}: adapters {len(now.adapters)}/{wanted(now, fleet)}"


def _gist(replica: ReplicaStatus) -> tuple[ReplicaState, bool, str]:
    """What makes a difference; a count-down of seconds does not."""
    return replica.state, replica.gave_up, _NUMBER.sub("", note(replica))


def _state(replica: ReplicaStatus) -> str:
    word = "gave up" if replica.gave_up else replica.state.value
    why = note(replica)
    restarts = f" (restart {replica.restarts})" if replica.restarts and replica.state is ReplicaState.STARTING else ""
    return f"{word}{restarts}: {why}" if why else f"{word}{restarts}"


def _adapter(before: str, now: AdapterStatus) -> Iterator[str]:
    """Why an adapter is not loaded; how often that was tried makes no difference."""
    if now.detail and _TRIED.sub("", now.detail) != _TRIED.sub("", before):
        yield f"{now.version.name}: {now.detail}"


def _gateway(before: GatewayStatus | None, now: GatewayStatus) -> Iterator[str]:
    name, was_there = gateway_name(now), before is not None and before.connected
    if before is not None and before.stage is not now.stage:
        yield f"{name}: {STAGES[now.stage]}"
    elif now.connected and not was_there:
        yield f"{name}: connected"
    elif was_there and not now.connected:
        yield f"{name}: lost"


def wanted(replica: ReplicaStatus, fleet: Status) -> int:
    """How many adapters the replica should have."""
    return sum(adapter.version.pool == replica.pool for adapter in fleet.adapters)


def starting(fleet: Status | None, elapsed_s: float) -> RenderableType:
    """The start as a person watches it: one moving line for each replica that is not ready yet."""
    head = Text.assemble(("starting ", "bold"), (fleet.name if fleet else "the fleet", "bold"))
    head.append(f"  {format_duration(elapsed_s)}", style="dim")
    if fleet is None:
        return head
    lines = Table.grid(padding=(0, 2))
    for wraps in (False, False, True, False, False):
        lines.add_column(no_wrap=not wraps)
    for replica in fleet.replicas:
        lines.add_row(*_line(replica, fleet))
    return Group(head, lines)


def _line(replica: ReplicaStatus, fleet: Status) -> tuple[RenderableType, ...]:
    loaded = Text(f"adapters {len(replica.adapters)}/{wanted(replica, fleet)}", style="dim")
    since = Text(format_duration(replica.since_s), style="dim")
    if replica.state is ReplicaState.READY:
        return Text(" ✓", style="green"), Text(replica.name), Text("ready"), since, loaded
    if replica.state is ReplicaState.DEAD:
        return Text(" ✗", style="red"), Text(replica.name), Text(_state(replica), style="red"), since, loaded
    mark = Spinner("dots", style="yellow")
    return mark, Text(replica.name), Text(replica.phase or replica.state.value), since, loaded
