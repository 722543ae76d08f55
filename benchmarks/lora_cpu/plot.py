"""The plot of a run: throughput of every rank and mix in relation to the base without LoRA."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.environments import environment
from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu.record import Record
from benchmarks.lora_cpu.report import relation
from benchmarks.lora_cpu.workloads import BASE, WORKLOADS

__all__ = ["draw", "plot"]

_HERE = Path(__file__).parent
_COLORS = {"plugin": ("#56b4e9", "#0072b2", "#001f54"), "stock": ("#e69f00", "#d55e00", "#7f2a00")}
_MARKERS = {"plugin": "o", "stock": "s"}
_TITLES = {"plugin": "tuneplex-vllm", "stock": "stock"}
_DRAW_S = 120


class Series(msgspec.Struct, frozen=True):
    """One engine under one number of clients; `points` are index of the category, median, low, high."""

    label: str
    color: str
    marker: str
    points: tuple[tuple[int, float, float, float], ...]


class Plot(msgspec.Struct, frozen=True):
    """What `draw.py` draws."""

    title: str
    ylabel: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]


def plot(record: Record) -> Plot:
    """Relate what was measured to the base on the engine without LoRA, with as many clients."""
    measured = {cell.workload for cell in record.plan.cells if cell.engine != "none"}
    names = [name for name in WORKLOADS if name in measured]
    clients = sorted({cell.clients for cell in record.plan.cells})
    found = [_series(record, engine, count, names, shade) for engine in _COLORS for shade, count in enumerate(clients)]
    return Plot(
        title=f"Output tokens per second, 128 tokens in and 32 out ({_spread(record)})",
        ylabel="relative to an engine without LoRA",
        categories=tuple(WORKLOADS[name].short for name in names),
        series=tuple(series for series in found if series.points),
    )


def _spread(record: Record) -> str:
    return "medians, 95 % intervals" if record.rounds > 1 else "one round"


def _series(record: Record, engine: str, clients: int, names: Sequence[str], shade: int) -> Series:
    values = [relation(record, (engine, name, clients), ("none", BASE, clients)) for name in names]
    return Series(
        label=f"{_TITLES[engine]}, {clients} client{'s' if clients > 1 else ''}",
        color=_COLORS[engine][shade],
        marker=_MARKERS[engine],
        points=tuple((index, v.median, v.low, v.high) for index, v in enumerate(values) if v is not None),
    )


def draw(what: Plot, out: Path) -> None:
    """Draw into `out`, with matplotlib in an environment of its own below the user's cache directory.

    Raises:
        BenchmarkError: It could not be drawn; the message holds the end of what the script said.
    """
    python = environment(_HERE / "requirements" / "plot.txt") / "python"
    command = [str(python), str(_HERE / "draw.py"), str(out)]
    result = subprocess.run(command, input=msgspec.json.encode(what), timeout=_DRAW_S, capture_output=True, check=False)
    if result.returncode:
        raise BenchmarkError(f"the plot could not be drawn: {result.stderr[-1000:].decode(errors='replace')}")
