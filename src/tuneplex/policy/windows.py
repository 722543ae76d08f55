"""What came in the last seconds: a sliding window of cells of one second."""

from __future__ import annotations

import math
from collections import deque

__all__ = ["MINUTE_S", "Cell", "Window"]

MINUTE_S = 60


class Cell:
    """What came within one second.

    Attributes:
        second: Which, on the window's clock.
        amount: Of requests, or of tokens.
        over: The window has left it behind.
    """

    __slots__ = ("amount", "over", "second")

    def __init__(self, second: int, amount: int) -> None:
        self.second = second
        self.amount = amount
        self.over = False


class Window:
    """Counts what came in the last `span_s` seconds, on a clock that should not go backwards.

    A cell counts until all of it is older than the span, so that in any `span_s` seconds, wherever they begin, there
    is never more than was counted. What was counted can be corrected later, in the cell where it was.

    Args:
        span_s: How long something counts.

    Attributes:
        counted: What counted at the last look.
    """

    __slots__ = ("_cells", "_span_s", "counted")

    def __init__(self, span_s: int = MINUTE_S) -> None:
        self._cells: deque[Cell] = deque()
        self._span_s = span_s
        self.counted = 0

    def total(self, now: float) -> int:
        """What counts at `now`."""
        cells = self._cells
        if cells and (cells[0].second <= now - self._span_s - 1 or cells[-1].second > now):
            self._follow(int(now))
        return self.counted

    def add(self, now: float, amount: int) -> Cell:
        """Count this; the cell is for `correct`."""
        second, cells = int(now), self._cells
        if (
            cells and cells[-1].second == second
        ):  # under load the usual case; who asks for the total looks after the rest
            cell = cells[-1]
            cell.amount += amount
        else:
            self.total(now)
            cell = Cell(second, amount)
            cells.append(cell)
        self.counted += amount
        return cell

    def correct(self, cell: Cell, by: int) -> None:
        """Count so much more, or less, where something was counted before."""
        cell.amount += by
        if not cell.over:
            self.counted += by

    def wait_s(self, now: float, room: int) -> float:
        """Seconds until no more than `room` counts, if nothing else comes; infinite for a negative one."""
        total = self.total(now)
        if total <= room:
            return 0.0
        for cell in self._cells:
            total -= cell.amount
            if total <= room:
                return cell.second + self._span_s + 1 - now
        return math.inf

    def rest_s(self, now: float) -> float:
        """Seconds until nothing counts any more, if nothing else comes."""
        return self._cells[-1].second + self._span_s + 1 - now if self.total(now) else 0.0

    def _follow(self, second: int) -> None:
        """Leave behind what is too old. Should the clock go backwards, everything moves with it and keeps its age."""
        cells = self._cells
        back = cells[-1].second - second
        if back > 0:
            for cell in cells:
                cell.second -= back
        while cells and cells[0].second < second - self._span_s:
            cell = cells.popleft()
            cell.over = True
            self.counted -= cell.amount
