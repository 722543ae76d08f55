"""Runs a request through the fake: waits for a seat, speaks, streams or answers at once, and counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import msgspec

from tuneplex.testing.answers import Answer
from tuneplex.testing.generation import Reply, Step, steps
from tuneplex.testing.metrics import Meters
from tuneplex.testing.protocol import Ask, Refusal
from tuneplex.testing.scheduler import Scheduler, Seat
from tuneplex.testing.script import Record
from tuneplex.testing.stream import DEAD, Core, Stream
from tuneplex.testing.tiers import Adapter, Tiers
from tuneplex.testing.tokens import Tokenizer
from tuneplex.testing.wire import Exchange

__all__ = ["Server"]


class Server:
    """Generates for one engine.

    Args:
        tokenizer: Whose ids it speaks in.
        scheduler: Says who may run.
        tiers: Bring adapters into slots.
        meters: Count what happens.
        core: Of the engine.
    """

    def __init__(self, tokenizer: Tokenizer, scheduler: Scheduler, tiers: Tiers, meters: Meters, core: Core) -> None:
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._tiers = tiers
        self._meters = meters
        self._core = core

    async def serve(
        self,
        exchange: Exchange,
        record: Record,
        ask: Ask,
        answer: Answer,
        *,
        adapter: Adapter | None,
        done: bytes,
    ) -> None:
        """Answer one generating request.

        Args:
            exchange: Where the answer goes.
            record: Remembers it.
            ask: What was asked.
            answer: Writes it down.
            adapter: Whose slot it takes, and what it has learned.
            done: What ends a stream.
        """
        record.model, record.prompt_ids = ask.model, ask.prompts[0]
        run = _Run(self._tokenizer, ask, record, self._meters, adapter.weights if adapter else "")
        stream = Stream(exchange, record, record.script, self._core) if ask.stream else None
        if stream is not None:
            stream.start()
        try:
            prompt_tokens = sum(map(len, ask.prompts))
            sequences = len(ask.prompts) * ask.n
            async with self._scheduler.seat(sequences=sequences, adapter=adapter, prompt_tokens=prompt_tokens) as seat:
                run.admitted()
                self._tiers.step(self._scheduler.batch)
                if stream is not None:
                    await self._stream(stream, run, answer, seat, done)
                else:
                    await self._whole(exchange, run, answer, seat)
        finally:
            run.end()
            if self._scheduler.running:
                self._tiers.step(self._scheduler.batch)

    async def _stream(self, stream: Stream, run: _Run, answer: Answer, seat: Seat, done: bytes) -> None:
        if run.record.script.flood:
            await stream.flood()
            await stream.finish(done)
            return
        for event in answer.opening():
            await stream.event(event)
        for choice, step in run.steps():
            seat.tokens += 1
            for event in answer.step(choice, step):
                await stream.event(event)
        for event in answer.closing():
            await stream.event(event)
        await stream.finish(done)

    async def _whole(self, exchange: Exchange, run: _Run, answer: Answer, seat: Seat) -> None:
        script, record = run.record.script, run.record
        await asyncio.sleep(script.before_first_chunk_s)
        for _ in run.steps():
            seat.tokens += 1
            await asyncio.sleep(script.between_chunks_s)
            if self._core.lost:
                raise Refusal(DEAD, status=500, kind="InternalServerError")
        body = msgspec.json.encode(answer.whole(run.replies))
        record.status = 200
        exchange.start(200, [("content-type", "application/json")], length=len(body))
        exchange.send(body)
        record.note_sent(body)
        await exchange.drain()


class _Run:
    """One request under way: all its choices, side by side."""

    def __init__(self, tokenizer: Tokenizer, ask: Ask, record: Record, meters: Meters, weights: str) -> None:
        choices = range(len(ask.prompts) * ask.n)
        self.record = record
        self.replies = [Reply(token_ids=[], logprobs=[]) for _ in choices]
        self._prompts = [len(ask.prompts[choice // ask.n]) for choice in choices]
        record.reply_ids = [reply.token_ids for reply in self.replies]
        self._speakers = {choice: steps(tokenizer, ask, choice, weights) for choice in choices}
        self._meters = meters
        self._arrived = time.perf_counter()
        self._turn = self._arrived
        self._first: float | None = None
        self._last: float | None = None

    def admitted(self) -> None:
        """It has a seat now."""
        self._turn = time.perf_counter()

    def steps(self) -> Iterator[tuple[int, Step]]:
        """One token of each choice in turn, until all have ended."""
        while self._speakers:
            for choice in tuple(self._speakers):
                step = next(self._speakers[choice])
                self._note(choice, step)
                yield choice, step

    def _note(self, choice: int, step: Step) -> None:
        now = time.perf_counter()
        meter = self._meters.first_token_s if self._last is None else self._meters.inter_token_s
        meter.add(now - (self._arrived if self._last is None else self._last))
        self._first = self._first or now
        self._last = now
        if not self.replies[choice].token_ids:
            self._meters.prompt_tokens += self._prompts[choice]  # vLLM counts it with the first token of each choice
        self._meters.generation_tokens += 1
        self.replies[choice].add(step)
        if step.finish_reason is not None:
            del self._speakers[choice]
            self.record.finish_reasons[choice] = step.finish_reason
            self._meters.finished[step.finish_reason] += 1

    def end(self) -> None:
        """It is over, one way or another; vLLM does not count what its clients left."""
        self._meters.whole_s.add(time.perf_counter() - self._arrived)
        if self._first is not None and self._last is not None:
            self._meters.queue_s.add(self._turn - self._arrived)
            self._meters.prefill_s.add(self._first - self._turn)
            self._meters.decode_s.add(self._last - self._first)
