"""What the commands show of usage: pure functions from values to sheets and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

import msgspec

from tuneplex.cli.terminal import Cell, Sheet
from tuneplex.control.usage_bodies import UsageReport, UsageRow

__all__ = ["usage", "usage_csv"]

_HEADS = ("REQUESTS", "PROMPT", "CACHED", "COMPLETION")
_ESTIMATED = "ESTIMATED"
_NOBODY = "-"


def usage(report: UsageReport) -> Sheet:
    """One row for each group, then the total, and what of that is estimated."""
    heads = tuple(name.upper() for name in report.by) or ("",)
    rows = [_row([Cell(row.group[name] or _NOBODY, "bold") for name in report.by], row) for row in report.rows]
    if not report.by:
        rows = []
    total = report.total
    rows.append(_row(_label("total", len(heads)), total))
    if total.estimated_requests:
        told = (total.estimated_requests, total.estimated_prompt_tokens, None, total.estimated_completion_tokens, None)
        rows.append((*_label("of which estimated", len(heads)), *_numbers(told, "dim")))
    return Sheet(
        columns=(*heads, *_HEADS, _ESTIMATED),
        rows=tuple(rows) if total.requests else (),
        empty="no requests",
        right=frozenset({*_HEADS, _ESTIMATED}),
    )


def _label(text: str, width: int) -> list[Cell]:
    return [Cell(text, "dim"), *[Cell("")] * (width - 1)]


def _row(first: Sequence[Cell], row: UsageRow) -> tuple[Cell, ...]:
    told = (row.requests, row.prompt_tokens, row.cached_prompt_tokens, row.completion_tokens)
    return (*first, *_numbers((*told, row.estimated_requests or None)))


def _numbers(values: Iterable[int | None], style: str = "") -> tuple[Cell, ...]:
    return tuple(Cell("" if value is None else f"{value:,}", style) for value in values)


def usage_csv(report: UsageReport) -> str:
    """The rows as CSV, with a line of names; the total is for whoever adds them up."""
    names = UsageRow.__struct_fields__[1:]
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow((*report.by, *names))
    rows = report.rows if report.by else (report.total,)
    table.writerows((*(row.group[name] for name in report.by), *msgspec.structs.astuple(row)[1:]) for row in rows)
    return written.getvalue()
