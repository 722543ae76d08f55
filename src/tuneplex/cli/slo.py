"""`slo`: how much of what is promised of the models was kept, from the store."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli.offline import settled
from tuneplex.cli.terminal import Cell, Sheet, Terminal
from tuneplex.errors import UserError
from tuneplex.policy import NOTHING, Service, availability, burnt, together
from tuneplex.records import SERVED_BY, FirstTokens, Served, Store
from tuneplex.types import FleetSpec, Objective
from tuneplex.units import format_long

__all__ = ["Goals", "Kept", "Wish", "grouping", "judged", "sheet", "show"]

_HOUR_S, _HOURS_S = 3600.0, 6 * 3600.0
_MISSED = 1
_Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked.

    Attributes:
        window_s: The time that the error budget is for, seconds.
        by: Of `SERVED_BY`.
        target: Percent, in the place of what the fleet file says.
        ttft_s: Seconds, the same.
        check: The exit code tells whether all was kept.
        as_json: For scripts.
    """

    window_s: float
    by: _Group
    target: float | None = None
    ttft_s: float | None = None
    check: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Goals:
    """What is promised of each model."""

    usual: Objective
    own: Mapping[str, Objective] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: FleetSpec, wish: Wish) -> Goals:
        """What the fleet file promises, and what is asked in the place of it."""
        given = {"availability": wish.target, "ttft_p95_s": wish.ttft_s}
        found = {name: value for name, value in given.items() if value is not None}
        own = {name: msgspec.structs.replace(one, **found) for name, one in spec.objectives.items()}
        return cls(msgspec.structs.replace(spec.objective, **found), own)

    def model(self, name: str) -> Objective:
        """What is promised of one model."""
        return self.own.get(name, self.usual)


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much of what is promised was kept, for one group.

    Attributes:
        group: Model and tenant, as far as they were asked for.
        requests: All that count.
        bad: Those of them that should have been served and were not.
        availability: Percent.
        target: Percent; of several models that which their targets make together.
        budget_used: The share of what may be bad in the window that was; 1 is all of it, and it can be more.
        budget_left: The rest of it, 0 at least.
        burn_1h: How many times what is allowed was bad in the last hour; null where nobody has asked.
        burn_6h: The same for six hours.
        ttft_p50_s: Half of the streams had begun in this time.
        ttft_p95_s: 95 % of them.
        ttft_target_s: In which they should have.
        kept: Neither is the budget used up, nor do streams begin too late.
    """

    group: dict[str, str]
    requests: int
    bad: int
    availability: float
    target: float
    budget_used: float
    budget_left: float
    burn_1h: float | None
    burn_6h: float | None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_target_s: float | None = None
    kept: bool = True


def grouping(text: str) -> _Group:
    """What `--by` says.

    Raises:
        UserError: It is something else.
    """
    names = tuple(name.strip() for name in text.split(","))
    if len(set(names)) < len(names) or not set(names) <= set(SERVED_BY):
        raise UserError(f"--by: {text!r} is not known", hint="write model, tenant or model,tenant")
    return names


def show(state: StateDir, wish: Wish) -> int:
    """Print how much of what is promised was kept; 1 if it was not and that is asked.

    Raises:
        UserError: Requests are not kept for so long, or the store cannot be used.
        TuneplexError: The database does not answer.
    """
    spec, terminal = state.read_spec(), Terminal.standard()
    if wish.window_s > spec.records.keep_s:
        kept = format_long(spec.records.keep_s)
        raise UserError(f"--window: requests are kept for {kept} only", hint="`records.keep` in the fleet file says so")
    with settled(state) as store:
        found = _read(store, spec, wish, time.time())
    if wish.as_json:
        terminal.json([msgspec.to_builtins(one) for one in found])
    else:
        terminal.show(sheet(found, wish.by, format_long(wish.window_s)))
    return _MISSED if wish.check and not all(one.kept for one in found) else 0


def _read(store: Store, spec: FleetSpec, wish: Wish, now: float) -> list[Kept]:
    goals = Goals.of(spec, wish)
    by = wish.by if "model" in wish.by else ("model", *wish.by)  # each model has a target of its own
    late_s = {name: _late(one) for name, one in goals.own.items()}

    def served(seconds: float) -> Mapping[_Group, Service]:
        rows = store.served(spec.name, now - seconds, by=by, late_s=late_s, usual_s=_late(goals.usual))
        return _folded(rows, by, wish.by, goals)

    firsts = store.first_tokens(spec.name, now - wish.window_s, by=wish.by)
    return judged(wish.by, [served(seconds) for seconds in (wish.window_s, _HOUR_S, _HOURS_S)], firsts, goals)


def _late(objective: Objective) -> float:
    return math.inf if objective.ttft_p95_s is None else objective.ttft_p95_s


def _folded(rows: Iterable[Served], by: _Group, wanted: _Group, goals: Goals) -> dict[_Group, Service]:
    """What was read, by what is wanted."""
    parts: dict[_Group, list[Service]] = {}
    for row in rows:
        names = dict(zip(by, row.group, strict=True))
        group = tuple(names[name] for name in wanted)
        parts.setdefault(group, []).append(Service.of(row.good, row.bad, goals.model(names["model"]).availability))
    return {group: together(found) for group, found in parts.items()}


def judged(
    by: _Group,
    services: Sequence[Mapping[_Group, Service]],
    firsts: Mapping[_Group, FirstTokens],
    goals: Goals,
) -> list[Kept]:
    """How much was kept, of each group that has asked for anything, in their order.

    Args:
        by: What the groups are by.
        services: Of the window, the last hour and the last six.
        firsts: Times to the first events, by group.
        goals: What is promised.
    """
    window, hour, hours = services
    found = sorted((group, service) for group, service in window.items() if service.total)
    return [
        _judged(
            dict(zip(by, group, strict=True)),
            service,
            (burnt(hour.get(group, NOTHING)), burnt(hours.get(group, NOTHING))),
            firsts.get(group),
            goals,
        )
        for group, service in found
    ]


def _judged(
    names: dict[str, str],
    service: Service,
    burns: tuple[float | None, float | None],
    first: FirstTokens | None,
    goals: Goals,
) -> Kept:
    goal_s = goals.model(names["model"]).ttft_p95_s if "model" in names else goals.usual.ttft_p95_s
    used, late = burnt(service) or 0.0, first is not None and goal_s is not None and first.p95_s > goal_s
    return Kept(
        names,
        service.total,
        service.bad,
        availability(service) or 0.0,
        round(100 * (1 - service.allowed / service.total), 6),
        used,
        max(0.0, 1 - used),
        *burns,
        None if first is None else first.p50_s,
        None if first is None else first.p95_s,
        goal_s,
        kept=used < 1 and not late,
    )


def sheet(found: Sequence[Kept], by: _Group, window: str) -> Sheet:
    """One row for each group."""
    heads = tuple(name.upper() for name in by)
    numbers = ("REQUESTS", "BAD", "AVAILABLE", "TARGET", "BUDGET USED", "BURN 1H", "BURN 6H", "TTFT P50", "TTFT P95")
    return Sheet(
        columns=(*heads, *numbers),
        rows=tuple((*(Cell(one.group[name] or "(unknown)", "bold") for name in by), *_cells(one)) for one in found),
        empty=f"nobody has asked for anything in the last {window}",
        right=frozenset(numbers),
    )


def _cells(one: Kept) -> tuple[Cell, ...]:
    used = "red" if one.budget_used >= 1 else ""
    late = one.ttft_p95_s is not None and one.ttft_target_s is not None and one.ttft_p95_s > one.ttft_target_s
    goal = "" if one.ttft_target_s is None else f" of {_seconds(one.ttft_target_s)}"
    return (
        Cell(str(one.requests)),
        Cell(str(one.bad)),
        Cell(f"{_floored(one.availability)} %"),
        Cell(f"{one.target:g} %"),
        Cell(f"{100 * one.budget_used:.1f} %", used),
        Cell(_times(one.burn_1h)),
        Cell(_times(one.burn_6h)),
        Cell(_seconds(one.ttft_p50_s)),
        Cell(f"{_seconds(one.ttft_p95_s)}{goal}" if one.ttft_p95_s is not None else "", "red" if late else ""),
    )


def _floored(percent: float) -> str:
    """Three digits, and 100 only where nothing was bad."""
    return f"{math.floor(round(percent * 1000, 6)) / 1000:.3f}"


def _times(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1f}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s"
