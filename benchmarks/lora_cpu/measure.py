"""The measurement: interleaved rounds over all cells, each one alone under load while it is measured."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from benchmarks.cpu import machine_busy_s
from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu.checks import Tokens, check_answers, check_engine, share_changed
from benchmarks.lora_cpu.load import Outcome, Prompts, drive, warm_up
from benchmarks.lora_cpu.plan import Cell, Plan
from benchmarks.lora_cpu.processes import RunningEngine
from benchmarks.lora_cpu.record import Load, Piece, Record
from benchmarks.lora_cpu.workloads import BASE, REPLY_TOKENS

__all__ = ["Watcher", "measure", "prepare"]

_LOG_TAIL = 4000
_LEAST_CHANGED = 0.5
_ENOUGH = 4  # answers to judge by: one or two may be the base's own by chance


class Watcher(Protocol):
    """Hears how the measurement goes on."""

    def begins(self, number: int, cell: Cell) -> None:
        """A cell of a round is measured now."""

    def measured(self, cell: Cell, wall_s: float, tokens_per_s: float) -> None:
        """The cell is through."""

    def done(self, pieces: list[Piece]) -> None:
        """A round is complete."""


class _Measured(NamedTuple):
    outcome: Outcome
    busy: Load


async def prepare(
    engines: Iterable[RunningEngine], plan: Plan, prompts: Prompts, say: Callable[[str], None]
) -> dict[str, dict[str, Tokens]]:
    """Wait for the engines and check them; returns what each model of each engine said to one question.

    Raises:
        BenchmarkError: An engine does not start or is not what it must be.
    """
    said: dict[str, dict[str, Tokens]] = {}
    engines = list(engines)
    for engine in engines:
        say(f"waiting for {engine.kind.name}")
        await engine.ready()
    for engine in engines:
        say(f"checking {engine.kind.name}")
        said[engine.kind.name] = await check_engine(engine, sorted(plan.adapters(engine.kind.name)), prompts)
    check_answers(said)
    return said


async def measure(engines: Iterable[RunningEngine], record: Record, prompts: Prompts, watcher: Watcher) -> None:
    """Measure the rounds of the plan that are still missing.

    Raises:
        BenchmarkError: A reply is not as it must be, or does not come.
    """
    by_name = {engine.kind.name: engine for engine in engines}
    plan, session = record.plan, len(record.sessions)
    for number in range(record.rounds + 1, plan.rounds + 1):
        measured: dict[Cell, _Measured] = {}
        for cell in plan.order(number):
            watcher.begins(number, cell)
            measured[cell] = await _measured(by_name, cell, prompts, number)
            watcher.measured(cell, measured[cell].outcome.wall_s, _rate(measured[cell].outcome))
        watcher.done([_piece(number, session, cell, measured) for cell in measured])


async def _measured(engines: Mapping[str, RunningEngine], cell: Cell, prompts: Prompts, number: int) -> _Measured:
    engine = engines[cell.engine]
    idle = [other for other in engines.values() if other is not engine]
    try:
        await warm_up(engine.uds, cell, prompts)
        gc.collect()
        gc.disable()
        before = _spent(engine, idle)
        outcome = await drive(engine.uds, cell, prompts, number)
        spent = [after - earlier for after, earlier in zip(_spent(engine, idle), before, strict=True)]
    except (OSError, BenchmarkError) as error:
        raise BenchmarkError(f"{cell.engine}, {cell.workload}: {error}\n{engine.log()[-_LOG_TAIL:]}") from error
    finally:
        gc.enable()
    machine, own, load, rest = (value / outcome.wall_s for value in spent)
    others = max(0.0, machine - own - load - rest)
    return _Measured(outcome, Load(own, load, rest, others, os.getloadavg()[0]))


def _spent(engine: RunningEngine, idle: Iterable[RunningEngine]) -> tuple[float, float, float, float]:
    """CPU seconds so far: of the machine, the engine, this process, and the other engines."""
    others = sum(other.meter.read_ns() for other in idle)
    return machine_busy_s(), engine.meter.read_ns() / 1e9, time.process_time(), others / 1e9


def _rate(outcome: Outcome) -> float:
    return len(outcome.answers) * REPLY_TOKENS / outcome.wall_s


def _piece(number: int, session: int, cell: Cell, measured: Mapping[Cell, _Measured]) -> Piece:
    outcome, busy = measured[cell]
    answers = outcome.answers.values()
    return Piece(
        round=number,
        session=session,
        cell=cell,
        wall_s=round(outcome.wall_s, 3),
        tokens_per_s=round(_rate(outcome), 3),
        ttft_ms=tuple(round(answer.ttft_s * 1e3) for answer in answers),
        tpot_ms=tuple(round(answer.tpot_s * 1e3, 1) for answer in answers),
        changed=_changed(cell, measured),
        busy=busy,
    )


def _changed(cell: Cell, measured: Mapping[Cell, _Measured]) -> float | None:
    """Compare a cell's answers with the base's to the same prompts, as far as the base was asked them.

    Raises:
        BenchmarkError: The adapters change next to nothing, so they are not in use.
    """
    bases = {
        key[1:]: answer.tokens
        for other, (outcome, _busy) in measured.items()
        if other.engine == cell.engine
        for key, answer in outcome.answers.items()
        if key[0] == BASE
    }
    answers = measured[cell].outcome.answers
    share = share_changed(answers, bases)
    if share is not None and share < _LEAST_CHANGED and len(answers) >= _ENOUGH:
        raise BenchmarkError(f"{cell.engine}, {cell.workload}: only {share:.0%} of the answers differ from the base's")
    return share
