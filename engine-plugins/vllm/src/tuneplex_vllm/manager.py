"""Which adapters this worker has, and where: the worker's own managers, told of what their slots hold."""

from __future__ import annotations

from typing import Any

from vllm.lora.model_manager import LRUCacheLoRAModelManager
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

__all__ = ["SlotManager", "WorkerManager", "install"]


class SlotManager(LRUCacheLoRAModelManager):  # type: ignore[misc]
    """Tells the LoRA kernels whenever the weights of a slot were written, or are gone."""

    def activate_adapter(self, lora_id: int) -> bool:
        """Give an adapter a slot; False when it has one already."""
        activated: bool = super().activate_adapter(lora_id)
        if activated:
            self._slot_changed(self.lora_index_to_id.index(lora_id))
        return activated

    def remove_adapter(self, adapter_id: int) -> bool:
        """Forget an adapter: its slot is emptied, and its copy on the host is dropped."""
        if adapter_id in self.lora_index_to_id:
            self._empty_slot(self.lora_index_to_id.index(adapter_id))
        removed: bool = super().remove_adapter(adapter_id)
        return removed

    def remove_all_adapters(self) -> None:
        """Forget every adapter."""
        for slot, adapter_id in enumerate(self.lora_index_to_id):
            if adapter_id is not None:
                self._empty_slot(slot)
        super().remove_all_adapters()

    def _empty_slot(self, slot: int) -> None:
        """Set a slot's weights to zero, so that neither it nor a kernel's copy of it outlives the adapter."""
        for module in self.modules.values():
            module.reset_lora(slot)
        self._slot_changed(slot)

    def _slot_changed(self, slot: int) -> None:
        for wrapper in {id(wrapper): wrapper for wrapper in self.punica_wrapper_mapping.values()}.values():
            slot_changed: Any = getattr(wrapper, "slot_changed", None)
            if slot_changed is not None:
                slot_changed(slot, self.modules.values())


class WorkerManager(LRUCacheWorkerLoRAManager):  # type: ignore[misc]
    """What vLLM's model runners make for themselves, with `SlotManager` inside."""

    _manager_cls = SlotManager  # type: ignore[assignment,unused-ignore]


def install() -> None:
    """Let every model runner of this process use `WorkerManager`; safe to call more than once."""
    from vllm.v1.worker import lora_model_runner_mixin  # noqa: PLC0415 - only where something is installed

    lora_model_runner_mixin.LRUCacheWorkerLoRAManager = WorkerManager
