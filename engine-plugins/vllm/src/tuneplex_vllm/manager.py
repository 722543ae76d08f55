"""What vLLM's model runners ask for adapters: its own manager, made to outlive whatever goes wrong with one of them.

vLLM's scheduler lets as many adapters into a step as there are slots, and knows nothing of pins. Nothing here that goes
wrong with one adapter ends the step, which would end the engine; and the API server is told where every adapter is.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

from tuneplex_vllm.contents import fingerprint, own_tensors, without_weights
from tuneplex_vllm.slots import SlotManager
from tuneplex_vllm.snapshot import Writer, place

__all__ = ["ChangedError", "WorkerManager", "install"]

_FEW = 16

_log = logging.getLogger("vllm.tuneplex")


class ChangedError(ValueError):
    """An adapter's files are not those that its id was given to."""


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
        slots.add_adapter(without_weights(request.lora_int_id))
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


def install() -> None:
    """Let every model runner of this process use `WorkerManager`; safe to call more than once."""
    from vllm.v1.worker import lora_model_runner_mixin  # noqa: PLC0415 - only where something is installed

    lora_model_runner_mixin.LRUCacheWorkerLoRAManager = WorkerManager
