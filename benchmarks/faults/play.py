"""Plays one fault against one gateway, and tells what the client saw."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Protocol

from benchmarks.faults.client import Client
from benchmarks.faults.fault import Ask, Fault, Leave
from benchmarks.faults.seen import End, Reply, Seen
from benchmarks.faults.stage import Stage
from tuneplex.testing.script import Record

__all__ = ["DRAIN_S", "Gate", "play"]

DRAIN_S = 0.5
_PATIENCE_S = 10.0
_LEAVES_AFTER_S = 0.3  # so that headers that are on their way have come
_STOPPED_S = 0.3  # after the time that was announced
_BETWEEN_S = 0.05
_STILL_S = 0.5


class Gate(Protocol):
    """A gateway in front of a stage.

    Attributes:
        port: Where it listens.
        model: What its clients ask for.
        engine_model: And what the engine calls that.
    """

    port: int
    model: str
    engine_model: str

    async def drain(self, endpoint: str) -> None:
        """Let it know that the engine at this address will be stopped in `DRAIN_S`."""

    def memory_mb(self) -> float | None:
        """Its resident memory; None where it has no process of its own."""


async def play(fault: Fault, stage: Stage, gate: Gate, patience_s: float = _PATIENCE_S) -> Seen:
    """Play it.

    Args:
        fault: Which.
        stage: Its engines.
        gate: The gateway.
        patience_s: How long clients wait for something to come, and how long the engines' side may take to close.
    """
    player = _Player(fault, stage, gate, patience_s)
    scripted = fault.always.flood or fault.always.text
    truth = None if scripted else await player.truth()
    for engine in stage.engines[: fault.dead]:
        engine.die()
    return await player.play(truth)


class _Player:
    def __init__(self, fault: Fault, stage: Stage, gate: Gate, patience_s: float) -> None:
        self._fault = fault
        self._stage = stage
        self._gate = gate
        self._patience_s = patience_s
        self._seen = Seen()

    async def truth(self) -> str:
        """What a healthy engine says."""
        client = Client(
            self._stage.reference_port, _body(self._gate.engine_model, self._fault.ask, words=1), self._patience_s
        )
        reply = await client.ask()
        if reply.end is not End.WHOLE:
            raise AssertionError(f"the reference does not answer: {reply}")
        return reply.text

    async def play(self, truth: str | None) -> Seen:
        ask = self._fault.ask
        if ask.leave is not None:
            replies = [await self._leave(ask.leave)]
        elif ask.late:
            replies = [await self._read_late()]
        elif self._fault.drained:
            replies = [await self._drain(truth)]
        elif ask.together > 1:
            replies = list(await asyncio.gather(*(self._client().ask(truth) for _ in range(ask.together))))
        else:
            replies = [await self._client().ask(truth) for _ in range(ask.times)]
            if ask.until_whole:
                replies += await self._until_whole(truth)
        self._seen.replies = tuple(replies)
        self._seen.tries = len(self._stage.requests)
        return self._seen

    def _client(self, words: int | None = None) -> Client:
        ask = self._fault.ask
        body = _body(self._gate.model, ask, words=ask.words if words is None else words)
        return Client(self._gate.port, body, self._patience_s, self._stage.secrets)

    async def _leave(self, when: Leave) -> Reply:
        client = self._client()
        asking = asyncio.create_task(client.ask())
        async with asyncio.timeout(self._patience_s):
            record = await self._stage.asked()
            await client.seen(max(0, when.value))
        await asyncio.sleep(_LEAVES_AFTER_S if when is not Leave.MIDDLE else 0)
        left = time.perf_counter()
        asking.cancel()
        reply = await asking
        await self._closed(record, left)
        return reply

    async def _closed(self, record: Record, left: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await record.left.wait()
                self._seen.closed_s = max(0.0, (record.left_at or left) - left)

    async def _read_late(self) -> Reply:
        before = self._gate.memory_mb()

        async def pause() -> None:
            record = await self._stage.asked()
            sent = -1
            while sent != record.sent_bytes:
                sent = record.sent_bytes
                await asyncio.sleep(_STILL_S)
            self._seen.held_mb = sent / 1e6
            after = self._gate.memory_mb()
            self._seen.grown_mb = None if before is None or after is None else after - before

        return await self._client().ask(pause=pause)

    async def _drain(self, truth: str | None) -> Reply:
        client = self._client()
        asking = asyncio.create_task(client.ask(truth))
        record = await self._stage.asked()
        await client.seen(Leave.MIDDLE.value)
        engine = self._stage.owner(record)
        await self._gate.drain(engine.endpoint)
        await asyncio.sleep(DRAIN_S + _STOPPED_S)
        engine.die()
        return await asking

    async def _until_whole(self, truth: str | None) -> list[Reply]:
        """Ask on, with a short prompt; how long it took is told from the engine's last fault on."""
        replies: list[Reply] = []
        until = time.perf_counter() + self._patience_s
        while time.perf_counter() < until:
            replies.append(await self._client(words=1).ask(truth))
            if replies[-1].end is End.WHOLE:
                *_, last_fault, _ = [0.0, *(record.received_at for record in self._stage.requests)]
                self._seen.well_s = time.perf_counter() - last_fault
                break
            await asyncio.sleep(_BETWEEN_S)
        return replies


def _body(model: str, ask: Ask, *, words: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello " * words}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": ask.tokens, "stream": ask.stream}
    return body | ({"stream_options": {"include_usage": True}} if ask.stream else {})
