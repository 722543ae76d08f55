"""The routes that the plugin tuneplex-vllm adds to vLLM, over the fake's adapters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from tuneplex.testing.adapters import Adapter, Adapters, Content
from tuneplex.testing.metrics import Meters
from tuneplex.testing.protocol import Refusal
from tuneplex.testing.scheduler import Scheduler
from tuneplex.testing.tiers import Tiers

__all__ = ["Plugin"]

_BYTES_PER_RANK = 1024
_TIERS = ("device", "host", "disk")


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `wake` and `resume`."""


class Named(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `prefetch`, `activate`, `pin` and `unpin`."""

    name: str


class Load(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `load`."""

    name: str
    path: str
    tier: Literal["device", "host"] = "device"
    replace: bool = False


class Unload(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `unload`."""

    name: str
    running: Literal["wait", "refuse"] = "wait"
    timeout_s: float = 60.0


class Sleep(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `sleep`."""

    level: int = 1


class Drain(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `drain`."""

    timeout_s: float = 60.0


class Plugin:
    """What `/v1/tuneplex` does.

    Args:
        adapters: What is loaded.
        tiers: Where it is.
        scheduler: Who uses it.
        meters: Count what happens.
    """

    plugin_version = "0.1.0"

    def __init__(self, adapters: Adapters, tiers: Tiers, scheduler: Scheduler, meters: Meters) -> None:
        self._adapters = adapters
        self._tiers = tiers
        self._scheduler = scheduler
        self._meters = meters

    @property
    def posts(self) -> Mapping[str, tuple[type[msgspec.Struct], Callable[[Any], Awaitable[Any]]]]:
        """By the last part of the path: what the body is, and what answers it."""
        return {
            "load": (Load, self._load),
            "prefetch": (Named, self._prefetch),
            "activate": (Named, self._activate),
            "pin": (Named, self._pin),
            "unpin": (Named, self._unpin),
            "unload": (Unload, self._unload),
            "sleep": (Sleep, self._sleep),
            "wake": (Nothing, self._sleep),
            "drain": (Drain, self._drain),
            "resume": (Nothing, self._resume),
        }

    def listing(self, vllm: str) -> dict[str, Any]:
        """The answer of `GET /v1/tuneplex/adapters`."""
        tiers, now, meters = self._tiers, self._scheduler, self._meters
        return {
            "plugin": self.plugin_version,
            "vllm": vllm,
            "slots": tiers.slots,
            "slots_used": tiers.slots_used,
            "host_capacity": tiers.host_capacity,
            "host_used": tiers.host_used,
            "slot_bytes": self._adapters.max_rank * _BYTES_PER_RANK,
            "max_rank": self._adapters.max_rank,
            "kv": {"tokens": now.kv_tokens, "use": now.kv_use},
            "requests": {"running": now.running, "waiting": now.waiting},
            "tokens": {"prompt": meters.prompt_tokens, "generation": meters.generation_tokens},
            "activations": {
                "count": tiers.activations,
                "seconds": tiers.activation_s,
                "bytes": tiers.activation_bytes,
            },
            "age_s": 0.0,
            "adapters": [self._entry(adapter) for adapter in self._adapters],
        }

    def metrics(self) -> str:
        """What it adds to the engine's `/metrics`."""
        tiers = self._tiers
        counts = Counter(tiers.tier(adapter.name) for adapter in self._adapters)
        took = {"_count": tiers.activations, "_sum": tiers.activation_s}
        return "".join(
            (
                _series("adapter_slots", "gauge", {"": tiers.slots}),
                _series("adapter_slots_used", "gauge", {"": tiers.slots_used}),
                _series("adapters", "gauge", {f'{{tier="{tier}"}}': counts[tier] for tier in _TIERS}),
                _series("adapter_activation_seconds", "summary", took),
                _series("adapter_activation_bytes_total", "counter", {"": tiers.activation_bytes}),
            )
        )

    async def idle(self, name: str, timeout_s: float = 60.0) -> bool:
        """Wait until no request uses an adapter; whether that came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._scheduler.until(lambda: not any(self._scheduler.uses(name)))
        except TimeoutError:
            return False
        return True

    def _entry(self, adapter: Adapter) -> dict[str, Any]:
        name, tiers = adapter.name, self._tiers
        running, waiting = self._scheduler.uses(name)
        took_s = tiers.took_s(name)
        return {
            "name": name,
            "id": adapter.id,
            "path": adapter.path,
            "rank": adapter.rank,
            "bytes": adapter.size,
            "tier": tiers.tier(name),
            "slot": tiers.slot(name),
            "pinned": name in tiers.pins,
            "last_used": tiers.used_at(name),
            "running": running,
            "waiting": waiting,
            "activation_ms": None if took_s is None else took_s * 1000,
        }

    def _known(self, name: str) -> Adapter:
        adapter = self._adapters.get(name)
        if adapter is None:
            words = f"The adapter '{name}' is not loaded."
            raise Refusal(words, status=404, kind="NotFoundError", param="name", code="adapter_not_found")
        return adapter

    async def _load(self, body: Load) -> dict[str, Any]:
        known = self._adapters.get(body.name)
        content = self._read(body)
        if known is not None and (known.weights, known.path) != (content.weights, body.path) and not body.replace:
            words = f"The adapter '{body.name}' is loaded with other weights; `replace` replaces them."
            raise Refusal(words, status=409, kind="ConflictError", param="name", code="adapter_exists")
        if known is None or known.weights != content.weights or known.path != body.path:
            self._adapters.put(body.name, content.weights, body.path, rank=content.rank, size=content.size)
        return await (self._activate if body.tier == "device" else self._prefetch)(Named(body.name))

    def _read(self, body: Load) -> Content:
        if not body.name or body.name in self._adapters.base:
            raise Refusal(f"An adapter cannot be called '{body.name}'.", param="name", code="adapter_invalid")
        content = Content.read(Path(body.path))
        if content is None:
            words = f"No adapter found at {body.path}"
            raise Refusal(words, status=404, kind="NotFoundError", param="path", code="adapter_not_found")
        if content.rank > self._adapters.max_rank:
            words = f"LoRA rank {content.rank} is greater than max_lora_rank {self._adapters.max_rank}."
            raise Refusal(words, param="path", code="adapter_invalid")
        if not content.fits:
            words = f"The model has none of the adapter's modules: {', '.join(content.modules[:3])}"
            raise Refusal(words, param="path", code="adapter_matches_nothing")
        return content

    async def _prefetch(self, body: Named) -> dict[str, Any]:
        adapter = self._known(body.name)
        self._tiers.to_host(adapter.name, adapter.size, self._scheduler.running_adapters)
        return self._entry(adapter)

    async def _activate(self, body: Named) -> dict[str, Any]:
        adapter = self._known(body.name)
        self._tiers.to_device(adapter.name, adapter.size, self._scheduler.running_adapters)
        return self._entry(adapter)

    async def _pin(self, body: Named) -> dict[str, Any]:
        self._known(body.name)
        if not self._tiers.pin(body.name):
            words = f"With '{body.name}', all {self._tiers.slots} slots would be pinned and no other adapter served."
            raise Refusal(words, status=409, kind="ConflictError", param="name", code="last_slot")
        return await self._activate(body)

    async def _unpin(self, body: Named) -> dict[str, Any]:
        adapter = self._known(body.name)
        self._tiers.unpin(body.name)
        return self._entry(adapter)

    async def _unload(self, body: Unload) -> dict[str, Any]:
        self._known(body.name)
        running, waiting = self._scheduler.uses(body.name)
        if running + waiting and body.running == "refuse":
            words = f"The adapter '{body.name}' has {running} running and {waiting} waiting requests."
            raise Refusal(words, status=409, kind="ConflictError", param="name", code="adapter_busy")
        if not await self.idle(body.name, body.timeout_s):
            words = f"The requests of '{body.name}' did not end within {body.timeout_s:g} s."
            raise Refusal(words, status=504, kind="TimeoutError", param="timeout_s", code="unload_timeout")
        self._adapters.drop(body.name)
        return {"name": body.name, "unloaded": True}

    async def _sleep(self, body: Sleep | Nothing) -> None:
        del body
        words = "The cpu platform cannot sleep."
        raise Refusal(words, status=501, kind="NotImplementedError", code="not_supported")

    async def _drain(self, body: Drain) -> dict[str, Any]:
        self._scheduler.hold(held=True)
        began = time.monotonic()
        try:
            async with asyncio.timeout(body.timeout_s):
                await self._scheduler.until(lambda: not self._scheduler.running)
        except TimeoutError:
            self._scheduler.hold(held=False)
            words = f"Running requests did not end within {body.timeout_s:g} s."
            raise Refusal(words, status=504, kind="TimeoutError", param="timeout_s", code="drain_timeout") from None
        return {"drained": True, "seconds": time.monotonic() - began}

    async def _resume(self, body: Nothing) -> dict[str, Any]:
        del body
        self._scheduler.hold(held=False)
        return {"resumed": True}


def _series(name: str, kind: str, values: Mapping[str, float]) -> str:
    lines = (f"tuneplex:{name}{rest} {float(value)}" for rest, value in values.items())
    return "\n".join((f"# TYPE tuneplex:{name} {kind}", *lines)) + "\n"
