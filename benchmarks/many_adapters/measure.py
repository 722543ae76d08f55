"""One round: all requests of a traffic are asked of one target, and what each of them met is kept."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from statistics import median

import httpx2
import msgspec

from benchmarks.cpu import Meter, machine_busy_s
from benchmarks.many_adapters.targets import Target, body, client
from benchmarks.many_adapters.traffic import Ask, Kind

__all__ = ["Figures", "Met", "figures", "play"]


class Met(msgspec.Struct, frozen=True):
    """What one request met.

    Attributes:
        adapter: Of whom it was.
        first_s: Until its first token; None if it never came.
        total_s: Until its end.
        error: Why it was not answered; empty if it was.
    """

    adapter: str
    first_s: float | None
    total_s: float
    error: str = ""


class Figures(msgspec.Struct, frozen=True):
    """One round of one traffic at one target. Times are seconds, those of `first` until the first token.

    Attributes:
        asked: Requests.
        answered: Those that were answered in full.
        adapters: Different adapters among the answered ones.
        seconds: From the first request to the last answer.
        first_p50: Half of them.
        first_p95: Of 100, 95.
        first_p99: Of 100, 99.
        longest: Any.
        longest_adapter: Whose that was.
        switches: For a thousand requests, how often an adapter was put into a slot.
        others_busy: Cores that were kept busy meanwhile by anything but the engine and this script.
    """

    asked: int
    answered: int
    adapters: int
    seconds: float
    first_p50: float
    first_p95: float
    first_p99: float
    longest: float
    longest_adapter: str
    switches: float
    others_busy: float


async def play(target: Target, kind: Kind, asks: Sequence[Ask], tokens: int) -> tuple[Figures, list[Met]]:
    """Ask all of it."""
    engine = Meter(target.engine.leader)
    switches, used, busy = await asyncio.to_thread(target.switches), _ours_s(engine), machine_busy_s()
    async with client(target) as asking:
        began = time.perf_counter()
        work = _apart(asking, asks, tokens) if kind.rate else _beside(asking, asks, tokens, kind.clients)
        met = await work
        seconds = time.perf_counter() - began
    others = max(0.0, machine_busy_s() - busy - (_ours_s(engine) - used)) / seconds
    switched = await asyncio.to_thread(target.switches) - switches
    return figures(met, seconds, switched, others), met


def _ours_s(engine: Meter) -> float:
    return engine.read_ns() / 1e9 + time.process_time()


async def _apart(asking: httpx2.AsyncClient, asks: Sequence[Ask], tokens: int) -> list[Met]:
    """Each at its own time, whatever becomes of the others."""
    began = time.perf_counter()

    async def one(ask: Ask) -> Met:
        await asyncio.sleep(max(0.0, began + ask.at - time.perf_counter()))
        return await _ask(asking, ask, tokens)

    return list(await asyncio.gather(*(one(ask) for ask in asks)))


async def _beside(asking: httpx2.AsyncClient, asks: Sequence[Ask], tokens: int, clients: int) -> list[Met]:
    """So many at a time."""
    left: Iterator[Ask] = iter(asks)

    async def work() -> list[Met]:
        return [await _ask(asking, ask, tokens) for ask in left]

    found = await asyncio.gather(*(work() for _ in range(clients)))
    return [one for met in found for one in met]


async def _ask(asking: httpx2.AsyncClient, ask: Ask, tokens: int) -> Met:
    began, first, error, done = time.perf_counter(), None, "", False
    try:
        async with asking.stream("POST", "/v1/completions", content=body(ask.adapter, ask.prompt, tokens)) as reply:
            if not reply.is_success:
                error = f"{reply.status_code} {(await reply.aread())[:200].decode(errors='replace')}"
            async for line in reply.aiter_lines():
                if first is None and line.startswith("data:"):  # a comment of one that waits is none
                    first = time.perf_counter() - began
                error = error or (line if '"error"' in line else "")
                done = done or line == "data: [DONE]"
    except httpx2.HTTPError as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Met(ask.adapter, first, time.perf_counter() - began, error or ("" if done else "it broke off"))


def figures(met: Sequence[Met], seconds: float, switches: int, others_busy: float) -> Figures:
    """What a round's requests say together; waiting times are of those that were answered."""
    good = sorted((one.first_s, one.adapter) for one in met if not one.error and one.first_s is not None)
    firsts = [first for first, _ in good] or [math.nan]
    longest = good[-1] if good else (math.nan, "")
    return Figures(
        asked=len(met),
        answered=len(good),
        adapters=len({adapter for _, adapter in good}),
        seconds=seconds,
        first_p50=median(firsts),
        first_p95=_at(firsts, 0.95),
        first_p99=_at(firsts, 0.99),
        longest=longest[0],
        longest_adapter=longest[1],
        switches=1000 * switches / max(1, len(met)),
        others_busy=others_busy,
    )


def _at(ordered: Sequence[float], part: float) -> float:
    return ordered[math.ceil(part * len(ordered)) - 1]
