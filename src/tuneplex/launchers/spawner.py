"""What control asks of the supervisor: start, stop and forget keepers. Newline-delimited JSON over a Unix socket.

Every answer, and every change without a question, carries the list of all children as it is now. So nothing is lost
while control is away, and control after a restart knows as much as before: it finds in `meta` what it wrote there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from tuneplex.errors import EngineError

__all__ = ["Answer", "Child", "Forget", "Question", "Spawn", "Spawner", "Stop", "Wish", "connect"]

_LINE_LIMIT = 16 * 1024 * 1024


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Start a keeper with an engine.

    Attributes:
        key: Names it from now on. A child that has ended gives its key back; a live one keeps it.
        command: The engine's command line.
        env: The engine's whole environment.
        log: Where its output goes.
        meta: Kept and handed back, never read.
        grace_s: What the engine gets between SIGTERM and SIGKILL.
    """

    key: str
    command: tuple[str, ...]
    env: dict[str, str]
    log: str
    meta: str = ""
    grace_s: float = 10.0


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End an engine: SIGTERM, its grace, then for sure."""

    key: str


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Drop the record of a child that has ended."""

    key: str


Wish = Spawn | Stop | Forget


class Question(msgspec.Struct, frozen=True):
    """One wish, with a number that its answer carries."""

    number: int
    wish: Wish


class Child(msgspec.Struct, frozen=True):
    """One keeper and its engine, living or ended.

    Attributes:
        key: As given in `Spawn`.
        meta: As given in `Spawn`.
        started: Unix time, seconds.
        keeper: The keeper's process.
        engine: The engine's first process, once it is known.
        ended: Unix time, seconds; None while it lives.
        exit_code: The engine's: 128 + N for signal N; negative if the keeper itself was killed.
    """

    key: str
    meta: str
    started: float
    keeper: int
    engine: int | None = None
    ended: float | None = None
    exit_code: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """All children as they are now; `number` is 0 when nobody asked, `error` is empty when the wish was granted."""

    number: int
    children: tuple[Child, ...]
    error: str = ""


class Spawner:
    """The supervisor, from control's side. Use `connect`.

    Attributes:
        changed: Set whenever `children` changed; whoever waits for it clears it.
        lost: Set when the supervisor is gone.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, children: tuple[Child, ...]) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._children = children
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()

    @property
    def children(self) -> tuple[Child, ...]:
        """All keepers that were ever spawned and not yet forgotten, as the supervisor last told."""
        return self._children

    async def ask(self, wish: Wish) -> None:
        """Have a wish granted.

        Raises:
            EngineError: The supervisor refuses it, or is gone.
        """
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(msgspec.json.encode(Question(number, wish)) + b"\n")
            await self._writer.drain()
            error = (await answer).error
        except ConnectionError as gone:
            raise EngineError("the supervisor is gone") from gone
        finally:
            del self._waiting[number]
        if error:
            raise EngineError(error)

    async def listen(self) -> None:
        """Take in what the supervisor tells, until it is gone."""
        decoder = msgspec.json.Decoder(Answer)
        try:
            while line := await self._reader.readline():
                self._take(decoder.decode(line))
        finally:
            self.lost.set()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError("the supervisor is gone"))

    def _take(self, answer: Answer) -> None:
        if answer.children != self._children:
            self._children = answer.children
            self.changed.set()
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


@contextlib.asynccontextmanager
async def connect(path: Path) -> AsyncIterator[Spawner]:
    """Talk to the supervisor on this socket; its list of children is there when the block begins."""
    reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_LIMIT)
    try:
        spawner = Spawner(reader, writer, msgspec.json.decode(await reader.readline(), type=Answer).children)
        listening = asyncio.create_task(spawner.listen())
        try:
            yield spawner
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await listening
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
