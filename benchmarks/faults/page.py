"""Puts the table into docs/faults.md, between the comments that mark its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.faults.fault import Fault

__all__ = ["PAGE", "cells", "first_cell", "write_page"]

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
_UNKNOWN = "not played yet"
_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"


def write_page(
    page: Path, faults: Sequence[Fault], gateways: Sequence[str], told: Mapping[tuple[str, str], str]
) -> None:
    """Write the table anew; what is not told now stays as it was.

    Args:
        page: The file.
        faults: A row for each.
        gateways: A column for each.
        told: What the client saw, by names of fault and gateway.

    Raises:
        BenchmarkError: The page lacks the marks.
    """
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise BenchmarkError(f"{page.name} lacks the comments that mark the table's place")
    known = {
        (_name(row[0]), gateway): cell for row in cells(page) for gateway, cell in zip(gateways, row[1:], strict=True)
    }
    known |= {key: words.replace("|", "\\|") for key, words in told.items()}
    lines = ["| fault | " + " | ".join(gateways) + " |", "|" + "---|" * (len(gateways) + 1)]
    for fault in faults:
        row = [first_cell(fault), *(known.get((fault.name, gateway), _UNKNOWN) for gateway in gateways)]
        lines.append("| " + " | ".join(row) + " |")
    page.write_text(before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after, "utf-8")


def _name(cell: str) -> str:
    return cell.partition("`")[2].partition("`")[0]


def first_cell(fault: Fault) -> str:
    """How the table names a fault."""
    return f"`{fault.name}`: {fault.what}"


def cells(page: Path) -> list[list[str]]:
    """The rows of the table as they stand on the page, without its heading."""
    table = page.read_text("utf-8").partition(_BEGIN)[2].partition(_END)[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[1:]]
