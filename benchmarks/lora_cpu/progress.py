"""Tells how a run goes on, and keeps its file up to date."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.lora_cpu import record as records
from benchmarks.lora_cpu.plan import Cell
from benchmarks.lora_cpu.record import Piece, Record
from benchmarks.lora_cpu.workloads import BASE

__all__ = ["Progress"]

# Seconds for one request of each client, before anything has been measured.
_GUESS_S = 4.0
_STOCK_S = {1: 25.0, 8: 130.0, 24: 400.0}


class Progress:
    """Keeps the record and says what is measured, with the time that is left.

    Args:
        record: What there is so far.
        file: Where it is written.
        terminal: Where progress is shown.
    """

    def __init__(self, record: Record, file: Path, terminal: Console) -> None:
        self.record = record
        self._file = file
        self._terminal = terminal
        self._took: dict[Cell, list[float]] = {}
        self._begun = 0.0
        self._left = dict.fromkeys(record.plan.cells, record.plan.rounds - record.rounds)

    def say(self, text: str) -> None:
        """One line, with the time."""
        self._terminal.print(f"{datetime.now(tz=UTC):%H:%M:%S} {text}", highlight=False)

    def begins(self, number: int, cell: Cell) -> None:
        """Remember when."""
        del number, cell
        self._begun = time.monotonic()

    def measured(self, cell: Cell, wall_s: float, tokens_per_s: float) -> None:
        """Say what was measured, and how much time the rest will take."""
        self._took.setdefault(cell, []).append(time.monotonic() - self._begun)
        self._left[cell] -= 1
        what = f"{cell.engine:6} {cell.workload:5} {cell.clients:2} clients"
        self.say(f"{what} {tokens_per_s:7.1f} tokens/s in {wall_s:5.1f} s, {self.remaining()} left")

    def done(self, pieces: list[Piece]) -> None:
        """Write the round down."""
        self.record.pieces += pieces
        records.write(self.record, self._file)
        self.say(f"round {self.record.rounds} of {self.record.plan.rounds} is in {self._file}")

    def remaining(self) -> timedelta:
        """An estimate, in whole seconds."""
        return timedelta(seconds=round(sum(count * self._expected(cell) for cell, count in self._left.items())))

    def _expected(self, cell: Cell) -> float:
        """What a cell took, or a guess if it has not been measured yet."""
        if cell in self._took:
            return median(self._took[cell])
        if cell.engine == "stock" and cell.workload != BASE:
            return _STOCK_S[cell.clients] * cell.requests
        return _GUESS_S * cell.requests
