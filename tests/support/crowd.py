"""Many clients in a closed loop: each asks, reads, perhaps slowly, or leaves, looks at the answer, and asks again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from typing import cast

import httptools
import msgspec

from tests.support.errands import Answer, Errand, Errands

__all__ = ["Crowd"]

_LEFT = "left"
_STALLED_S = 90.0


class Crowd:
    """Clients of one gateway.

    Args:
        port: Where it listens on loopback.
        errands: What they ask.
        keys: One of them for each request.
        seed: Of what they do besides.

    Attributes:
        ends: How requests ended: `complete`, `left`, or the code of an error.
        wrong: What was wrong with answers, with the requests.
        failed: Ids of requests that must not fail and did, with the codes.
        completed: Tokens of complete answers.
        begun: Tokens that the others would have had.
        asked: Requests so far.
    """

    def __init__(self, port: int, errands: Errands, keys: list[str], seed: int) -> None:
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.failed: dict[str, str] = {}
        self.completed = 0
        self.begun = 0
        self.asked = 0
        self._port = port
        self._errands = errands
        self._keys = keys
        self._dice = random.Random(seed)  # noqa: S311 - not for secrets

    async def run(self, clients: int, until: float) -> None:
        """Let so many clients ask until then, on the clock of `time.monotonic`, and read the last answers."""
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self._client(until), name=f"client {number}")
                await asyncio.sleep(0.005)

    async def _client(self, until: float) -> None:
        line: Line | None = None
        try:
            while time.monotonic() < until:
                if line is None or line.over:
                    line = await self._connect()
                await self._ask(line)
                if self._dice.random() < 0.2:
                    line.close()
                await asyncio.sleep(self._dice.random() / 2)
        finally:
            if line is not None:
                line.close()

    async def _connect(self) -> Line:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Line, "127.0.0.1", self._port))[1]

    async def _ask(self, line: Line) -> None:
        errand, dice = self._errands.next(), self._dice
        self.asked += 1
        name = f"storm-{self.asked}"
        line.send(errand, name, dice.choice(self._keys))
        if dice.random() < 0.1:
            await self._leave(line, errand)
            return
        reading = asyncio.create_task(line.dawdle(dice.random())) if dice.random() < 0.1 else None
        try:
            async with asyncio.timeout(_STALLED_S):
                await line.done.wait()
        except TimeoutError:
            self.wrong.append(f"{name}: no end in {_STALLED_S:g} s: {errand.body} {line.body[-300:]!r}")
            line.close()
            return
        finally:
            if reading is not None:
                reading.cancel()
        self._look(name, errand, line)

    async def _leave(self, line: Line, errand: Errand) -> None:
        self.ends[_LEFT] += 1
        self.begun += errand.tokens
        if self._dice.random() < 0.7:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(line.heard.wait(), 10)
        await asyncio.sleep(0.02 + self._dice.random())
        line.abort()

    def _look(self, name: str, errand: Errand, line: Line) -> None:
        if not line.complete:
            self.wrong.append(f"{name}: cut: {errand.body} {bytes(line.body[-300:])!r}")
            return
        answer = Answer(errand, line.status, bytes(line.body))
        if answer.wrong:
            self.wrong.append(f"{name}: {answer.wrong}: {errand.body} {bytes(line.body[-300:])!r}")
        self.ends[answer.code or "complete"] += 1
        if answer.code is None:
            self.completed += errand.tokens
        else:
            self.begun += errand.tokens
            if errand.sure:
                self.failed[name] = answer.code


class Line(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self) -> None:
        self.over = False
        self.done = asyncio.Event()
        self.heard = asyncio.Event()
        self._clear()

    def _clear(self) -> None:
        self.body = bytearray()
        self.complete = False
        self.status = 0
        self.done.clear()
        self.heard.clear()
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's only behave so

    def connection_lost(self, exc: Exception | None) -> None:
        """It is no more."""
        del exc
        self.over = True
        self.done.set()
        self.heard.set()

    def data_received(self, data: bytes) -> None:
        """More of an answer."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """More of its body."""
        self.body += body
        self.heard.set()

    def on_message_complete(self) -> None:
        """All of it."""
        self.status = self._parser.get_status_code()
        self.over = self.over or not self._parser.should_keep_alive()
        self.complete = True
        self.done.set()

    def send(self, errand: Errand, name: str, key: str) -> None:
        """Ask."""
        self._clear()
        body = msgspec.json.encode(errand.body)
        head = f"POST {errand.path} HTTP/1.1\r\nhost: x\r\nx-request-id: {name}\r\nauthorization: Bearer {key}\r\n"
        self._transport.write(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    async def dawdle(self, seconds: float) -> None:
        """Read now and then."""
        try:
            while not self._transport.is_closing():
                self._transport.pause_reading()
                await asyncio.sleep(seconds)
                self._transport.resume_reading()
                await asyncio.sleep(seconds / 10)
        finally:
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def close(self) -> None:
        """Leave."""
        self.over = True
        self._transport.close()

    def abort(self) -> None:
        """Leave without a word."""
        self.over = True
        self._transport.abort()
