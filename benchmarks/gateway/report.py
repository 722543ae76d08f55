"""The table and the JSON file."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.gateway.measure import Plan, Round
from benchmarks.gateway.targets import Target
from benchmarks.machine import machine
from benchmarks.spread import Spread, ratio, spread

__all__ = ["Report", "Row", "print_report", "report"]

_REFERENCE = "vllm-router"
_NO_PROXY = "direct"
_DISTURBED = 0.2
_PACKAGES = ("tuneplex", "uvicorn", "uvloop", "httptools", "msgspec")


class Row(msgspec.Struct, frozen=True):
    """One proxy under one test.

    Attributes:
        target: The proxy.
        test: The kind of request.
        cpu_us: CPU microseconds for each request.
        per_s: Requests in a second on the proxy's one core.
        ratio: CPU time in relation to vllm-router's; None if that one was not measured.
        busy: Median share of its core that the proxy used.
        load_busy: Median share of its core that load and upstream used.
        memory_mb: Largest resident memory seen after a round, MB.
        lag_us: Medians of the age of paced chunks: of their median, and of what 99 % do not exceed; microseconds.
        first_us: Median of the time to the first piece of a reply, microseconds.
        added_us: How much more that is than without a proxy; None if that was not measured.
    """

    target: str
    test: str
    cpu_us: Spread
    per_s: Spread
    ratio: Spread | None
    busy: float
    load_busy: float
    memory_mb: float
    lag_us: tuple[float, float] | None = None
    first_us: float | None = None
    added_us: float | None = None


class Report(msgspec.Struct, frozen=True):
    """All of one run, as it is written to the file."""

    started: str
    machine: dict[str, str | int | float | None]
    versions: dict[str, str]
    settings: dict[str, object]
    targets: dict[str, dict[str, object]]
    rows: tuple[Row, ...]
    rounds: tuple[Round, ...]
    others_busy: float


def report(plan: Plan, started: datetime, commands: dict[str, list[str]], rounds: Sequence[Round]) -> Report:
    """Sum the rounds up."""
    return Report(
        started=started.astimezone(UTC).isoformat(timespec="seconds"),
        machine=_machine(plan),
        versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        settings={"rounds": plan.rounds, "tests": msgspec.to_builtins(plan.tests)},
        targets={target.name: _target(target, commands) for target in plan.targets},
        rows=tuple(_row(test.kind.name, target.name, rounds) for test in plan.tests for target in plan.targets),
        rounds=tuple(rounds),
        others_busy=median(item.others_busy for item in rounds),
    )


def _machine(plan: Plan) -> dict[str, str | int | float | None]:
    return {
        **machine(),
        "load_core": None if plan.cores is None else plan.cores.load,
        "proxy_core": None if plan.cores is None else plan.cores.proxy,
    }


def _target(target: Target, commands: dict[str, list[str]]) -> dict[str, object]:
    """The command without the directories, which say nothing and belong to one machine."""
    command = [Path(word).name if word.startswith("/") else word for word in commands[target.name]]
    return {"what": target.what, "command": command, "model": [target.names.client, target.names.engine]}


def _row(test: str, target: str, rounds: Sequence[Round]) -> Row:
    of = _rounds_of(test, target, rounds)
    reference = [item.cpu_us for item in _rounds_of(test, _REFERENCE, rounds)]
    costs = [item.cpu_us for item in of]
    return Row(
        target=target,
        test=test,
        cpu_us=spread(costs),
        per_s=spread([item.per_s for item in of]),
        ratio=ratio(costs, reference) if reference else None,
        busy=median(item.busy for item in of),
        load_busy=median(item.load_busy for item in of),
        memory_mb=max(item.memory_mb for item in of),
        lag_us=_lag([item.lag_us for item in of if item.lag_us is not None]),
        first_us=_first(of),
        added_us=_added(of, _rounds_of(test, _NO_PROXY, rounds)),
    )


def _lag(lags: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    return (median(lag[0] for lag in lags), median(lag[1] for lag in lags)) if lags else None


def _first(rounds: Sequence[Round]) -> float | None:
    times = [item.first_us for item in rounds if item.first_us is not None]
    return median(times) if times else None


def _added(rounds: Sequence[Round], direct: Sequence[Round]) -> float | None:
    """By pairs, since both met the same disturbance."""
    pairs = zip(rounds, direct, strict=False)
    times = [item.first_us - other.first_us for item, other in pairs if item.first_us and other.first_us]
    return median(times) if times else None


def _rounds_of(test: str, target: str, rounds: Sequence[Round]) -> list[Round]:
    return [item for item in rounds if item.test == test and item.target == target]


def print_report(result: Report, console: Console) -> None:
    """Print one table for each test."""
    for test in dict.fromkeys(row.test for row in result.rows):
        console.print(_table(test, [row for row in result.rows if row.test == test]))
    if result.others_busy > _DISTURBED:
        console.print(
            f"Others used {result.others_busy:.0%} of a core meanwhile: run it again on a quiet machine.",
            style="yellow",
        )


def _table(test: str, rows: Sequence[Row]) -> Table:
    title, headings, cells = _sort(rows[0])
    table = Table(title=f"{test}: {title}")
    table.add_column("proxy", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.target, *cells(row))
    return table


def _sort(row: Row) -> tuple[str, tuple[str, ...], Callable[[Row], tuple[str, ...]]]:
    """Title, headings and cells of a table with rows like this one."""
    if row.lag_us is not None:
        headings: tuple[str, ...] = (
            "lag p50",
            "lag p99",
            "streams/s",
            "of its core",
            "of load's",
            "CPU",
            f"x {_REFERENCE}",
            "MB",
        )
        return "microseconds by which chunks are late, and CPU microseconds for each stream", headings, _lag_cells
    if row.first_us is not None:
        headings = ("TTFT", "added", "CPU", f"x {_REFERENCE}", "MB")
        return "microseconds to the first piece of a lone stream, and CPU microseconds", headings, _first_cells
    headings = (
        "median",
        "95 %",
        "min - max",
        f"x {_REFERENCE}",
        "95 %",
        "requests/s",
        "of its core",
        "of load's",
        "MB",
    )
    return "CPU microseconds of the proxy for each request", headings, _cost_cells


def _lag_cells(row: Row) -> tuple[str, ...]:
    half, most = row.lag_us or (0.0, 0.0)
    rate = (f"{half:.0f}", f"{most:.0f}", f"{row.per_s.median:.0f}")
    return (*rate, f"{row.busy:.0%}", f"{row.load_busy:.0%}", *_short_cost(row))


def _first_cells(row: Row) -> tuple[str, ...]:
    added = "" if row.added_us is None else f"{row.added_us:.0f}"
    return (f"{row.first_us or 0.0:.0f}", added, *_short_cost(row))


def _short_cost(row: Row) -> tuple[str, str, str]:
    ratio_words = "" if row.ratio is None else f"{row.ratio.median:.2f}"
    return f"{row.cpu_us.median:.0f}", ratio_words, f"{row.memory_mb:.0f}"


def _cost_cells(row: Row) -> tuple[str, ...]:
    cost = row.cpu_us
    if not cost.max:
        return ("0", *[""] * 4, f"{row.per_s.median:.0f}", "", f"{row.load_busy:.0%}", "")
    return (
        f"{cost.median:.1f}",
        f"{cost.low:.1f} - {cost.high:.1f}",
        f"{cost.min:.1f} - {cost.max:.1f}",
        *(
            ("", "")
            if row.ratio is None
            else (f"{row.ratio.median:.2f}", f"{row.ratio.low:.2f} - {row.ratio.high:.2f}")
        ),
        f"{row.per_s.median:.0f}",
        f"{row.busy:.0%}",
        f"{row.load_busy:.0%}",
        f"{row.memory_mb:.0f}",
    )
