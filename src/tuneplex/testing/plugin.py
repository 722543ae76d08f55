"""The routes that the plugin tuneplex-vllm adds to vLLM, over the fake's adapters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tuneplex.testing.adapters import Adapters, Content, LoadRequest, added, not_there
from tuneplex.testing.metrics import Meters
from tuneplex.testing.protocol import Refusal
from tuneplex.testing.scheduler import Scheduler
from tuneplex.testing.tiers import Adapter, Tiers

__all__ = ["Plugin"]

_BYTES_PER_RANK = 1024
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_TIERS = ("device", "host", "disk")


class Named(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `prefetch`, `activate`, `pin` and `unpin`."""

    name: str


class Load(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `load`."""

    name: str
    path: Annotated[str, msgspec.Meta(min_length=1)]
    tier: Literal["device", "host"] = "device"
    replace: bool = False


class Unload(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `unload`."""

    name: str
    running: Literal["wait", "refuse"] = "wait"
    timeout_s: _Seconds = 60.0


class Sleep(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `sleep`."""

    level: Literal[1] = 1


class Drain(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `drain`."""

    timeout_s: _Seconds = 60.0


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
        self._leaving: list[Adapter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def posts(self) -> Mapping[str, tuple[type[msgspec.Struct] | None, Callable[[Any], Awaitable[Any]]]]:
        """By the last part of the path: what the body is, if one is read, and what answers it.

        A body may be left out where all of its fields may be.
        """
        return {
            "load": (Load, self._load),
            "prefetch": (Named, self._prefetch),
            "activate": (Named, self._activate),
            "pin": (Named, self._pin),
            "unpin": (Named, self._unpin),
            "unload": (Unload, self._unload),
            "sleep": (Sleep, self._sleep),
            "wake": (None, self._sleep),
            "drain": (Drain, self._drain),
            "resume": (None, self._resume),
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
            "activations": asdict(tiers.activations),
            "age_s": 0.0,
            "kv": {"tokens": now.kv_tokens, "use": now.kv_use},
            "requests": {"running": now.running, "waiting": now.waiting},
            "tokens": {"prompt": meters.prompt_tokens, "generation": meters.generation_tokens},
            "adapters": [self._entry(adapter) for adapter in (*self._leaving, *self._adapters)],
        }

    def metrics(self) -> str:
        """What it adds to the engine's `/metrics`."""
        tiers = self._tiers
        counts = Counter(tiers.tier(adapter) for adapter in self._adapters)
        took = {"_count": tiers.activations.count, "_sum": tiers.activations.seconds}
        return "".join(
            (
                _series("adapter_slots", "gauge", {"": tiers.slots}),
                _series("adapter_slots_used", "gauge", {"": tiers.slots_used}),
                _series("adapters", "gauge", {f'{{tier="{tier}"}}': counts[tier] for tier in _TIERS}),
                _series("adapter_activation_seconds", "summary", took),
                _series("adapter_activation_bytes_total", "counter", {"": tiers.activations.bytes}),
            )
        )

    def load_for_vllm(self, request: LoadRequest) -> str:
        """Answer vLLM's own route for loading.

        Raises:
            Refusal: In vLLM's words where it has some.
        """
        self._adapters.check_load(request)
        content = Content.read(Path(request.lora_path))
        if content is None:
            raise not_there(request)
        if content.rank > self._adapters.max_rank:
            raise Refusal(self._too_large(content), status=500, kind="InternalServerError")
        if not content.fits:
            raise Refusal(_unmatched(content))
        self._replace(Load(request.lora_name, request.lora_path), content)
        return added(request)

    def let_go(self, adapter: Adapter) -> None:
        """Drop an adapter's weights when no request uses them."""
        if adapter not in self._scheduler.asked_for:
            self._tiers.drop(adapter)
            return
        task = asyncio.create_task(self._let_go_later(adapter))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_go_later(self, adapter: Adapter) -> None:
        await self._scheduler.until(lambda: adapter not in self._scheduler.asked_for)
        self._tiers.drop(adapter)

    def _entry(self, adapter: Adapter) -> dict[str, Any]:
        tiers = self._tiers
        running, waiting = self._scheduler.uses(adapter)
        took_s = tiers.took_s(adapter)
        return {
            "name": adapter.name,
            "id": adapter.id,
            "path": adapter.path,
            "rank": adapter.rank,
            "bytes": adapter.size,
            "tier": tiers.tier(adapter),
            "slot": tiers.slot(adapter),
            "pinned": adapter.id in tiers.pins,
            "last_used": tiers.used_at(adapter),
            "running": running,
            "waiting": waiting,
            "activation_ms": None if took_s is None else took_s * 1000,
        }

    @property
    def _needed(self) -> set[int]:
        return {adapter.id for adapter in self._scheduler.asked_for}

    def _known(self, name: str) -> Adapter:
        adapter = self._adapters.get(name)
        if adapter is None:
            raise _refused(404, "adapter_not_found", f"The adapter '{name}' is not loaded.")
        return adapter

    async def _load(self, body: Load) -> dict[str, Any]:
        content = self._read(body)
        known = self._adapters.get(body.name)
        if known is not None and (known.path, known.weights) == (body.path, content.weights):
            return self._entry(self._placed(known, body.tier))
        if known is not None and not body.replace:
            what = f"from {known.path}" if known.path != body.path else "with other contents"
            words = f"The adapter '{body.name}' is loaded {what}; `replace` replaces it."
            raise _refused(409, "adapter_exists", words)
        if content.rank > self._adapters.max_rank:
            raise _refused(400, "adapter_invalid", self._too_large(content), "path")
        if not content.fits:
            raise _refused(400, "adapter_matches_nothing", _unmatched(content), "path")
        return self._entry(self._replace(body, content))

    def _read(self, body: Load) -> Content:
        if not body.name:
            raise _refused(400, "adapter_invalid", "An adapter needs a name.")
        if body.name in self._adapters.base:
            raise _refused(400, "adapter_invalid", f"An adapter cannot be called '{body.name}': that is the base.")
        content = Content.read(Path(body.path))
        if content is None:
            raise _refused(404, "adapter_not_found", f"No adapter found at {body.path}.", "path")
        return content

    def _replace(self, body: Load, content: Content) -> Adapter:
        """Load under a name that may be taken; requests under way go on with what they began with."""
        before = self._adapters.get(body.name)
        adapter = self._placed(self._adapters.make(body.name, content, body.path), body.tier)
        self._adapters.show(adapter)
        if before is not None:
            self.let_go(before)
        return adapter

    def _placed(self, adapter: Adapter, tier: str) -> Adapter:
        """Have it where it should be; without a slot to have, it stays on the host."""
        (self._tiers.to_device if tier == "device" else self._tiers.to_host)(adapter, self._needed)
        return adapter

    def _too_large(self, content: Content) -> str:
        return f"LoRA rank {content.rank} is greater than max_lora_rank {self._adapters.max_rank}."

    async def _prefetch(self, body: Named) -> dict[str, Any]:
        return self._entry(self._placed(self._known(body.name), "host"))

    async def _activate(self, body: Named) -> dict[str, Any]:
        adapter = self._known(body.name)
        if not self._tiers.to_device(adapter, self._needed):
            words = f"All {self._tiers.slots} slots are pinned or used by running requests."
            raise _refused(409, "slots_busy", words)
        return self._entry(adapter)

    async def _pin(self, body: Named) -> dict[str, Any]:
        adapter = self._known(body.name)
        if not self._tiers.pin(adapter, self._needed):
            pinned = f"{len(self._tiers.pins)} of {self._tiers.slots} slots are pinned"
            raise _refused(409, "last_slot", f"{pinned}; the last one must stay for other adapters.")
        return self._entry(adapter)

    async def _unpin(self, body: Named) -> dict[str, Any]:
        adapter = self._known(body.name)
        self._tiers.unpin(adapter)
        return self._entry(adapter)

    async def _unload(self, body: Unload) -> dict[str, Any]:
        adapter = self._known(body.name)
        if body.running == "refuse" and self._uses_name(body.name):
            words = f"The adapter '{body.name}' has requests that have not ended."
            raise _refused(409, "adapter_busy", words)
        self._leaving.append(self._adapters.hide(body.name))
        try:
            async with asyncio.timeout(body.timeout_s):
                await self._scheduler.until(lambda: not self._uses_name(body.name))
        except BaseException as error:
            self._adapters.show(adapter)
            if not isinstance(error, TimeoutError):
                raise
            words = f"The requests of '{body.name}' did not end within {body.timeout_s:g} s."
            raise _refused(504, "unload_timeout", words, "timeout_s") from None
        finally:
            self._leaving.remove(adapter)
        self._tiers.drop(adapter)
        return {"name": body.name, "unloaded": True}

    def _uses_name(self, name: str) -> bool:
        return any(adapter.name == name for adapter in self._scheduler.asked_for)

    async def _sleep(self, body: object) -> None:
        del body
        raise _refused(501, "not_supported", "The cpu platform cannot sleep.", None)

    async def _drain(self, body: Drain) -> dict[str, Any]:
        began = time.monotonic()
        self._scheduler.hold(held=True)
        try:
            async with asyncio.timeout(body.timeout_s):
                await self._scheduler.until(lambda: not self._scheduler.running)
        except TimeoutError:
            self._scheduler.hold(held=False)
            words = f"Running requests did not end within {body.timeout_s:g} s; new ones are let in again."
            raise _refused(504, "drain_timeout", words, "timeout_s") from None
        return {"drained": True, "seconds": time.monotonic() - began}

    async def _resume(self, body: object) -> dict[str, Any]:
        del body
        self._scheduler.hold(held=False)
        return {"resumed": True}


def _refused(status: int, code: str, words: str, param: str | None = "name") -> Refusal:
    kind = HTTPStatus(status).phrase.replace(" ", "") + "Error"
    return Refusal(words, status=status, kind=kind, param=param, code=code)


def _unmatched(content: Content) -> str:
    names = content.modules
    first = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")  # noqa: PLR2004 - as many as the plugin names
    return f"None of the adapter's {len(names)} modules is one of the model's: {first}"


def _series(name: str, kind: str, values: Mapping[str, float]) -> str:
    lines = (f"tuneplex:{name}{rest} {float(value)}" for rest, value in values.items())
    return "\n".join((f"# TYPE tuneplex:{name} {kind}", *lines)) + "\n"
