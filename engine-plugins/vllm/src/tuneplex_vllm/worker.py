"""What the API server can ask of a worker: methods that `collective_rpc` calls by name.

They never raise, because vLLM turns an exception in a worker into a message without a kind. They answer plain values,
which is all that travels between vLLM's processes without being pickled.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from vllm.exceptions import LoRAAdapterNotFoundError
from vllm.lora.request import LoRARequest
from vllm.v1.worker.worker_base import WorkerBase

from tuneplex_vllm.manager import WorkerManager
from tuneplex_vllm.slots import LastSlotError, MatchesNothingError, NoSlotError
from tuneplex_vllm.snapshot import encode

__all__ = ["install", "tuneplex_adapter", "tuneplex_state"]

_log = logging.getLogger("vllm.tuneplex")


def tuneplex_adapter(self: Any, wish: str, adapter: Mapping[str, Any], busy: list[int]) -> dict[str, Any]:  # noqa: ANN401
    """Do something with one adapter.

    Args:
        self: The worker.
        wish: One of `load`, `prefetch`, `activate`, `pin`, `unpin`, `retire`.
        adapter: The fields of its `LoRARequest`.
        busy: The engine's ids of the adapters that requests use.

    Returns:
        `{"applied": n}`, how many of this worker's modules the adapter has weights for, or `{"error", "message"}`.
    """
    manager = _manager(self)
    if manager is None:
        return {"error": "not_supported", "message": "LoRA is not enabled (--enable-lora)."}
    request = LoRARequest(**adapter)
    try:
        with manager.wish(busy):
            _WISHES[wish](manager, request)
            manager.slots.bring_back()
    except Exception as error:  # noqa: BLE001 - whatever vLLM has against an adapter is told to whoever wished for it
        return {"error": _code(error), "message": str(error) or repr(error)}
    finally:
        if wish == "retire":
            _give_back_memory()
    resident = manager.slots.residents.get(request.lora_int_id)
    return {"applied": 0 if resident is None else resident.applied}


def tuneplex_state(self: Any) -> bytes | None:  # noqa: ANN401
    """The snapshot, for an API server that cannot read it; None without LoRA."""
    manager = _manager(self)
    return None if manager is None else bytes(encode(manager.slots.state()))


def install() -> None:
    """Add the methods to every worker of this process; safe to call more than once."""
    WorkerBase.tuneplex_adapter = tuneplex_adapter
    WorkerBase.tuneplex_state = tuneplex_state


def _manager(worker: Any) -> WorkerManager | None:  # noqa: ANN401 - vLLM's own
    return getattr(worker.model_runner, "lora_manager", None)


def _load(manager: WorkerManager, request: LoRARequest) -> None:
    """Have it in host memory, and know that it can have a slot: only filling one shows whether its shapes fit."""
    try:
        manager.to_host(request)
        _activate_if_possible(manager, request)
    except Exception:
        manager.slots.remove_adapter(request.lora_int_id)
        raise


def _activate_if_possible(manager: WorkerManager, request: LoRARequest) -> None:
    try:
        manager.slots.activate_adapter(request.lora_int_id)
    except NoSlotError as error:
        _log.info("The adapter '%s' stays in host memory: %s", request.lora_name, error)


def _prefetch(manager: WorkerManager, request: LoRARequest) -> None:
    manager.to_host(request)


def _activate(manager: WorkerManager, request: LoRARequest) -> None:
    manager.to_host(request)
    manager.slots.activate_adapter(request.lora_int_id)


def _pin(manager: WorkerManager, request: LoRARequest) -> None:
    manager.to_host(request)
    manager.slots.pin_adapter(request.lora_int_id)


def _unpin(manager: WorkerManager, request: LoRARequest) -> None:
    manager.slots.unpin_adapter(request.lora_int_id)


def _retire(manager: WorkerManager, request: LoRARequest) -> None:
    manager.retire(request.lora_int_id)


_WISHES: dict[str, Callable[[WorkerManager, LoRARequest], None]] = {
    "load": _load,
    "prefetch": _prefetch,
    "activate": _activate,
    "pin": _pin,
    "unpin": _unpin,
    "retire": _retire,
}

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (LoRAAdapterNotFoundError, "adapter_not_found"),
    (MatchesNothingError, "adapter_matches_nothing"),
    (LastSlotError, "last_slot"),
    (NoSlotError, "slots_busy"),
)


def _code(error: Exception) -> str:
    return next((code for kind, code in _CODES if isinstance(error, kind)), "adapter_invalid")


def _give_back_memory() -> None:
    """Let glibc return what was freed to the system; others do so by themselves, or not at all."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
