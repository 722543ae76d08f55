"""Which adapters this worker has, and where: vLLM's own managers, made to know a batch, to keep pins and to tell.

vLLM's scheduler lets as many adapters into a step as there are slots, and knows nothing of pins; its managers evict by
last use and know nothing of the batch. Here a step never evicts what it computes with, a pinned adapter yields only to
a batch that has no other slot, and nothing that goes wrong with one adapter ends the step, which would end the engine.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.model_manager import AdapterLRUCache, LRUCacheLoRAModelManager
from vllm.lora.request import LoRARequest
from vllm.lora.utils import get_adapter_absolute_path
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

from tuneplex_vllm.clock import Clock
from tuneplex_vllm.decide import can_pin, host_victims, slot_victim, who_returns
from tuneplex_vllm.snapshot import Row, State, Writer, place

__all__ = ["ChangedError", "LastSlotError", "MatchesNothingError", "NoSlotError", "SlotManager", "WorkerManager"]

_UNBOUNDED = 1 << 30
_FEW = 16

_log = logging.getLogger("vllm.tuneplex")


class MatchesNothingError(ValueError):
    """None of an adapter's weights belongs to a module of the model."""


class ChangedError(ValueError):
    """An adapter's files are not those that its id was given to."""


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
        size = sum(tensor.nbytes for weights in lora.loras.values() for tensor in tensors_of(weights))
        super()._add_adapter(lora)
        applied = sum(self._has_weights_for(lora, name) for name in self.modules)
        counted = getattr(lora, "tuneplex_counted", False)
        if not applied and self._has_all_modules and not getattr(lora, "tuneplex_empty", False):
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
            for tensor in _flat(value)
        }
        return sum(stacks.values()) // self.lora_slots


class WorkerManager(LRUCacheWorkerLoRAManager):  # type: ignore[misc]
    """What vLLM's model runners ask for adapters at each step, with a `SlotManager` inside.

    Attributes:
        writer: Tells the API server; None in workers that do not.
    """

    _manager_cls = SlotManager

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - vLLM's own
        super().__init__(vllm_config, *args, **kwargs)
        self._config = vllm_config
        self._requests: dict[int, LoRARequest] = {}
        self._files: dict[int, tuple[tuple[str, int, int, int], ...]] = {}
        self._retired: set[int] = set()
        self._batch: frozenset[int] = frozenset()
        self.writer: Writer | None = None

    @property
    def slots(self) -> SlotManager:
        """The model's own manager."""
        manager: SlotManager = self._adapter_manager
        return manager

    def create_lora_manager(self, model: Any, vllm_config: Any) -> Any:  # noqa: ANN401 - vLLM's own
        """Make the model's manager, and the snapshot where this worker is the one that tells."""
        wrapped = super().create_lora_manager(model, vllm_config)
        parallel = vllm_config.parallel_config
        if parallel.rank == 0 and parallel.data_parallel_rank == 0:
            rows = self.slots.capacity + self.slots.lora_slots + _FEW
            try:
                self.writer = Writer(place(vllm_config.instance_id), rows)
            except OSError as error:
                _log.warning("tuneplex-vllm cannot share memory with the API server, which will ask instead: %s", error)
        self.tell()
        return wrapped

    # A step.

    def set_active_adapters(self, requests: set[LoRARequest], mapping: Any) -> None:  # noqa: ANN401 - vLLM's own
        """Before a batch computes: give its adapters slots, and the kernels the batch's rows."""
        batch = {request.lora_int_id: request for request in requests}
        # vLLM's requests are equal when their names are, so a set of them lacks one of two versions of a name.
        for adapter_id in set(mapping.prompt_mapping if mapping is not None else ()):
            if adapter_id > 0 and adapter_id not in batch and int(adapter_id) in self._requests:
                batch[int(adapter_id)] = self._requests[int(adapter_id)]
        self._for_batch(batch)
        if mapping is not None:
            self.slots.set_adapter_mapping(mapping)

    def _for_batch(self, batch: dict[int, LoRARequest]) -> None:
        slots = self.slots
        self._batch = slots.needed = frozenset(batch)
        slots.in_step = True
        for request in batch.values():
            self._provide(request)
        if self._retired:
            self._sweep()
        if slots.pinned:
            slots.bring_back()
        slots.in_step = False
        slots.shrink_host()
        slots.used(batch, time.time())
        self.tell(batch)

    def _provide(self, request: LoRARequest) -> None:
        """Give an adapter of the batch a slot, whatever happens: an exception here would end the engine."""
        try:
            self.to_host(request)
            self.slots.activate_adapter(request.lora_int_id)
        except Exception:  # noqa: BLE001 - see above
            _log.exception("The adapter '%s' cannot be served: its requests end with an error.", request.lora_name)
            self._stand_in(request)
        if self.slots.residents[request.lora_int_id].broken:
            self.slots.failures += 1  # at each step, as long as there are such requests
            self.slots.changed = True

    def _stand_in(self, request: LoRARequest) -> None:
        """Put an adapter without weights in the place of one that cannot be had; its requests must fail."""
        slots = self.slots
        slots.remove_adapter(request.lora_int_id)
        slots.add_adapter(_without_weights(request.lora_int_id))
        slots.residents[request.lora_int_id].broken = True
        slots.activate_adapter(request.lora_int_id)

    # Wishes, between steps.

    def add_adapter(self, lora_request: LoRARequest) -> bool:
        """Load an adapter and give it a slot if one can be had: vLLM's own way in."""
        with self.wish(()):
            if lora_request.load_inplace:
                self.slots.remove_adapter(lora_request.lora_int_id)
                self._files.pop(lora_request.lora_int_id, None)
            try:
                self.to_host(lora_request)
                self.slots.activate_adapter(lora_request.lora_int_id)
            except Exception:
                self.slots.remove_adapter(lora_request.lora_int_id)
                raise
        return True

    def remove_adapter(self, adapter_id: int) -> bool:
        """Forget an adapter; whether there was one."""
        with self.wish(()):
            return bool(super().remove_adapter(adapter_id))

    def remove_all_adapters(self) -> None:
        """Forget every adapter, as vLLM does after its warm-up and when the base's weights are replaced."""
        with self.wish(()):
            super().remove_all_adapters()

    def pin_adapter(self, adapter_id: int) -> bool:
        """Keep an adapter in its slot."""
        with self.wish(()):
            return bool(super().pin_adapter(adapter_id))

    def retire(self, adapter_id: int) -> None:
        """Forget an adapter for good: also when a request that was already on its way brings it back."""
        self._retired.add(adapter_id)
        self.slots.remove_adapter(adapter_id)

    @contextlib.contextmanager
    def wish(self, busy: Collection[int]) -> Iterator[None]:
        """Between steps, change what is where.

        Args:
            busy: The adapters that requests use; they keep their slots.
        """
        self.slots.needed, self.slots.in_step = frozenset(busy), False
        try:
            yield
        finally:
            if self._retired:
                self._sweep()
            self.tell()

    def to_host(self, request: LoRARequest) -> None:
        """Have an adapter in host memory.

        Raises:
            ChangedError: Its files are not those that its id was given to.
            MatchesNothingError: None of its weights belongs to the model.
            Exception: What vLLM has against it.
        """
        adapter_id = request.lora_int_id
        self._requests[adapter_id] = request
        if adapter_id in self.slots.residents:
            self.slots._registered_adapters.touch(adapter_id)  # noqa: SLF001 - its order is the order of eviction
            return
        lora = self._load_adapter(request)
        self.slots.shrink_host(1)
        self.slots.add_adapter(lora)

    def _load_adapter(self, lora_request: LoRARequest) -> Any:  # noqa: ANN401 - vLLM's own
        files = fingerprint(lora_request.lora_path)
        if files != self._files.get(lora_request.lora_int_id, files):
            raise ChangedError(
                f"The files of the adapter '{lora_request.lora_name}' in {lora_request.lora_path} have changed since "
                "it was loaded; load it again with `replace`."
            )
        lora = super()._load_adapter(lora_request)
        own_tensors(lora)
        lora.tuneplex_counted = True
        self._files[lora_request.lora_int_id] = files
        return lora

    def _sweep(self) -> None:
        """Drop again what was retired, unless the batch computes with it."""
        for adapter_id in self._retired & self.slots.residents.keys() - self._batch:
            self.slots.remove_adapter(adapter_id)

    # What is told.

    def tell(self, used: Iterable[int] = ()) -> None:
        """Refresh the snapshot: all of it when something changed, else only who was used."""
        self.slots.clock.settle()
        if self.writer is None:
            return
        if self.slots.changed:
            self.writer.write(self.slots.state())
            self.slots.changed = False
        else:
            self.writer.touch(used, time.time())


def _shorten(layers: Iterable[Any]) -> None:
    """Let Python find a LoRA layer's base layer at once.

    vLLM's layers look it up eight times in each call, each time by way of their own `__getattr__`, which costs a step
    of a small model 2 to 4 %. Compiled models do not look anything up, and are left alone.
    """
    for layer in layers:
        if "base_layer" in layer._modules:  # noqa: SLF001 - torch's own place for it, which stays as it is
            vars(layer)["base_layer"] = layer._modules["base_layer"]  # noqa: SLF001 - the same


def tensors_of(weights: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - vLLM's own
    """The tensors of one module's weights."""
    for value in (weights.lora_a, weights.lora_b):
        yield from _flat(value)


def _flat(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _flat(part)


def own_tensors(lora: Any) -> None:  # noqa: ANN401 - vLLM's own
    """Copy what is mapped from a file, so that host memory holds the weights whatever becomes of the file."""
    for weights in lora.loras.values():
        for name in ("lora_a", "lora_b"):
            value = getattr(weights, name)
            # A mapped tensor is a part of the whole file's storage; one that was converted or pinned has its own.
            if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() != value.nbytes:
                setattr(weights, name, value.clone())


def fingerprint(path: str) -> tuple[tuple[str, int, int, int], ...]:
    """Name, size, time of change and inode of each file of an adapter; empty when there is none."""
    try:
        files = sorted(Path(get_adapter_absolute_path(path)).glob("adapter_*"))
        stats = [(file.name, file.stat()) for file in files]
    except (OSError, ValueError):  # also of a hub that is out of reach; vLLM, which asks next, has words for it
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)


def _without_weights(adapter_id: int) -> Any:  # noqa: ANN401 - vLLM's own
    """An adapter that changes nothing. vLLM looks at the first of its modules, so it has one, that no model has."""
    nothing = LoRALayerWeights("", 1, 1, torch.zeros(1, 1), torch.zeros(1, 1))
    lora = LoRAModel(adapter_id, 1, {"": nothing})
    lora.tuneplex_empty = True
    return lora


def _no_match(names: list[str]) -> str:
    first = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")  # noqa: PLR2004 - enough to see what is wrong
    return f"None of the adapter's {len(names)} modules is one of the model's: {first}"


def install() -> None:
    """Let every model runner of this process use `WorkerManager`; safe to call more than once."""
    from vllm.v1.worker import lora_model_runner_mixin  # noqa: PLC0415 - only where something is installed

    lora_model_runner_mixin.LRUCacheWorkerLoRAManager = WorkerManager
