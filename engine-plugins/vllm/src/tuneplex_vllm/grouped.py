"""LoRA products in PyTorch: for each adapter in the batch two products at the adapter's own rank.

It runs everywhere and in every dtype. Where the native kernel runs, it is the faster one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tuneplex_vllm.plan import Plan, Rows
from tuneplex_vllm.weights import Part

__all__ = ["GroupedProducts"]

_SMALL_MACS = 700_000
"""Products of up to so many multiplications are done in float32.

A bfloat16 product costs 12 to 35 microseconds a call however small it is, one in float32 2 to 5; the larger it gets,
the more the CPU's bfloat16 instructions and the halved weights count. Measured on two server CPUs with AVX-512.
"""
_SMALL_WEIGHTS = 100_000
"""Matrices with up to so many values are also kept in float32."""


class _Factor:
    """One matrix `[k, n]` to multiply with from the right, in the dtype that is faster for the number of rows."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self._matrix = matrix.contiguous()
        self._small = matrix.float().contiguous() if matrix.numel() <= _SMALL_WEIGHTS else None

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows @ matrix`, in float32 or in the matrix's own dtype."""
        small = self._small
        if small is not None and rows.shape[0] * small.numel() <= _SMALL_MACS:
            return torch.mm(rows.float(), small)
        return torch.mm(rows.to(self._matrix.dtype), self._matrix)

    def add_product(self, y: torch.Tensor, rows: torch.Tensor) -> None:
        """`y += rows @ matrix`, without a temporary result where one call can do it."""
        if rows.dtype == y.dtype == self._matrix.dtype:
            y.addmm_(rows, self._matrix)
        else:
            y.add_(self.product(rows))


class _Packed:
    """One adapter's weights for one module: `x @ a` for all parts together, then a `b` for each part."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.a = _Factor(torch.cat([part.a for part in parts]).t())
        self.b: list[tuple[slice, slice, _Factor]] = []
        low = 0
        for part in parts:
            outputs, rank = part.b.shape
            columns = slice(part.column, part.column + outputs)
            self.b.append((slice(low, low + rank), columns, _Factor(part.b.t())))
            low += rank

    def add(self, y: torch.Tensor, x: torch.Tensor, rows: Rows) -> None:
        """`y[rows] += x[rows] @ a @ b`, in place."""
        low = self.a.product(x[rows])
        for ranks, columns, b in self.b:
            target = y[:, columns]
            part = low[:, ranks]
            if isinstance(rows, slice):
                b.add_product(target[rows], part)
            else:
                target.index_add_(0, rows, b.product(part).to(y.dtype))


class GroupedProducts:
    """One module's products.

    Args:
        slots: How many adapters there is room for.
    """

    def __init__(self, slots: int) -> None:
        self._packed: list[_Packed | None] = [None] * slots

    def write(self, slot: int, parts: Sequence[Part]) -> None:
        """Keep a copy of what the adapter in `slot` changes; no parts, no copy."""
        self._packed[slot] = _Packed(parts) if parts else None

    def add(self, y: torch.Tensor, x: torch.Tensor, plan: Plan) -> None:
        """Add every adapter's change to `y` `[rows, outputs]`, given the module's input `x` `[rows, inputs]`."""
        for slot, rows in plan.groups:
            packed = self._packed[slot]
            if packed is not None:
                packed.add(y, x, rows)
