"""Which adapters the model has, and in which slots: vLLM's own manager, made to know a batch and to keep pins.

vLLM's managers evict by last use and know nothing of the batch. Here a step never evicts what it computes with, and a
pinned adapter yields only to a batch that has no other slot.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from vllm.lora.model_manager import AdapterLRUCache, LRUCacheLoRAModelManager

from tuneplex_vllm.clock import Clock
from tuneplex_vllm.contents import flat, is_empty, size_of
from tuneplex_vllm.decide import can_pin, host_victims, slot_victim, who_returns
from tuneplex_vllm.snapshot import Row, State

__all__ = ["LastSlotError", "MatchesNothingError", "NoSlotError", "SlotManager"]

_UNBOUNDED = 1 << 30


class MatchesNothingError(ValueError):
    """None of an adapter's weights belongs to a module of the model."""


class LastSlotError(ValueError):
    """With this pin, no slot would be left for other adapters."""


class NoSlotError(RuntimeError):
    """Every slot is pinned or in use by a running request."""


@dataclass
class Resident:
    """What is known of an adapter in host memory; see `snapshot.Row`."""

    rank: int
    size: int
    applied: int
    counted: bool
    broken: bool = False
    used_at: float | None = None
    activation_s: float | None = None


class SlotManager(LRUCacheLoRAModelManager):  # type: ignore[misc]
    """vLLM's model manager, which knows who must not be evicted and times what it moves.

    Attributes:
        residents: What is known of each adapter in host memory.
        pinned: Who should keep its slot, in the order of pinning.
        needed: Who must keep it now.
        in_step: Whether a batch waits, for which pins yield.
        changed: Whether there is more to tell than who was used.
    """

    def __init__(self, model: Any, *args: Any, vllm_config: Any, **kwargs: Any) -> None:  # noqa: ANN401 - vLLM's own
        super().__init__(model, *args, vllm_config=vllm_config, **kwargs)
        # Its own cache would evict by itself, and what the batch needs too. The capacity is kept by `shrink_host`.
        self._registered_adapters = AdapterLRUCache(_UNBOUNDED, self.deactivate_adapter)
        self.residents: dict[int, Resident] = {}
        self.pinned: dict[int, None] = {}
        self.needed: Collection[int] = ()
        self.in_step = False
        self.activations, self.activation_s, self.activation_bytes = 0, 0.0, 0
        self.yields, self.failures = 0, 0
        self.changed = True
        self.clock = Clock(self.device, self._activated)
        if vllm_config.model_config.enforce_eager:
            _shorten(self.modules.values())
        # Where a worker has only a part of the model, an adapter may have nothing for it.
        self._has_all_modules = vllm_config.parallel_config.pipeline_parallel_size == 1 and not self._use_ep

    # Host memory.

    def _add_adapter(self, lora: Any) -> None:  # noqa: ANN401 - vLLM's own
        names = sorted({*lora.loras, *lora.modules_to_save})
        if not names:
            raise MatchesNothingError("The adapter holds no weights.")
        size = size_of(lora)
        super()._add_adapter(lora)
        applied = sum(self._has_weights_for(lora, name) for name in self.modules)
        counted = getattr(lora, "tuneplex_counted", False)
        if not applied and self._has_all_modules and not is_empty(lora):
            self._registered_adapters.pop(lora.id)
            raise MatchesNothingError(_no_match(names))
        self.residents[lora.id] = Resident(lora.rank, size, applied, counted)
        self.changed = True

    def _has_weights_for(self, lora: Any, module: str) -> bool:  # noqa: ANN401 - vLLM's own
        return (
            self._get_lora_layer_weights(lora, module) is not None
            or self._get_module_to_save_weights(lora, module) is not None
        )

    def shrink_host(self, incoming: int = 0) -> None:
        """Let adapters leave host memory until it keeps to its capacity, with `incoming` more; fewer if it cannot."""
        excess = len(self) + incoming - self.capacity
        if excess > 0:
            order = [*self._registered_adapters.order]
            for victim in host_victims(order, self._active_adapters, self.pinned, self.needed, excess):
                self.remove_adapter(victim)

    def remove_oldest_adapter(self) -> bool:
        """Let one adapter leave host memory; whether one could."""
        before = len(self)
        self.shrink_host(self.capacity - before + 1)
        return len(self) < before

    def remove_adapter(self, adapter_id: int) -> bool:
        """Forget an adapter: its slot is emptied, and its copy on the host is dropped."""
        self._empty_slot_of(adapter_id)
        removed: bool = super().remove_adapter(adapter_id)
        self.residents.pop(adapter_id, None)
        self.pinned.pop(adapter_id, None)
        self.changed = True
        return removed

    def remove_all_adapters(self) -> None:
        """Forget every adapter."""
        for adapter_id in [*self._active_adapters]:
            self._empty_slot_of(adapter_id)
        super().remove_all_adapters()
        self.residents.clear()
        self.pinned.clear()
        self.changed = True

    # Slots.

    def activate_adapter(self, lora_id: int) -> bool:
        """Give an adapter a slot; False when it has one already.

        Raises:
            NoSlotError: There is none to give.
        """
        if lora_id in self._active_adapters:
            self._active_adapters.touch(lora_id)
            return False
        self._make_room()
        self.changed = True
        with self._undone(lora_id), self.clock.taken(lora_id):
            super().activate_adapter(lora_id)
            self._slot_changed(self.lora_index_to_id.index(lora_id))
        return True

    def _make_room(self) -> None:
        if len(self._active_adapters) < self.lora_slots:
            return
        order = [*self._active_adapters.order]
        victim = slot_victim(order, self.pinned, self.needed, pins_yield=self.in_step)
        if victim is None:
            raise NoSlotError(f"All {self.lora_slots} slots are pinned or used by running requests.")
        self.yields += victim in self.pinned
        self._active_adapters.pop(victim)  # its weights stay until the next one's are written over them

    @contextlib.contextmanager
    def _undone(self, lora_id: int) -> Iterator[None]:
        """When a slot could not be filled, empty it."""
        try:
            yield
        except Exception:
            self._empty_slot_of(lora_id)
            self.deactivate_adapter(lora_id)
            raise

    def _activated(self, adapter_id: int, seconds: float) -> None:
        resident = self.residents.get(adapter_id)
        if resident is not None and resident.counted:
            resident.activation_s = seconds
            self.activations += 1
            self.activation_s += seconds
            self.activation_bytes += resident.size
            self.changed = True

    def _empty_slot_of(self, adapter_id: int) -> None:
        """Set a slot's weights to zero, so that neither it nor a kernel's copy of it outlives the adapter."""
        if adapter_id in self.lora_index_to_id:
            slot = self.lora_index_to_id.index(adapter_id)
            for module in self.modules.values():
                module.reset_lora(slot)
            self._slot_changed(slot)

    def _slot_changed(self, slot: int) -> None:
        for wrapper in {id(wrapper): wrapper for wrapper in self.punica_wrapper_mapping.values()}.values():
            slot_changed: Any = getattr(wrapper, "slot_changed", None)
            if slot_changed is not None:
                slot_changed(slot, self.modules.values())

    # Pins.

    def pin_adapter(self, lora_id: int) -> bool:
        """Keep an adapter in its slot; it gets one as soon as the running batch leaves one.

        Raises:
            LastSlotError: No slot would be left for others.
            ValueError: It is not in host memory.
        """
        if lora_id not in self._registered_adapters:
            raise ValueError(f"Adapter {lora_id} is not loaded.")
        if not can_pin(lora_id, self.pinned, self.lora_slots):
            raise LastSlotError(
                f"{len(self.pinned)} of {self.lora_slots} slots are pinned; the last one must stay for other adapters."
            )
        with contextlib.suppress(NoSlotError):
            self.activate_adapter(lora_id)
        self.pinned[lora_id] = None
        self.changed = True
        return True

    def unpin_adapter(self, lora_id: int) -> None:
        """Let an adapter be evicted again."""
        self.pinned.pop(lora_id, None)
        self.changed = True

    def bring_back(self) -> None:
        """Give one pinned adapter that had to yield its slot back, if the batch leaves one."""
        waiting = who_returns([*self.pinned], self._active_adapters)
        if waiting is None:
            return
        self.in_step = False  # a pin does not take another one's slot
        with contextlib.suppress(NoSlotError):
            self.activate_adapter(waiting)

    # What is told.

    def used(self, adapters: Iterable[int], now: float) -> None:
        """A batch computes with these adapters."""
        for adapter_id in adapters:
            self._registered_adapters.touch(adapter_id)
            self._active_adapters.touch(adapter_id)
            resident = self.residents.get(adapter_id)
            if resident is not None:
                resident.used_at = now

    def state(self) -> State:
        """All there is to tell."""
        slots = {adapter_id: slot for slot, adapter_id in enumerate(self.lora_index_to_id) if adapter_id is not None}
        return State(
            time.monotonic(),
            self.lora_slots,
            self.capacity,
            self.slot_bytes(),
            self.lora_config.max_lora_rank,
            self.activations,
            self.activation_s,
            self.activation_bytes,
            self.yields,
            self.failures,
            tuple(self._row(adapter_id, slots.get(adapter_id)) for adapter_id in self.residents),
        )

    def _row(self, adapter_id: int, slot: int | None) -> Row:
        it = self.residents[adapter_id]
        pinned = adapter_id in self.pinned
        return Row(adapter_id, it.rank, slot, it.size, pinned, it.broken, it.used_at, it.activation_s)

    def slot_bytes(self) -> int:
        """What one slot takes on the device, in bytes."""
        stacks = {
            tensor.data_ptr(): tensor.nbytes
            for module in self.modules.values()
            for name, value in vars(module).items()
            if name.endswith("_stacked")
            for tensor in flat(value)
        }
        return sum(stacks.values()) // self.lora_slots


def _shorten(layers: Iterable[Any]) -> None:
    """Let Python find a LoRA layer's base layer at once.

    vLLM's layers look it up eight times in each call, each time by way of their own `__getattr__`, which costs a step
    of a small model 2 to 4 %. Compiled models do not look anything up, and are left alone.
    """
    for layer in layers:
        if "base_layer" in layer._modules:  # noqa: SLF001 - torch's own place for it, which stays as it is
            vars(layer)["base_layer"] = layer._modules["base_layer"]  # noqa: SLF001 - the same


def _no_match(names: list[str]) -> str:
    first = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")  # noqa: PLR2004 - enough to see what is wrong
    return f"None of the adapter's {len(names)} modules is one of the model's: {first}"
