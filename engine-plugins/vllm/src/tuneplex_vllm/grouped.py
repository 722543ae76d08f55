"""Grouped, rank-exact LoRA products: what to multiply, apart from vLLM.

A step's rows (tokens) are grouped by the slot of their adapter once. Each module then takes two matrix products for
each adapter in the batch, `x @ A` and `(x @ A) @ B`, with A and B cut to the rank that the adapter really has and laid
out for exactly these products. Slots, as vLLM keeps them, are padded with zeros to the engine's `--max-lora-rank`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

__all__ = ["Group", "Packed", "PackedSlots", "add_product", "group_rows", "pack"]

Rows: TypeAlias = "slice | torch.Tensor"
Stack: TypeAlias = "Sequence[torch.Tensor]"


@dataclass(frozen=True)
class Group:
    """The rows of a batch that use one adapter.

    Attributes:
        slot: Where the adapter's weights are.
        rows: A slice when the rows lie side by side, otherwise their indices.
    """

    slot: int
    rows: Rows


@dataclass(frozen=True)
class Packed:
    """One adapter's weights for one module, ready to multiply.

    Attributes:
        a: `[inputs, rank]`, contiguous. The ranks of merged modules (q, k, v) lie side by side.
        b: `[rank, outputs]`, contiguous; block by block for merged modules.
        columns: The outputs that `b` changes.
    """

    a: torch.Tensor
    b: torch.Tensor
    columns: slice


def group_rows(slots: Sequence[int]) -> tuple[Group, ...]:
    """Group rows by slot; rows without an adapter (a negative slot) are in no group."""
    members: dict[int, list[int]] = {}
    for row, slot in enumerate(slots):
        if slot >= 0:
            members.setdefault(slot, []).append(row)
    return tuple(Group(slot, _rows(indices)) for slot, indices in members.items())


def _rows(indices: list[int]) -> Rows:
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices):
        return slice(first, last + 1)
    return torch.tensor(indices)


def pack(a_stack: Stack, b_stack: Stack, slot: int) -> Packed | None:
    """Copy a slot's weights out of vLLM's stacks, at their own rank; None if the slot changes nothing here.

    Args:
        a_stack: For each merged part `[slots, 1, max_rank, inputs]`.
        b_stack: For each merged part `[slots, 1, outputs, max_rank]`.
        slot: Which adapter.
    """
    parts: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    offset = 0
    for a_all, b_all in zip(a_stack, b_stack, strict=True):
        a = a_all[slot].reshape(-1, a_all.shape[-1])
        rank = _rank(a)
        outputs = b_all.shape[-2]
        if rank:
            parts.append((offset, a[:rank].t(), b_all[slot].reshape(outputs, -1)[:, :rank].t()))
        offset += outputs
    if not parts:
        return None
    start, end = parts[0][0], parts[-1][0] + parts[-1][2].shape[1]
    a = torch.cat([part for _, part, _ in parts], dim=1).contiguous()
    b = a.new_zeros(a.shape[1], end - start)
    row = 0
    for column, _, part in parts:
        rank, outputs = part.shape
        b[row : row + rank, column - start : column - start + outputs] = part
        row += rank
    return Packed(a, b, slice(start, end))


def _rank(a: torch.Tensor) -> int:
    """Rows of `a` up to the last one that is not all zero."""
    used = a.ne(0).any(dim=1).nonzero()
    return int(used[-1]) + 1 if len(used) else 0


def add_product(y: torch.Tensor, x: torch.Tensor, rows: Rows, packed: Packed, scale: float) -> None:
    """`y[rows, columns] += (x[rows] @ a) @ b * scale`, in place."""
    # A model may keep more columns than the adapter knows (a padded vocabulary), or fewer.
    y = y[:, packed.columns]
    b = packed.b[:, : y.shape[1]]
    chosen = x[rows] if isinstance(rows, slice) else x.index_select(0, rows)
    low = torch.mm(chosen.to(packed.a.dtype), packed.a)
    if isinstance(rows, slice) and y.dtype == b.dtype and y.shape[1] == b.shape[1]:
        y[rows].addmm_(low, b, alpha=scale)
        return
    delta = torch.mm(low, b).to(y.dtype)
    target = y[:, : delta.shape[1]]
    if isinstance(rows, slice):
        target[rows].add_(delta, alpha=scale)
    else:
        target.index_add_(0, rows, delta, alpha=scale)


class PackedSlots:
    """The packed copies of every slot and module, made when first needed and again when the slot's content changed.

    PyTorch counts each in-place change of a tensor (`Tensor._version`). vLLM writes adapters into its stacks in place,
    so an unchanged count means unchanged weights, whatever the adapter is called. A write to one slot makes the
    copies of a module's other slots look old as well; they are then copied once more, which loading pays for, not
    serving.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], tuple[torch.Tensor, int, Packed | None]] = {}

    def get(self, a_stack: Stack, b_stack: Stack, slot: int) -> Packed | None:
        """The packed weights of `slot`, or None if it changes nothing in this module."""
        first = a_stack[0]
        if first.is_inference():  # such tensors count nothing, so nothing may be kept
            return pack(a_stack, b_stack, slot)
        version = sum([stack._version for stack in (*a_stack, *b_stack)])  # noqa: SLF001 - see above; a list is faster
        key = (id(first), slot)
        known = self._copies.get(key)
        if known is not None and known[0] is first and known[1] == version:
            return known[2]
        packed = pack(a_stack, b_stack, slot)
        self._copies[key] = (first, version, packed)
        return packed
