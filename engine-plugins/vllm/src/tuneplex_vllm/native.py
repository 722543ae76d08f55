"""LoRA products by the native kernel: the weights' layout for `_native.c`, and the call."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from tuneplex_vllm.plan import Plan
from tuneplex_vllm.weights import Part

__all__ = ["NativeProducts", "choose", "obstacle", "units"]

_WIDE = 16
"""Outputs of a column tile."""
_DEPTH = 32
"""Inputs of a tile."""

try:
    _native: Any = importlib.import_module("tuneplex_vllm._native")
except ImportError:  # it was installed without a C compiler
    _native = None


def units() -> list[str]:
    """What the kernel can compute with on this CPU, the fastest first; it begins with that one."""
    return list(_native.units()) if _native is not None else []


def choose(unit: str) -> None:
    """Let the kernel compute with another of its units, as tests want it.

    Raises:
        ValueError: This CPU has no such unit.
    """
    _native.choose(unit)


def obstacle(dtype: torch.dtype, threads: int) -> str:
    """Why the kernel cannot run; empty when it can."""
    if _native is None:
        return "it was built without a C compiler"
    if dtype is not torch.bfloat16:
        return f"it computes bfloat16, not {str(dtype).removeprefix('torch.')}"
    if threads > 1 and not _native.parallel():
        return "PyTorch's OpenMP threads were not found"
    return "" if units() else "this CPU has no instructions for bfloat16 that it knows"


class NativeProducts:
    """One module's products, as `GroupedProducts`, in bfloat16.

    Args:
        inputs: Width of the module's input.
        outputs: Width of its output.
        slots: How many adapters there is room for.
        threads: How many to compute with.
    """

    def __init__(self, inputs: int, outputs: int, slots: int, threads: int) -> None:
        self._inputs, self._outputs, self._threads = inputs, outputs, threads
        with torch.inference_mode(False):  # a slot is first filled within a step, and later also between steps
            self._addresses = torch.zeros(slots, dtype=torch.int64)
        self._table = self._addresses.data_ptr()
        self._kept: dict[int, list[torch.Tensor]] = {}

    def write(self, slot: int, parts: Sequence[Part]) -> None:
        """Keep a copy of what the adapter in `slot` changes; no parts, no copy."""
        self._addresses[slot] = 0
        self._kept.pop(slot, None)
        if parts:
            self._kept[slot] = tensors = _packed(parts, self._inputs)
            self._addresses[slot] = tensors[0].data_ptr()

    def add(self, y: torch.Tensor, x: torch.Tensor, plan: Plan) -> None:
        """Add every adapter's change to `y` `[rows, outputs]`, given the module's input `x` `[rows, inputs]`."""
        # This runs for each module and step, so the usual case asks little.
        if x.dtype is y.dtype is torch.bfloat16 and x.is_contiguous() and y.is_contiguous():
            outputs = y.size(1)
            if outputs >= self._outputs:
                _native.add(self._table, plan.address, y.data_ptr(), outputs, x.data_ptr(), self._inputs, self._threads)
                return
        self._add_to_others(y, x, plan)

    def _add_to_others(self, y: torch.Tensor, x: torch.Tensor, plan: Plan) -> None:
        """The same for logits in float32, or for tensors that are parts of others."""
        change = torch.zeros(y.shape[0], self._outputs, dtype=torch.bfloat16)
        self.add(change, x.to(torch.bfloat16).contiguous(), plan)
        y.add_(change[:, : y.shape[1]])


def _packed(parts: Sequence[Part], inputs: int) -> list[torch.Tensor]:
    """The struct `Weights` of `_native.c`, and behind it the tensors that it points to."""
    a, rank, depth = _packed_a([part.a for part in parts], inputs)
    fields = [inputs, depth, rank, a.data_ptr(), len(parts)]
    tensors = [a]
    low = 0
    for part in parts:
        b = _tiles(_even(part.b), _WIDE)
        outputs, part_rank = part.b.shape
        part_rank += part_rank % 2
        fields += (low, part_rank, b.data_ptr(), part.column, outputs)
        tensors.append(b)
        low += part_rank
    return [torch.tensor(fields, dtype=torch.int64), *tensors]


def _packed_a(parts: Sequence[torch.Tensor], inputs: int) -> tuple[torch.Tensor, int, int]:
    """X the other in column tiles, the last of which may be narrower; ranks and inputs filled up."""
    depth = inputs + -inputs % _DEPTH
    a = torch.cat([pad(part, (0, depth - inputs, 0, part.shape[0] % 2)) for part in parts])
    rank = a.shape[0]
    full = rank - rank % _WIDE
    tiles = [_tiles(a[:full], _WIDE)] if full else []
    if rank > full:
        tiles.append(_tiles(a[full:], rank - full))
    return torch.cat(tiles), rank, depth


def _even(b: torch.Tensor) -> torch.Tensor:
    """`[outputs, rank]` with outputs filled up to whole tiles and the rank to an even number."""
    outputs, rank = b.shape
    return pad(b, (0, rank % 2, 0, -outputs % _WIDE))


def _tiles(matrix: torch.Tensor, width: int) -> torch.Tensor:
    """`[n, k]` as `[n / width][k / 2][width][2]`, flat.

    A pair of bfloat16 moves as one int32, which is several times faster than moving two.
    """
    n, k = matrix.shape
    pairs = matrix.contiguous().view(torch.int32).view(n // width, width, k // 2)
    return pairs.transpose(1, 2).contiguous().view(torch.bfloat16).flatten()
