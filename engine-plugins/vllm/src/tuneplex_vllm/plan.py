"""Which rows of a step use which adapter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch

__all__ = ["Group", "Plan", "Rows"]

Rows: TypeAlias = "slice | torch.Tensor"


class Group(NamedTuple):
    """The rows that use one adapter.

    Attributes:
        slot: Where the adapter's weights are.
        rows: A slice when the rows lie side by side, otherwise their indices.
    """

    slot: int
    rows: Rows


class Plan:
    """The rows of a step, grouped by slot once for all modules.

    Args:
        slots: The slot of each row; negative for a row without an adapter, which is in no group.
    """

    def __init__(self, slots: Sequence[int] = ()) -> None:
        self.length = len(slots)
        self._members: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            if slot >= 0:
                self._members.setdefault(slot, []).append(row)

    def __bool__(self) -> bool:
        return bool(self._members)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """For PyTorch."""
        return tuple(Group(slot, _rows(rows)) for slot, rows in self._members.items())

    @cached_property
    def address(self) -> int:
        """Of the struct `Plan` of `_native.c`."""
        return self._table.data_ptr()

    @cached_property
    def _table(self) -> torch.Tensor:
        """The numbers of groups and of rows; slot, rows and first row of each group; all rows."""
        groups: list[int] = []
        listed: list[int] = []
        for slot, rows in self._members.items():
            groups += (slot, len(rows), len(listed))
            listed += rows
        return torch.tensor([len(self._members), len(listed), *groups, *listed], dtype=torch.int64)


def _rows(indices: list[int]) -> Rows:
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices):
        return slice(first, last + 1)
    return torch.tensor(indices)
