"""The command line."""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.table import Table

from benchmarks.errors import BenchmarkError
from benchmarks.faults.fault import SETTINGS, Fault
from benchmarks.faults.faults import FAULTS
from benchmarks.faults.gates import KINDS, DoesNotStart, Kind
from benchmarks.faults.page import PAGE, write_page
from benchmarks.faults.play import play
from benchmarks.faults.seen import Seen
from benchmarks.faults.stage import staged
from benchmarks.faults.verdict import problems, words
from benchmarks.machine import machine
from benchmarks.options import among, console, interruptible

__all__ = ["main"]

_INTERRUPTED = 130


class Row(msgspec.Struct, frozen=True):
    """One fault at one gateway.

    Attributes:
        fault: Its name.
        gateway: Its name.
        words: What the client saw, as in the table.
        wrong: What is not as it must be; for tuneplex only, which alone has promised anything.
        seen: All of it.
    """

    fault: str
    gateway: str
    words: str
    wrong: tuple[str, ...]
    seen: Seen


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print, write; 1 if tuneplex did something else than it must, or nothing could be played."""
    options = _parser().parse_args(arguments)
    try:
        rows = _run(options)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _INTERRUPTED
    return int(any(row.wrong for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What clients of tuneplex and of its peers see when engines fail.")
    faults, gateways = [fault.name for fault in FAULTS], [kind.name for kind in KINDS]
    parser.add_argument("--only", type=among(faults), metavar="NAME,...", help=f"of {', '.join(faults)}")
    parser.add_argument("--gateways", type=among(gateways), metavar="NAME,...", help=f"of {', '.join(gateways)}")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds that clients wait for more (default 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    parser.add_argument("--page", action="store_true", help="write what was seen into docs/faults.md")
    return parser


def _run(options: argparse.Namespace) -> list[Row]:
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    kinds = [kind for kind in KINDS if not options.gateways or kind.name in options.gateways]
    for kind in kinds:
        kind.install()
    started = datetime.now(tz=UTC)
    terminal = console()
    with terminal.status("starting") as status:
        tell = status.update if terminal.is_terminal else partial(print, file=sys.stderr)
        rows = asyncio.run(interruptible(_play(faults, kinds, options.patience, tell)))
    terminal.print(_table(kinds, rows))
    for row in rows:
        if row.wrong:
            terminal.print(f"{row.fault}, {row.gateway}: {'; '.join(row.wrong)}", style="yellow", markup=False)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(_report(started, rows)), indent=1))
    if options.page:
        write_page(PAGE, FAULTS, [kind.name for kind in KINDS], {(row.fault, row.gateway): row.words for row in rows})
    return rows


async def _play(
    faults: Sequence[Fault], kinds: Sequence[Kind], patience_s: float, tell: Callable[[str], None]
) -> list[Row]:
    """All faults, one after the other; the gateways side by side, since most of it is waiting."""
    rows: list[Row] = []
    for number, fault in enumerate(faults, 1):
        tell(f"{number} of {len(faults)}: {fault.name}")
        async with asyncio.TaskGroup() as group:
            playing = [group.create_task(_one(fault, kind, patience_s)) for kind in kinds]
        rows += [_row(fault, kind, played.result()) for kind, played in zip(kinds, playing, strict=True)]
    return rows


async def _one(fault: Fault, kind: Kind, patience_s: float) -> Seen:
    try:
        async with staged(fault) as stage, kind.started(stage) as gate:
            return await play(fault, stage, gate, patience_s)
    except DoesNotStart:
        return Seen(began=False)


def _row(fault: Fault, kind: Kind, seen: Seen) -> Row:
    wrong = tuple(problems(fault, seen)) if kind.requirements is None else ()
    return Row(fault.name, kind.name, words(fault, seen), wrong, seen)


def _table(kinds: Sequence[Kind], rows: Sequence[Row]) -> Table:
    table = Table("fault", *(kind.name for kind in kinds), title="what the client sees", show_lines=True)
    for name, cells in _by_fault(rows):
        table.add_row(name, *cells)
    return table


def _by_fault(rows: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    for name in dict.fromkeys(row.fault for row in rows):
        yield name, [row.words for row in rows if row.fault == name]


def _report(started: datetime, rows: Sequence[Row]) -> dict[str, object]:
    return {
        "started": started.isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version(), "tuneplex": version("tuneplex")},
        "settings": SETTINGS,
        "rows": rows,
    }
