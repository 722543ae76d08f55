"""From rounds to figures, and the figures as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median, quantiles

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.lora_cpu.plan import CLAIMS, Cell, Claim
from benchmarks.lora_cpu.record import Piece, Record
from benchmarks.lora_cpu.workloads import BASE, WORKLOADS
from benchmarks.spread import Spread, ratio, spread

__all__ = [
    "CLAIMED_CLIENTS",
    "Row",
    "Verdict",
    "agreement",
    "figures",
    "interval",
    "others_busy",
    "print_report",
    "relation",
    "rows",
    "verdicts",
]

CLAIMED_CLIENTS = 8
_DISTURBED = 0.1
_CENT = 100


class Row(msgspec.Struct, frozen=True):
    """One cell over all rounds.

    Attributes:
        cell: Which one.
        tokens_per_s: Output tokens of all clients in a second.
        to_base: That, in relation to the base on the same engine with as many clients; None if it was not measured.
        ttft_ms: 50th and 95th percentile over all requests of all rounds.
        tpot_ms: The same.
    """

    cell: Cell
    tokens_per_s: Spread
    to_base: Spread | None
    ttft_ms: tuple[float, float]
    tpot_ms: tuple[float, float]


class Verdict(msgspec.Struct, frozen=True):
    """A claim and what was measured."""

    claim: Claim
    ratio: Spread

    @property
    def word(self) -> str:
        """Whether the goal is reached: by the whole interval, by the median only, or not."""
        if self.ratio.low >= self.claim.goal:
            return "reached"
        return "reached, interval below it" if self.ratio.median >= self.claim.goal else "not reached"


def rows(record: Record) -> list[Row]:
    """A row for each cell that was measured, in the plan's order."""
    return [_row(cell, record.pieces) for cell in record.plan.cells if _of(cell, record.pieces)]


def _row(cell: Cell, pieces: Sequence[Piece]) -> Row:
    own = _of(cell, pieces)
    base = [piece for piece in pieces if _kind(piece.cell) == (cell.engine, BASE, cell.clients)]
    return Row(
        cell=cell,
        tokens_per_s=spread([piece.tokens_per_s for piece in own]),
        to_base=_ratio(own, base),
        ttft_ms=_percentiles(value for piece in own for value in piece.ttft_ms),
        tpot_ms=_percentiles(value for piece in own for value in piece.tpot_ms),
    )


def verdicts(record: Record) -> list[Verdict]:
    """Those claims for which everything was measured."""
    found = [(c, relation(record, (*c.of, CLAIMED_CLIENTS), (*c.to, CLAIMED_CLIENTS))) for c in CLAIMS]
    return [Verdict(claim, value) for claim, value in found if value is not None]


def relation(record: Record, of: tuple[str, str, int], to: tuple[str, str, int]) -> Spread | None:
    """The throughput of one cell in relation to another one's; None if they were not measured in the same rounds.

    Args:
        record: The run.
        of: Engine, workload and clients.
        to: The same of the cell that it is compared with.
    """
    return _ratio(*([piece for piece in record.pieces if _kind(piece.cell) == which] for which in (of, to)))


def others_busy(record: Record) -> Spread:
    """Cores that others on the machine used while cells were measured."""
    return spread([piece.busy.others for piece in record.pieces])


def agreement(record: Record) -> str:
    """A sentence on how long the plugin's answers to the question of the check go along with stock LoRA's."""
    answers = record.sessions[-1].answers
    stock, plugin = (answers.get(engine, {}) for engine in ("stock", "plugin"))
    same = [
        f"{_leading(stock[model], plugin[model])} of {len(stock[model])} tokens for {model}"
        for model in stock
        if model in plugin and model != BASE
    ]
    return f" Stock and plugin, asked the same, agree in the first {', '.join(same)}." if same else ""


def _leading(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are the same before the first that differs."""
    pairs = list(zip(one, other, strict=True))
    return next((index for index, (left, right) in enumerate(pairs) if left != right), len(pairs))


def _of(cell: Cell, pieces: Iterable[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece.cell == cell]


def _kind(cell: Cell) -> tuple[str, str, int]:
    return cell.engine, cell.workload, cell.clients


def _ratio(of: Sequence[Piece], to: Sequence[Piece]) -> Spread | None:
    """The ratio of the throughputs in the rounds that have both; None without any."""
    reference = {piece.round: piece.tokens_per_s for piece in to}
    pairs = [(piece.tokens_per_s, reference[piece.round]) for piece in of if piece.round in reference]
    return ratio(*zip(*pairs, strict=True)) if pairs else None


def _percentiles(values: Iterable[float]) -> tuple[float, float]:
    """The 50th and the 95th."""
    ordered = sorted(values)
    if len(ordered) == 1:
        return ordered[0], ordered[0]
    return median(ordered), quantiles(ordered, n=_CENT, method="inclusive")[94]


def print_report(record: Record, console: Console) -> None:
    """Print the figures, the claims, and how quiet the machine was."""
    console.print(_table(rows(record)))
    found = verdicts(record)
    if found:
        console.print(_claims(found))
    others = others_busy(record)
    busy = f"Others used {others.median:.0%} of a core (median; at most {others.max:.0%})."
    console.print(f"{record.rounds} rounds. {busy}{agreement(record)}", highlight=False)
    if others.median > _DISTURBED or len(record.sessions) > 1:
        console.print("Not a clean run: others were busy, or it was interrupted.", style="yellow")


def _table(found: Sequence[Row]) -> Table:
    table = Table(title="median (95 % interval), percentiles over all requests")
    for heading in ("engine", "requests for"):
        table.add_column(heading, no_wrap=True)
    for heading in ("clients", "tokens/s", "of its base", "TTFT p50 / p95 s", "TPOT p50 / p95 ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found:
        table.add_row(row.cell.engine, WORKLOADS[row.cell.workload].title, str(row.cell.clients), *figures(row))
    return table


def figures(row: Row) -> tuple[str, str, str, str]:
    """A row's throughput, its relation to the base's, TTFT and TPOT, as text."""
    (ttft, late), (tpot, slow) = row.ttft_ms, row.tpot_ms
    return (
        interval(row.tokens_per_s, 1),
        "" if row.to_base is None or row.cell.workload == BASE else interval(row.to_base, 2),
        f"{ttft / 1e3:.2f} / {late / 1e3:.2f}",
        f"{tpot:.0f} / {slow:.0f}",
    )


def interval(value: Spread, digits: int) -> str:
    """The median and its 95 % interval, as text."""
    return f"{value.median:.{digits}f} ({value.low:.{digits}f}-{value.high:.{digits}f})"


def _claims(found: Sequence[Verdict]) -> Table:
    table = Table(title=f"ratios of tokens/s, {CLAIMED_CLIENTS} clients")
    for heading in ("ratio", "median (95 %)", "goal", ""):
        table.add_column(heading, no_wrap=True)
    for verdict in found:
        table.add_row(verdict.claim.text, interval(verdict.ratio, 3), f">= {verdict.claim.goal}", verdict.word)
    return table
