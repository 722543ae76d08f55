"""The command line: plays every case many times, in as many processes as there are cores, and prints tables."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
from rich.progress import track

from benchmarks.options import console
from benchmarks.rollout.cases import ALLOWED, HARM, JUST_WORSE, NOT_WORSE, Counts, count
from benchmarks.rollout.traffic import Case
from tuneplex.policy.rollout import Terms

__all__ = ["main"]

_INTERRUPTED = 130
_PARTS = {
    "Versions that are not worse, of which at most {alpha} may be rolled back": NOT_WORSE,
    "Versions that are worse, only just, of which at most {alpha} may be promoted": JUST_WORSE,
    "Harm: how many requests of the new version it takes to roll it back": HARM,
    "No harm: how many requests of the new version it takes to promote it": ALLOWED,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print, write; 0 when done."""
    options = _parser().parse_args(arguments)
    try:
        found = _play([case for cases in _PARTS.values() for case in cases], options.runs)
    except KeyboardInterrupt:
        return _INTERRUPTED
    print("\n".join(_tables(found)))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How often a rollout is decided wrongly, and how soon rightly.")
    parser.add_argument("--runs", type=_positive, default=1000, help="of each case (default 1000: an hour)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _play(cases: Sequence[Case], runs: int) -> list[Counts]:
    """Each case with the same seeds, whichever process plays it."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = pool.map(count, cases, [range(runs)] * len(cases))
        console_ = console() if sys.stdout.isatty() else None
        return list(track(jobs, "playing", len(cases), console=console_, disable=console_ is None))


def _tables(found: Sequence[Counts]) -> Iterator[str]:
    """As in docs/rollouts.md."""
    place = 0
    for title, cases in _PARTS.items():
        yield f"\n{title.format(alpha=f'{100 * Terms().alpha:g} %')}\n"
        yield "| case | promoted | rolled back | half decided by | nine tenths by |\n|---|---|---|---|---|"
        for one in found[place : place + len(cases)]:
            yield (
                f"| {one.case} | {_percent(one.promoted, one.runs)} | {_percent(one.rolled_back, one.runs)} |"
                f" {_number(one.half)} | {_number(one.most)} |"
            )
        place += len(cases)


def _percent(some: int, runs: int) -> str:
    return f"{100 * some / runs:.1f} %"


def _number(requests: int | None) -> str:
    return "-" if requests is None else str(requests)
