"""vLLM's CPU LoRA wrapper with grouped, rank-exact products."""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from tuneplex_vllm.grouped import Group, PackedSlots, add_product, group_rows

__all__ = ["RankExactWrapper"]

_log = logging.getLogger("vllm.tuneplex")


class RankExactWrapper(PunicaWrapperCPU):
    """Computes what `PunicaWrapperCPU` computes, at each adapter's own rank.

    vLLM's LoRA layers call `add_lora_linear`, `add_lora_logits` and `add_lora_embedding` during a step, and
    `update_metadata` before a step whose batch or slots differ from the last one's. Everything else (fully sharded
    LoRA, classification heads) stays as vLLM has it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - vLLM's own signature, passed on
        super().__init__(*args, **kwargs)
        self._tokens: tuple[Group, ...] = ()
        self._sampled: tuple[Group, ...] = ()
        self._packed = PackedSlots()
        _log.info("tuneplex-vllm is active: LoRA runs on the CPU at each adapter's own rank.")

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the same
        """Group the batch's tokens, and the rows that are sampled, by adapter."""
        super().update_metadata(*args, **kwargs)
        self._tokens = group_rows(self.token_lora_indices.tolist())
        self._sampled = group_rows(self.sampler_indices.tolist())

    def add_lora_linear(  # noqa: PLR0917 - vLLM's own signature
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],  # noqa: ARG002 - B's own shape says it
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,  # noqa: ARG002 - nothing is padded, so nothing is kept
        **_kwargs: object,
    ) -> None:
        """Add every adapter's change of a linear module to `y`, in place."""
        self._add(self._tokens, y, x, (lora_a_stacked, lora_b_stacked), scale)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        *,
        buffer: torch.Tensor | None = None,  # noqa: ARG002 - as above
        **_kwargs: object,
    ) -> None:
        """Add every adapter's change of the logits to `y`, in place; most adapters have none."""
        self._add(self._sampled, y, x, ((lora_a_stacked,), (lora_b_stacked,)), scale)

    def add_lora_embedding(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        add_inputs: bool = True,  # noqa: ARG002,FBT001,FBT002 - vLLM's signature; it always adds
        **_kwargs: object,
    ) -> None:
        """Add every adapter's change of the embeddings to `y`, in place.

        `x` holds the rows that vLLM looked up in A, padded to the largest rank, so only B is left to multiply.
        """
        for group in self._tokens:
            b = lora_b_stacked[group.slot, 0]
            if b.any():
                y[group.rows] += torch.mm(x[group.rows].to(b.dtype), b.t()).to(y.dtype)

    def _add(
        self,
        groups: tuple[Group, ...],
        y: torch.Tensor,
        x: torch.Tensor,
        stacks: tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]],
        scale: float,
    ) -> None:
        if not groups:
            return
        y, x = y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1])
        for group in groups:
            packed = self._packed.get(*stacks, group.slot)
            if packed is not None:
                add_product(y, x, group.rows, packed, scale)
