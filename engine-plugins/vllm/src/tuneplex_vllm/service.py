"""What the routes do, in the API server: names, contents and requests here, the rest by asking the workers."""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, TypeAlias

from vllm.lora.request import LoRARequest
from vllm.lora.utils import get_adapter_absolute_path
from vllm.platforms import current_platform

from tuneplex_vllm import __version__, stats
from tuneplex_vllm.bodies import Counts, Known, Paths, RefusedError, counts_of, digest_of, entry, totals
from tuneplex_vllm.snapshot import Reader, Row, State, decode, place

__all__ = ["Service"]

Wish: TypeAlias = "Literal['load', 'prefetch', 'activate', 'pin', 'unpin', 'retire']"

_LOOK_S = 0.01  # how often requests that must end are looked at
_LATE_S = 1.0  # longer than a request takes from its name to the engine

_STATUS = {
    "adapter_not_found": HTTPStatus.NOT_FOUND,
    "last_slot": HTTPStatus.CONFLICT,
    "slots_busy": HTTPStatus.CONFLICT,
    "not_supported": HTTPStatus.NOT_IMPLEMENTED,
}
_PARAM = {"adapter_not_found": "path", "adapter_invalid": "path", "adapter_matches_nothing": "path"}

_log = logging.getLogger("vllm.tuneplex")


@dataclass(frozen=True)
class Loaded:
    """Where an adapter came from: the path as it was given, and the SHA-256 of what was there."""

    path: str
    digest: str


class Service:
    """One engine's adapters.

    Args:
        engine: vLLM's engine client.
        models: vLLM's list of served models; the names of adapters are kept there and nowhere else.
        version: vLLM's.
    """

    def __init__(self, engine: Any, models: Any, version: str) -> None:  # noqa: ANN401 - vLLM's own
        self._engine = engine
        self._models = models
        self._version = version
        self._instance: str = engine.vllm_config.instance_id
        self._reader = Reader(place(self._instance))
        self._loaded: dict[int, Loaded] = {}
        self._paths = Paths()
        self._leaving: dict[str, LoRARequest] = {}
        self._rows: dict[int, Row] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0

    async def start(self) -> None:
        """Learn what was loaded before there were routes, and watch the engine's steps."""
        for request in self._models.lora_requests.values():
            _, digest = await asyncio.to_thread(_look, request.lora_path)
            self._learn(request, digest or "")
        stats.listen(self._instance, self._after_step)
        atexit.register(self._reader.forget)

    # The list.

    async def listing(self) -> dict[str, Any]:
        """The list of adapters with its totals."""
        state = await self._state()
        rows, counts = _by_id(state), self._counts()
        figures = stats.figures_of(self._instance)
        requests = self._leaving | self._models.lora_requests
        return {
            "plugin": __version__,
            "vllm": self._version,
            **totals(state, time.monotonic()),
            "kv": {"tokens": self._kv_tokens(), "use": figures.kv_use},
            "requests": {"running": figures.running, "waiting": figures.waiting},
            "tokens": {"prompt": figures.prompt_tokens, "generation": figures.generation_tokens},
            "adapters": [self._entry(request, rows, counts) for request in requests.values()],
        }

    def newest(self) -> tuple[State | None, int]:
        """The newest snapshot, without asking anybody, and how many adapters have a name."""
        return self._reader.read(), len(self._models.lora_requests)

    async def _state(self) -> State | None:
        state = self._reader.read()
        if state is None and self._engine.vllm_config.lora_config is not None:
            body = (await self._engine.collective_rpc("tuneplex_state"))[0]
            state = None if body is None else decode(body)
        return state

    def _kv_tokens(self) -> int | None:
        cache = self._engine.vllm_config.cache_config
        return cache.num_gpu_blocks * cache.block_size if cache.num_gpu_blocks else None

    def _entry(
        self, request: LoRARequest, rows: Mapping[int, Row] | None, counts: Mapping[int, Counts]
    ) -> dict[str, Any]:
        adapter = request.lora_int_id
        row = None if rows is None else rows.get(adapter)
        if row is not None:
            self._rows[adapter] = row
        loaded = self._loaded.get(adapter)
        known = Known(request.lora_name, adapter, request.lora_path if loaded is None else loaded.path)
        return entry(known, row, self._rows.get(adapter), counts.get(adapter, (0, 0)), told=rows is not None)

    async def _now(self, request: LoRARequest) -> dict[str, Any]:
        return self._entry(request, _by_id(await self._state()), self._counts())

    # Requests under way.

    def _counts(self) -> dict[int, Counts]:
        processor = self._engine.output_processor
        running = processor.lora_states.requests
        return counts_of(
            (state.lora_request.lora_int_id, state.lora_name in running and name in running[state.lora_name].running)
            for name, state in processor.request_states.items()
            if state.lora_request is not None
        )

    async def _ended(self, ids: set[int], timeout_s: float) -> bool:
        """Wait until no request uses any of these; whether that came in time."""
        deadline = time.monotonic() + timeout_s
        while ids & self._counts().keys():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    # Loading.

    async def load(
        self, name: str, path: str, tier: str = "device", *, replace_it: bool = False, fused_experts: bool = False
    ) -> dict[str, Any]:
        """Serve an adapter under a name; its entry.

        Raises:
            RefusedError: Why not.
        """
        self._check_name(name)
        async with self._locks[name], self._models.lora_resolver_lock[name]:
            place, digest = await self._find(path)
            current = self._models.lora_requests.get(name)
            if current is not None:
                known = self._loaded.get(current.lora_int_id) or self._learn(current, "")
                if known == Loaded(path, digest):
                    return await self._wish("activate" if tier == "device" else "prefetch", current, lenient=True)
                if not replace_it:
                    raise _exists(name, known, path)
            adapter = self._models.lora_id_counter.inc(1)
            self._loaded[adapter] = Loaded(path, digest)
            place = self._paths.of(name, place, digest)
            request = LoRARequest(name, adapter, place, is_3d_lora_weight=fused_experts)
            return await self._load(request, tier, current)

    async def _load(self, request: LoRARequest, tier: str, current: LoRARequest | None) -> dict[str, Any]:
        try:
            await self._wish("load" if tier == "device" else "prefetch", request)
        except RefusedError:
            await self._retire(request)
            raise
        self._models.lora_requests[request.lora_name] = request
        if current is not None:
            await self.let_go(current)
        return await self._now(request)

    def _check_name(self, name: str) -> None:
        if not name or self._models.is_base_model(name):
            words = f"An adapter cannot be called '{name}': that is the base." if name else "An adapter needs a name."
            raise RefusedError(HTTPStatus.BAD_REQUEST, "adapter_invalid", words, "name")
        if self._engine.vllm_config.lora_config is None:
            raise RefusedError(
                HTTPStatus.NOT_IMPLEMENTED, "not_supported", "LoRA is not enabled: the engine lacks --enable-lora."
            )

    async def _find(self, path: str) -> tuple[str, str]:
        """Where the engine shall read an adapter, and the SHA-256 of what is there."""
        place, digest = await asyncio.to_thread(_look, path)
        if digest is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "adapter_not_found", f"No adapter found at {path}.", "path")
        return place, digest

    def _learn(self, request: LoRARequest, digest: str) -> Loaded:
        """Note where an adapter came from that was not loaded here; without a digest its content is not known."""
        known = self._loaded[request.lora_int_id] = Loaded(request.lora_path, digest)
        self._paths.of(request.lora_name, request.lora_path, digest)
        return known

    # Moving.

    async def move(self, wish: Wish, name: str) -> dict[str, Any]:
        """Prefetch, activate, pin or unpin an adapter; its entry."""
        async with self._locks[name]:
            return await self._wish(wish, self._named(name))

    def _named(self, name: str) -> LoRARequest:
        request: LoRARequest | None = self._models.lora_requests.get(name)
        if request is None:
            words = f"The adapter '{name}' is not loaded."
            raise RefusedError(HTTPStatus.NOT_FOUND, "adapter_not_found", words, "name")
        return request

    async def _wish(self, wish: Wish, request: LoRARequest, *, lenient: bool = False) -> dict[str, Any]:
        """Ask all workers; what one of them has against it is raised."""
        fields = {
            "lora_name": request.lora_name,
            "lora_int_id": request.lora_int_id,
            "lora_path": request.lora_path,
            "is_3d_lora_weight": request.is_3d_lora_weight,
        }
        answers = await self._engine.collective_rpc("tuneplex_adapter", args=(wish, fields, [*self._counts()]))
        for answer in answers:
            if "error" in answer and not (lenient and answer["error"] == "slots_busy"):
                raise _refused(answer["error"], answer["message"], self._shown(request))
        if wish in {"load", "prefetch"} and not any(answer.get("applied") for answer in answers):
            words = "None of the adapter's modules is one of the model's, on any of the workers."
            raise _refused("adapter_matches_nothing", words, self._shown(request))
        return await self._now(request)

    def _shown(self, request: LoRARequest) -> tuple[str, str]:
        """The path in the engine's words, and as it was given."""
        loaded = self._loaded.get(request.lora_int_id)
        return request.lora_path, request.lora_path if loaded is None else loaded.path

    # Unloading.

    async def unload(self, name: str, running: str, timeout_s: float) -> dict[str, Any]:
        """Forget an adapter: its name at once, so that no request is added, the rest when its requests ended.

        Raises:
            RefusedError: It has requests that were not to be waited for, or that did not end in time. It is as before.
        """
        async with self._locks[name]:
            request = self._named(name)
            ids = self._ids_of(name) | {request.lora_int_id}
            if running == "refuse" and ids & self._counts().keys():
                words = f"The adapter '{name}' has requests that have not ended."
                raise RefusedError(HTTPStatus.CONFLICT, "adapter_busy", words, "name")
            ended = False
            self._leaving[name] = self._models.lora_requests.pop(name)
            try:
                ended = await self._ended(ids, timeout_s)
            finally:
                left = self._leaving.pop(name)
                if not ended:
                    self._models.lora_requests[name] = left
            if not ended:
                words = f"The requests of '{name}' did not end within {timeout_s:g} s."
                raise RefusedError(HTTPStatus.GATEWAY_TIMEOUT, "unload_timeout", words, "timeout_s")
            await self.let_go(request)
        return {"name": name, "unloaded": True}

    def _ids_of(self, name: str) -> set[int]:
        """The ids under which requests for a name are under way: more than one while its weights are replaced."""
        states = self._engine.output_processor.request_states.values()
        return {state.lora_request.lora_int_id for state in states if state.lora_name == name}

    async def let_go(self, request: LoRARequest) -> None:
        """Drop an adapter's weights as soon as no request uses them: before this returns, if none does now."""
        used = request.lora_int_id in self._counts()
        if not used:
            await self._retire(request)
        self._later(self._see_it_go(request, retired=not used))

    async def _see_it_go(self, request: LoRARequest, *, retired: bool) -> None:
        """Retire it when its requests ended, and again if one that had found its name before comes in late."""
        adapter, gone = request.lora_int_id, False
        while not gone:
            if not retired:
                await self._ended({adapter}, math.inf)
                await self._retire(request)
            await asyncio.sleep(_LATE_S)
            retired = gone = adapter not in {row.id for row in self._rows_now()}

    def _rows_now(self) -> tuple[Row, ...]:
        state = self._reader.read()
        return () if state is None else state.rows

    async def _retire(self, request: LoRARequest) -> None:
        self._loaded.pop(request.lora_int_id, None)
        self._rows.pop(request.lora_int_id, None)
        await self._wish("retire", request)

    def _later(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Weights that were lost.

    def _after_step(self) -> None:
        """End the requests of an adapter that the worker could not read again, before its first token is passed on."""
        failures = self._reader.failures()
        if failures == self._failures:
            return
        self._failures = failures
        for row in self._rows_now():
            if row.broken:
                self._end_requests(row.id)

    def _end_requests(self, adapter: int) -> None:
        from vllm.exceptions import GracefulHTTPError  # noqa: PLC0415 - rarely needed

        states = self._engine.output_processor.request_states
        ended = {name: state for name, state in states.items() if _uses(state, adapter)}
        for state in ended.values():
            words = f"The weights of '{state.lora_name}' cannot be read any more; load it again."
            state.queue.put(GracefulHTTPError(words, HTTPStatus.SERVICE_UNAVAILABLE))
        for name, request in [*self._models.lora_requests.items()]:
            if request.lora_int_id == adapter:
                _log.error("The adapter '%s' is unloaded: its weights cannot be read any more.", name)
                del self._models.lora_requests[name]
                self._later(self.let_go(request))
        if ended:
            self._later(self._engine.abort([*ended], internal=True))

    # Sleep and drain.

    async def sleep(self, level: int) -> dict[str, Any]:
        """Wait for running requests, then free the device's memory; requests that come meanwhile wait."""
        self._can_sleep()
        await self._engine.sleep(level, mode="wait")
        return {"asleep": True, "level": level}

    async def wake(self) -> dict[str, Any]:
        """Be as before."""
        self._can_sleep()
        await self._engine.wake_up()
        return {"asleep": False}

    def _can_sleep(self) -> None:
        if not current_platform.is_sleep_mode_available():
            words = f"The {current_platform.device_type} platform cannot sleep."
        elif not self._engine.vllm_config.model_config.enable_sleep_mode:
            words = "The engine was started without --enable-sleep-mode."
        else:
            return
        raise RefusedError(HTTPStatus.NOT_IMPLEMENTED, "not_supported", words)

    async def drain(self, timeout_s: float) -> dict[str, Any]:
        """Hold new requests and wait for running ones; the cache stays.

        Raises:
            RefusedError: They did not end in time. New ones are let in again.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                await self._engine.pause_generation(mode="wait", clear_cache=False)
        except TimeoutError:
            await self._engine.resume_generation()
            words = f"Running requests did not end within {timeout_s:g} s; new ones are let in again."
            raise RefusedError(HTTPStatus.GATEWAY_TIMEOUT, "drain_timeout", words, "timeout_s") from None
        return {"drained": True, "seconds": time.monotonic() - began}

    async def resume(self) -> dict[str, Any]:
        """Let requests in again."""
        await self._engine.resume_generation()
        return {"resumed": True}


def _look(path: str) -> tuple[str, str | None]:
    """A directory of this machine as it was named, or where a name on a hub was fetched to; and the digest, if any."""
    here = Path(path).expanduser().is_dir()
    try:
        directory = get_adapter_absolute_path(path)
    except (OSError, ValueError):  # a hub that is out of reach, or has no such name
        return path, None
    return path if here else directory, digest_of(directory)


def _by_id(state: State | None) -> dict[int, Row] | None:
    return None if state is None else {row.id: row for row in state.rows}


def _uses(state: Any, adapter: int) -> bool:  # noqa: ANN401 - vLLM's own
    return state.lora_request is not None and state.lora_request.lora_int_id == adapter


def _exists(name: str, known: Loaded, path: str) -> RefusedError:
    what = f"from {known.path}" if known.path != path else "with other contents"
    words = f"The adapter '{name}' is loaded {what}; `replace` replaces it."
    return RefusedError(HTTPStatus.CONFLICT, "adapter_exists", words, "name")


def _refused(code: str, message: str, paths: tuple[str, str]) -> RefusedError:
    words = message.replace(*paths)
    return RefusedError(_STATUS.get(code, HTTPStatus.BAD_REQUEST), code, words, _PARAM.get(code, "name"))
