"""The table and the JSON file."""

from __future__ import annotations

import platform
from collections.abc import Sequence
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
        memory_mb: Largest resident memory seen after a round, MB.
    """

    target: str
    test: str
    cpu_us: Spread
    per_s: Spread
    ratio: Spread | None
    busy: float
    memory_mb: float


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
        memory_mb=max(item.memory_mb for item in of),
    )


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
    table = Table(title=f"{test}: CPU microseconds of the proxy for each request")
    table.add_column("proxy", no_wrap=True)
    columns = ("median", "95 %", "min - max", f"x {_REFERENCE}", "95 %", "requests/s", "of its core", "MB")
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    cost = row.cpu_us
    if not cost.max:
        return (row.target, "0", *[""] * 4, f"{row.per_s.median:.0f}")
    return (
        row.target,
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
        f"{row.memory_mb:.0f}",
    )
