"""What came in the last seconds, how often and how much: a sliding window of cells of one second."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

__all__ = ["MINUTE_S", "Cell", "Window"]

MINUTE_S = 60


class Cell:
    """What came within one second.

    Attributes:
        second: Which, on the window's clock.
        times: How often something came.
        amount: How much it was.
        over: The window has left it behind.
    """

    __slots__ = ("amount", "over", "second", "times")

    def __init__(self, second: int) -> None:
        self.second = second
        self.times = 0
        self.amount = 0
        self.over = False


class Window:
    """Counts what came in the last `span_s` seconds, on a clock that should not go backwards: how often, and how much.

    A cell counts until all of it is older than the span, so that in any `span_s` seconds, wherever they begin, there
    is never more than was counted. What was counted can be corrected later, in the cell where it was.

    Args:
        span_s: How long something counts.

    Attributes:
        times: How often something came, as of the last look; a look is any call that says what time it is.
        amount: How much it was.
    """

    __slots__ = ("_cells", "_span_s", "amount", "times")

    def __init__(self, span_s: int = MINUTE_S) -> None:
        self._cells: deque[Cell] = deque()
        self._span_s = span_s
        self.times = 0
        self.amount = 0

    def total(self, now: float) -> int:
        """How much counts at `now`."""
        cells = self._cells
        if cells and (cells[0].second <= now - self._span_s - 1 or cells[-1].second > now):
            self._follow(int(now))
        return self.amount

    def add(self, now: float, amount: int) -> Cell:
        """Count this once; the cell is for `correct` and `withdraw`."""
        second, cells = int(now), self._cells
        # Under load the usual case; who asks for the total looks after the rest.
        if cells and cells[-1].second == second:
            cell = cells[-1]
        else:
            self.total(now)
            cell = Cell(second)
            cells.append(cell)
        cell.times += 1
        cell.amount += amount
        self.times += 1
        self.amount += amount
        return cell

    def correct(self, cell: Cell, by: int) -> None:
        """Count so much more, or less, where something was counted before."""
        cell.amount += by
        if not cell.over:
            self.amount += by

    def withdraw(self, cell: Cell) -> None:
        """Count one less that came, whatever it was."""
        cell.times -= 1
        if not cell.over:
            self.times -= 1

    def wait_s(self, now: float, room: int) -> float:
        """Seconds until no more than `room` counts, if nothing else comes; infinite for a negative one."""
        return self._wait_s(now, self.total(now) - room, (cell.amount for cell in self._cells))

    def wait_for_times_s(self, now: float, room: int) -> float:
        """Seconds until it was no more than `room` times."""
        self.total(now)
        return self._wait_s(now, self.times - room, (cell.times for cell in self._cells))

    def _wait_s(self, now: float, over: int, counts: Iterable[int]) -> float:
        if over <= 0:
            return 0.0
        for cell, count in zip(self._cells, counts, strict=True):
            over -= count
            if over <= 0:
                return cell.second + self._span_s + 1 - now
        return math.inf

    def rest_s(self, now: float) -> float:
        """Seconds until nothing counts any more, if nothing else comes."""
        self.total(now)
        return self._cells[-1].second + self._span_s + 1 - now if self._cells else 0.0

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
            self.times -= cell.times
            self.amount -= cell.amount
