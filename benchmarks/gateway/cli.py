"""The command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uvloop

from benchmarks.cpu import cores, on_core
from benchmarks.errors import BenchmarkError
from benchmarks.gateway.load import Kind
from benchmarks.gateway.measure import Plan, Round, Test, measure
from benchmarks.gateway.report import print_report, report
from benchmarks.gateway.targets import TARGETS
from benchmarks.options import among, console, interruptible

__all__ = ["main"]

_TESTS = ("stream", "unary", "lone", "paced")
_DEFAULT = ("stream", "unary")
_STREAM_S = 2.5
_UNARY_S = 1.5
_LONE_S = 1.5
_PACED_S = 5.0
_LONE = 400
_QUICK = 5
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 0 if every reply was right, 1 if not."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="CPU time per request of the tuneplex gateway and of its peers.")
    names = [target.name for target in TARGETS]
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default 9; 7 or more for a claim)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests, 3 rounds: a first look")
    parser.add_argument("--only", type=among(names), metavar="NAME,...", help=f"of {', '.join(names)}")
    tests = f"of {', '.join(_TESTS)} (default {', '.join(_DEFAULT)})"
    parser.add_argument("--tests", type=among(_TESTS), default=_DEFAULT, metavar="NAME,...", help=tests)
    parser.add_argument("--streams", type=int, default=1500, help="streams in each round (default 1500)")
    parser.add_argument("--requests", type=int, default=15000, help="unary requests in each round (default 15000)")
    parser.add_argument("--concurrency", type=int, default=32, help="clients side by side (default 32)")
    parser.add_argument("--paced", type=int, default=512, help="streams side by side in the test paced (default 512)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    share = _QUICK if options.quick else 1
    clients = options.concurrency
    tests = {
        "stream": Test(
            Kind("stream", stream=True, connections=clients), clients * 4, options.streams // share, _STREAM_S
        ),
        "unary": Test(
            Kind("unary", stream=False, connections=clients), clients * 16, options.requests // share, _UNARY_S
        ),
        "lone": Test(Kind("lone", stream=True, connections=1, timed=True), _LONE // 10, _LONE // share, _LONE_S),
        "paced": Test(Kind("paced", stream=True, connections=options.paced, paced=True), 0, 0, _PACED_S / share),
    }
    return Plan(
        targets=tuple(t for t in TARGETS if (t.name in options.only if options.only else t.default)),
        tests=tuple(tests[name] for name in options.tests),
        rounds=min(options.rounds, 3) if options.quick else options.rounds,
        cores=cores(),
    )


def _load_cores(plan: Plan) -> tuple[int, ...]:
    return () if plan.cores is None else (plan.cores.load,)


def _run(options: argparse.Namespace) -> None:
    terminal = console()
    plan = _plan(options)
    for target in plan.targets:
        target.install()
    started = datetime.now(tz=UTC)
    rounds: list[Round] = []
    with terminal.status("starting the proxies") as status, on_core(*_load_cores(plan)):

        def done(item: Round) -> None:
            rounds.append(item)
            status.update(f"round {item.round} of {plan.rounds}: {item.target}, {item.test} {item.cpu_us:.1f} µs")

        commands = uvloop.run(interruptible(measure(plan, done)))
    result = report(plan, started, commands, rounds)
    print_report(result, terminal)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
