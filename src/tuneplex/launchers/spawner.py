"""What is asked of the supervisor, mostly by control: keepers and restarts. Newline-delimited JSON over a Unix socket.

The supervisor is the oldest process of a fleet, and may be of an earlier version than who asks it. So it says the
version of what it speaks, and refuses in words what it does not know.

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
from tuneplex.types import Part

__all__ = [
    "PROTOCOL",
    "Answer",
    "Child",
    "Forget",
    "Question",
    "Restart",
    "Spawn",
    "Spawner",
    "Stop",
    "Wish",
    "connect",
    "greeted",
]

PROTOCOL = 1
"""Raised by every change that an older supervisor would misunderstand."""

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


class Restart(msgspec.Struct, frozen=True, tag=True):
    """Replace processes by new ones. It is answered when that is done; whoever asks and hangs up takes it back.

    Attributes:
        part: Which.
        patience_s: What each new one gets to come up.
        drain_s: What each old gateway gets to finish what it has.
    """

    part: Part
    patience_s: float = 60.0
    drain_s: float = 600.0


Wish = Spawn | Stop | Forget | Restart


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
    """All children as they are now.

    Attributes:
        number: Of the question, 0 when nobody asked.
        children: All keepers.
        error: Why the wish was not granted; empty if it was.
        tail: The last lines of a process that did not come up.
        step: What is being done; the answer is still to come.
        gateways: The indexes of all gateways that live, or should.
        protocol: The version that the supervisor speaks.
    """

    number: int
    children: tuple[Child, ...]
    error: str = ""
    tail: str = ""
    step: str = ""
    gateways: tuple[int, ...] = ()
    protocol: int = 0


class Spawner:
    """The supervisor, from control's side. Use `connect`.

    Attributes:
        changed: Set whenever `children` or `gateways` changed; whoever waits for it clears it.
        lost: Set when the supervisor is gone.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: Answer) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._last = first
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()

    @property
    def children(self) -> tuple[Child, ...]:
        """All keepers that were ever spawned and not yet forgotten, as the supervisor last told."""
        return self._last.children

    @property
    def gateways(self) -> tuple[int, ...]:
        """The indexes of all gateways that live, or should, as the supervisor last told."""
        return self._last.gateways

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
        before, self._last = self._last, answer
        if (answer.children, answer.gateways) != (before.children, before.gateways):
            self.changed.set()
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


class _Greeting(msgspec.Struct, frozen=True):
    """What there is in the first line of every version."""

    protocol: int = 0


def greeted(line: bytes) -> Answer:
    """The first line that a supervisor says.

    Raises:
        EngineError: It is gone, or of another version that is not understood.
    """
    if not line:
        raise EngineError("the supervisor is gone")
    try:
        protocol = msgspec.json.decode(line, type=_Greeting).protocol
        if protocol == PROTOCOL:
            return msgspec.json.decode(line, type=Answer)
    except msgspec.MsgspecError as error:
        raise EngineError(f"the supervisor is not understood: {error}") from error
    raise EngineError(
        f"the fleet's supervisor speaks version {protocol} of its protocol and this one {PROTOCOL}: "
        "end the fleet with `tuneplex down` and start it again with `tuneplex up`"
    )


@contextlib.asynccontextmanager
async def connect(path: Path) -> AsyncIterator[Spawner]:
    """Talk to the supervisor on this socket; its list of children is there when the block begins.

    Raises:
        EngineError: It is of another version.
    """
    reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_LIMIT)
    try:
        spawner = Spawner(reader, writer, greeted(await reader.readline()))
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
