"""What an adapter changes in one module, read out of the slots where vLLM keeps it padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["Part", "parts_of", "stacks_of"]


class Part(NamedTuple):
    """One low-rank change: `y[:, column : column + outputs] += x @ a.T @ b.T`.

    Attributes:
        a: `[rank, inputs]`, at the rank that the adapter really has.
        b: `[outputs, rank]`, with the adapter's scale in it.
        column: The first column of the module's output that it changes.
    """

    a: torch.Tensor
    b: torch.Tensor
    column: int


def stacks_of(layer: object) -> tuple[object, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]] | None:
    """A LoRA layer's own key and its stacks A `[slots, 1, max_rank, inputs]` and B `[slots, 1, outputs, max_rank]`.

    Merged modules (q, k and v) have a stack for each part. The key is what the layer hands to the wrapper as A.
    None for layers that are not linear: embeddings, experts.
    """
    a, b = getattr(layer, "lora_a_stacked", None), getattr(layer, "lora_b_stacked", None)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return (a, (a,), (b,)) if a.dim() == b.dim() == 4 else None  # noqa: PLR2004 - see the shapes above
    if isinstance(a, tuple) and isinstance(b, tuple) and all(stack.dim() == 4 for stack in (*a, *b)):  # noqa: PLR2004
        return a, a, b
    return None


def parts_of(a_stacks: Sequence[torch.Tensor], b_stacks: Sequence[torch.Tensor], slot: int) -> list[Part]:
    """What the adapter in `slot` changes; empty if it changes nothing here. The tensors are views of the stacks."""
    parts: list[Part] = []
    column = 0
    for a_stack, b_stack in zip(a_stacks, b_stacks, strict=True):
        a, b = a_stack[slot, 0], b_stack[slot, 0]
        rank = used_rank(a)
        if rank:
            parts.append(Part(a[:rank], b[:, :rank], column))
        column += b.shape[0]
    return parts


def used_rank(a: torch.Tensor) -> int:
    """Rows of `a` up to the last one that is not all zero."""
    used = a.abs().amax(dim=1).nonzero()  # ten times faster in bfloat16 than to compare each value with 0
    return int(used[-1]) + 1 if len(used) else 0
