"""One engine under load, and calls that are timed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from statistics import median

import msgspec

from benchmarks.cpu import Meter, machine_busy_s
from benchmarks.errors import BenchmarkError
from tuneplex.engines.server import EngineServer, Reply

__all__ = ["CALLS", "Figures", "Plan", "Result", "Target", "measure"]

_IDS = range(64, 256)  # in every vocabulary, and not special
_PROMPT, _REPLY = 128, 32
_PAUSE_S = 0.05
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        clients: How many ask the engine for text side by side.
        calls: How often the list is called.
        others: How often each call that it is compared with is made.
        models: What the clients ask for, in turn.
    """

    clients: int
    calls: int
    others: int
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The engine: where it listens, the key it wants, and the first of its processes."""

    endpoint: str
    secret: str
    pid: int


class Figures(msgspec.Struct, frozen=True):
    """How long one kind of call took, in milliseconds, and how old the oldest snapshot was that it told."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    oldest_s: float | None = None


async def _list(server: EngineServer) -> Reply:
    return await server.get("/v1/tuneplex/adapters")


async def _models(server: EngineServer) -> Reply:
    return await server.get("/v1/models")


async def _engine(server: EngineServer) -> Reply:
    return await server.post("/collective_rpc", {"method": "list_loras"}, timeout_s=_TIMEOUT_S)


CALLS: dict[str, tuple[str, Callable[[EngineServer], Coroutine[object, object, Reply]]]] = {
    "list": ("GET /v1/tuneplex/adapters, from the snapshot", _list),
    "models": ("GET /v1/models, which asks nobody: what any answer of this server costs", _models),
    "engine": ("list_loras through the engine's queue, as EngineClient.list_loras does", _engine),
}


class Result(msgspec.Struct, frozen=True):
    """What one number of clients gave.

    Attributes:
        clients: How many.
        tokens_per_s: What the engine wrote.
        others_busy: Cores that were kept busy meanwhile by anything but the engine and this script.
        figures: By the name of the call.
    """

    clients: int
    tokens_per_s: float
    others_busy: float
    figures: dict[str, Figures]


async def measure(engine: Target, plan: Plan, seed: int) -> Result:
    """Time every kind of call while the clients keep the engine busy.

    Raises:
        BenchmarkError: An answer is not as it must be.
    """
    times: dict[str, list[float]] = {name: [] for name in CALLS}
    ages: list[float] = []
    async with (
        _server(engine) as clients,
        _load(clients, plan, seed) as written,
        _server(engine) as server,
    ):
        meter = _Meter(engine.pid)
        before = written()
        await asyncio.gather(
            _time_list(server, plan, seed, times["list"], ages),
            _time_others(server, plan, seed, times),
        )
        tokens, (seconds, others) = written() - before, meter.read()
    figures = {name: _figures(taken) for name, taken in times.items() if taken}
    figures["list"] = msgspec.structs.replace(figures["list"], oldest_s=max(ages))
    return Result(plan.clients, tokens / seconds, others, figures)


class _Meter:
    """The time, and the cores that others keep busy, since it was made."""

    def __init__(self, pid: int) -> None:
        self._engine = Meter(pid)
        self._began = self._now()

    def read(self) -> tuple[float, float]:
        """Seconds, and cores."""
        wall, busy, ours = (now - then for now, then in zip(self._now(), self._began, strict=True))
        return wall, max(0.0, busy - ours) / wall

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), machine_busy_s(), self._engine.read_ns() / 1e9 + time.process_time()


async def _time_list(server: EngineServer, plan: Plan, seed: int, taken: list[float], ages: list[float]) -> None:
    chance = Random(seed)  # noqa: S311 - pauses are no secret
    while len(taken) < plan.calls:
        reply = await _timed("list", server, taken)
        found = msgspec.json.decode(reply.body)
        if {entry["name"] for entry in found["adapters"]} != set(plan.models) - {"base"}:
            raise BenchmarkError(f"the list is wrong: {reply.body[:500].decode()}")
        ages.append(found["age_s"])
        await asyncio.sleep(chance.uniform(0, 2 * _PAUSE_S))  # so that calls meet every moment of a step


async def _time_others(server: EngineServer, plan: Plan, seed: int, times: dict[str, list[float]]) -> None:
    chance = Random(seed + 1)  # noqa: S311 - the same
    for _ in range(plan.others):
        for name in set(CALLS) - {"list"}:
            await _timed(name, server, times[name])
            await asyncio.sleep(chance.uniform(0, 2 * _PAUSE_S))


async def _timed(name: str, server: EngineServer, taken: list[float]) -> Reply:
    begin = time.perf_counter()
    reply = await CALLS[name][1](server)
    taken.append((time.perf_counter() - begin) * 1e3)
    if not reply.ok:
        raise BenchmarkError(f"{name}: {reply.words}")
    return reply


def _server(engine: Target) -> EngineServer:
    return EngineServer(engine.endpoint, engine.secret, timeout_s=_TIMEOUT_S)


def _figures(taken: list[float]) -> Figures:
    ordered = sorted(taken)
    return Figures(len(taken), median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], ordered[-1])


@contextlib.asynccontextmanager
async def _load(server: EngineServer, plan: Plan, seed: int) -> AsyncIterator[Callable[[], int]]:
    """Keep the engine busy; yields a function that tells how many tokens have come back so far."""
    done: list[int] = []
    chance = Random(seed + 2)  # noqa: S311 - the same

    async def work(first: int) -> None:
        for number in itertools.count(first):
            prompt = chance.choices(_IDS, k=_PROMPT)
            await _ask(server, plan.models[number % len(plan.models)], prompt)
            done.append(_REPLY)

    workers = [asyncio.create_task(work(number)) for number in range(plan.clients)]
    try:
        while len(done) < plan.clients:  # by now all have been served once, and the queue is as it stays
            await asyncio.sleep(_PAUSE_S)
            _raise_failures(workers)
        yield lambda: sum(done)
        _raise_failures(workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _ask(server: EngineServer, model: str, prompt: list[int]) -> None:
    body = {"model": model, "prompt": prompt, "max_tokens": _REPLY, "ignore_eos": True, "temperature": 0}
    reply = await server.post("/v1/completions", body, timeout_s=_TIMEOUT_S)
    if not reply.ok or msgspec.json.decode(reply.body)["usage"]["completion_tokens"] != _REPLY:
        raise BenchmarkError(f"{model}: {reply.words}")


def _raise_failures(workers: list[asyncio.Task[None]]) -> None:
    for worker in workers:
        if worker.done():
            worker.result()
