"""Shows long steps: as a moving bar on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from tuneplex.adapters.progress import Progress
from tuneplex.cli.terminal import Terminal
from tuneplex.units import format_duration

__all__ = ["LineProgress", "shown"]

_EVERY_S = 10.0


class LineProgress:
    """One line when a step begins, and one every ten seconds while it lasts."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._text = ""
        self._said = 0.0

    def step(self, text: str) -> None:
        """Say that a step has begun."""
        self._text, self._said = text, time.monotonic()
        self._terminal.note(text)

    def advance(self, done: int, total: int) -> None:
        """Say how far the step is, unless that was just said."""
        now = time.monotonic()
        if total and now - self._said >= _EVERY_S:
            self._said = now
            self._terminal.note(f"{self._text}: {done / total:.0%}")


class BarProgress:
    """One line for each step: a spinner, a bar where the size is known, and the time it took."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._began = 0.0

    def step(self, text: str) -> None:
        """End the step before and show the new one."""
        self.end()
        self._began = time.monotonic()
        self._task = self._bars.add_task(text, total=None)

    def advance(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total)

    def end(self) -> None:
        """Replace the bar of the step by a line with its time."""
        if self._task is None:
            return
        text = self._bars.tasks[-1].description
        self._bars.remove_task(self._task)
        took = format_duration(time.monotonic() - self._began)
        self._bars.console.print(Text.assemble(("✓", "green"), f" {text} ", (took, "dim")))
        self._task = None


@contextmanager
def shown(terminal: Terminal) -> Iterator[Progress]:
    """A `Progress` for this terminal while the block runs."""
    if not terminal.err.is_terminal:
        yield LineProgress(terminal)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=terminal.err, transient=True) as bars:
        progress = BarProgress(bars)
        yield progress
        progress.end()
