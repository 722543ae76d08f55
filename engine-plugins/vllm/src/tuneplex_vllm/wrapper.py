"""vLLM's CPU LoRA wrapper with products at each adapter's own rank."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from tuneplex_vllm.grouped import GroupedProducts
from tuneplex_vllm.native import NativeProducts, obstacle, units
from tuneplex_vllm.plan import Plan
from tuneplex_vllm.weights import Part, parts_of, stacks_of, used_rank

__all__ = ["RankExactWrapper"]

_log = logging.getLogger("vllm.tuneplex")


class _Products(Protocol):
    """One module's products, of `GroupedProducts` or `NativeProducts`."""

    def write(self, slot: int, parts: list[Part]) -> None: ...

    def add(self, y: torch.Tensor, x: torch.Tensor, plan: Plan) -> None: ...


class RankExactWrapper(PunicaWrapperCPU):
    """Computes what `PunicaWrapperCPU` computes, at each adapter's own rank.

    vLLM's LoRA layers call `add_lora_linear`, `add_lora_logits` and `add_lora_embedding` during a step, and
    `update_metadata` before a step whose batch or slots differ from the last one's. The plugin's `SlotManager` calls
    `slot_changed`. Everything else (fully sharded LoRA, classification heads) stays as vLLM has it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - vLLM's own signature, passed on
        super().__init__(*args, **kwargs)
        self._slots: list[int] = []
        self._tokens: Plan | None = None
        self._sampled = Plan()
        # By the identity of the stack that a layer hands over; the layer is kept, so no other object can have it.
        self._modules: dict[int, tuple[object, _Products]] = {}
        self._embeddings: dict[int, dict[int, torch.Tensor]] = {}
        self._threads = torch.get_num_threads()
        if (config := kwargs.get("lora_config")) is not None:
            why_not = obstacle(config.lora_dtype, self._threads)
            how = f"in PyTorch, because {why_not}" if why_not else f"on {units()[0]}"
            _log.info("tuneplex-vllm is active: LoRA runs on the CPU at each adapter's own rank, %s.", how)

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the same
        """Group the batch's tokens, and the rows that are sampled, by adapter."""
        super().update_metadata(*args, **kwargs)
        self._slots = self.token_lora_indices.tolist()
        self._tokens = Plan(self._slots) or None
        self._sampled = Plan(self.sampler_indices.tolist())

    def slot_changed(self, slot: int, layers: Iterable[object]) -> None:
        """Copy the weights of a slot anew, or drop the copies of one that is empty now.

        Args:
            slot: The slot.
            layers: vLLM's LoRA layers that use this wrapper.
        """
        for layer in layers:
            if getattr(layer, "lora_a_stacked_2d", None) is not None:
                self._write_embedding(layer.lora_b_stacked, slot)  # type: ignore[attr-defined]
            elif (stacks := stacks_of(layer)) is not None:
                key, a, b = stacks
                self._products(key, a, b).write(slot, parts_of(a, b, slot))

    def add_lora_linear(  # noqa: PLR0917 - vLLM's own signature
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],  # noqa: ARG002 - `slot_changed` has copied it
        scale: float,
        output_slices: tuple[int, ...],  # noqa: ARG002 - B's own shape says it
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,  # noqa: ARG002 - nothing is padded, so nothing is kept
        **_kwargs: object,
    ) -> None:
        """Add every adapter's change of a linear module to `y`, in place."""
        plan = self._tokens
        if plan is not None and (found := self._modules.get(id(lora_a_stacked))):
            _add(found[1], y, x, plan, scale)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,  # noqa: ARG002 - as above
        scale: float,
        *,
        buffer: torch.Tensor | None = None,  # noqa: ARG002 - as above
        **_kwargs: object,
    ) -> None:
        """Add every adapter's change of the logits to `y`, in place; most adapters have none."""
        if (found := self._modules.get(id(lora_a_stacked))) and (plan := self._plan_of_logits(x)):
            _add(found[1], y, x, plan, scale)

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
        changed = self._embeddings.get(id(lora_b_stacked))
        if not changed or self._tokens is None:
            return
        for slot, rows in self._tokens.groups:
            if (b := changed.get(slot)) is not None:
                y[rows] += torch.mm(x[rows][:, : b.shape[0]].to(b.dtype), b).to(y.dtype)

    def _plan_of_logits(self, x: torch.Tensor) -> Plan | None:
        """Which adapters the rows belong to whose logits are asked for.

        They are the sampled rows, which vLLM has copied out of the hidden states, or the rows of one request's prompt,
        which are a view of them (for `prompt_logprobs`). The storage tells which.
        """
        rows = x.shape[0]
        if x.untyped_storage().nbytes() > x.nbytes:
            first = x.storage_offset() // x.stride(0)
            slots = self._slots[first : first + rows]
            return Plan(slots) if len(slots) == rows else None
        if self._sampled.length == rows:
            return self._sampled or None
        return self._tokens if len(self._slots) == rows else None  # a view of everything

    def _write_embedding(self, b_stack: torch.Tensor, slot: int) -> None:
        b = b_stack[slot, 0].t()  # [max_rank, width]
        rank = used_rank(b)
        changed = self._embeddings.setdefault(id(b_stack), {})
        changed.pop(slot, None)
        if rank:
            changed[slot] = b[:rank].contiguous()

    def _products(self, key: object, a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> _Products:
        found = self._modules.get(id(key))
        if found is None:
            found = self._modules[id(key)] = (key, self._new_products(a, b))
        return found[1]

    def _new_products(self, a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> _Products:
        slots, _, _, inputs = a[0].shape
        if obstacle(a[0].dtype, self._threads):
            return GroupedProducts(slots)
        return NativeProducts(inputs, sum(stack.shape[2] for stack in b), slots, self._threads)


def _add(products: _Products, y: torch.Tensor, x: torch.Tensor, plan: Plan, scale: float) -> None:
    if scale != 1.0:  # vLLM puts an adapter's scale into B and passes 1
        change = torch.zeros_like(y)
        _add(products, change, x, plan, 1.0)
        y.add_(change, alpha=scale)
    elif y.dim() == 2:  # noqa: PLR2004 - rows and columns
        products.add(y, x, plan)
    else:
        products.add(y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1]), plan)
