"""What the commands print on: colours and tables for a person, plain lines for a pipe.

Commands describe a table once, as a `Sheet`; only here is decided how it looks.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

__all__ = ["Cell", "Sheet", "Terminal", "plain", "table"]

_GAP = 2  # between columns
_WORD = 16  # of a flexible column; what is longer, as a path, is broken into parts
_PART = 8  # the shortest of these


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of a table: its text and, for a terminal, its style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table before it has a look.

    Attributes:
        columns: The heads.
        rows: As many cells as there are heads.
        empty: What to say when there is no row.
        right: Columns with numbers, which are aligned to the right.
        flexible: Columns whose cells may be broken into lines where the terminal is narrow.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str = ""
    right: frozenset[str] = frozenset()
    flexible: frozenset[str] = frozenset()


def plain(sheet: Sheet) -> str:
    """The sheet as aligned lines without colours, boxes or trailing spaces; no cell is cut or wrapped."""
    if not sheet.rows:
        return sheet.empty
    lines = [sheet.columns, *(tuple(" ".join(cell.text.split()) for cell in row) for row in sheet.rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(sheet.columns))]
    sides = [column in sheet.right for column in sheet.columns]
    return "\n".join(_aligned(line, widths, sides) for line in lines)


def _aligned(line: tuple[str, ...], widths: list[int], right: list[bool]) -> str:
    cells = (
        text.rjust(width) if to_right else text.ljust(width)
        for text, width, to_right in zip(line, widths, right, strict=True)
    )
    return "  ".join(cells).rstrip()


def table(sheet: Sheet) -> RenderableType:
    """The sheet for a terminal: a table, or a list where that is too wide; nothing of any cell is left out.

    What has no content in any row is not shown, because space is dear.
    """
    return _Fitting(sheet) if sheet.rows else Text(sheet.empty, style="dim")


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A sheet that is drawn once the width is known."""

    sheet: Sheet

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        shown = [at for at in range(len(self.sheet.columns)) if any(row[at].text for row in self.sheet.rows)]
        widths = _widths(self.sheet, shown, options.max_width - _GAP * len(shown) + 1)
        yield _columns(self.sheet, widths) if widths else _list(self.sheet)


def _widths(sheet: Sheet, shown: list[int], room: int) -> dict[int, int]:
    """How wide each of these columns is in so much room; empty if it is not enough."""
    widths = {at: _least(sheet, at) for at in shown}
    if sum(widths.values()) > room:
        return {}
    missing = {at: max(len(row[at].text) for row in sheet.rows) - width for at, width in widths.items()}
    for _ in range(room - sum(widths.values())):
        at = max(shown, key=missing.__getitem__)
        if missing[at] > 0:
            widths[at] += 1
            missing[at] -= 1
    return widths


def _least(sheet: Sheet, at: int) -> int:
    """How wide a column must be so that nothing in it is cut, and only what is long is broken."""
    head = sheet.columns[at]
    texts = [row[at].text for row in sheet.rows]
    if head not in sheet.flexible:
        return max(len(head), *map(len, texts))
    longest = max((len(word) for text in texts for word in text.split()), default=0)
    return max(len(head), longest if longest <= _WORD else _PART)


def _columns(sheet: Sheet, widths: dict[int, int]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), header_style="bold", show_edge=False)
    for at, width in widths.items():
        column = sheet.columns[at]
        side: JustifyMethod = "right" if column in sheet.right else "left"
        rigid = column not in sheet.flexible
        drawn.add_column(column, justify=side, overflow="fold", no_wrap=rigid, width=width)
    for row in sheet.rows:
        drawn.add_row(*(Text(row[at].text, style=row[at].style) for at in widths))
    return drawn


def _list(sheet: Sheet) -> Table:
    """Each row as lines of their own, one for each cell that says something."""
    drawn = Table.grid(padding=(0, _GAP, 0, 0))
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for at, row in enumerate(sheet.rows):
        if at:
            drawn.add_row()
        for head, cell in zip(sheet.columns, row, strict=True):
            if cell.text:
                drawn.add_row(head, Text(cell.text, style=cell.style))
    return drawn


@dataclass(frozen=True, slots=True)
class Terminal:
    """Standard output and standard error of one command.

    Attributes:
        out: What the command was asked for.
        err: Errors, progress and questions.
    """

    out: Console
    err: Console

    @classmethod
    def standard(cls) -> Terminal:
        """The process's own streams, as they are now (tests replace them)."""
        return cls(out=Console(highlight=False), err=Console(stderr=True, highlight=False))

    @property
    def live(self) -> bool:
        """Whether a person looks at standard output, so that it may move."""
        return self.out.is_terminal

    def say(self, text: str, style: str = "") -> None:
        """Print one line; a line that goes into a pipe is never wrapped."""
        self.out.print(Text(text, style=style), soft_wrap=not self.live)

    def write(self, text: str) -> None:
        """Write text to standard output as it is, at once."""
        self.out.file.write(text)
        self.out.file.flush()

    def give_up(self) -> None:
        """Let what standard output still holds go nowhere: the interpreter would try to write it again, and fail."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.out.file.fileno())

    def note(self, text: str) -> None:
        """Print one line of progress on standard error."""
        self.err.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print one line on standard error."""
        self.err.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)

    def fail(self, message: str, hint: str = "") -> None:
        """Print an error and what to do about it on standard error."""
        self.err.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
        if hint:
            self.err.print(Text.assemble(("hint: ", "bold cyan"), hint), soft_wrap=True)

    def show(self, *sheets: Sheet) -> None:
        """Print tables with an empty line between them."""
        for at, sheet in enumerate(sheets):
            if at:
                self.gap()
            if self.live:
                self.out.print(table(sheet))
            else:
                self.out.file.write(plain(sheet) + "\n")

    def gap(self) -> None:
        """Print an empty line."""
        self.out.print()

    def confirm(self, question: str) -> bool:
        """Ask a person, who may just press Enter to say no."""
        self.err.print(Text.assemble((question, "bold"), " [y/N] "), end="")
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    def json(self, value: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Print a value as JSON on standard output, for scripts."""
        self.out.file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()
