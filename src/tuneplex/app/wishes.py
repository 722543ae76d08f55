"""The supervisor's Unix socket: wishes come in, the list of children goes out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from tuneplex import __version__
from tuneplex.app.crew import Crew
from tuneplex.app.keepers import Keepers
from tuneplex.errors import EngineStartError, TuneplexError
from tuneplex.feed.sockets import private_socket
from tuneplex.launchers.spawner import PROTOCOL, Answer, Question, Restart
from tuneplex.log import get_logger

__all__ = ["WishServer"]

_LINE_LIMIT = 16 * 1024 * 1024


class _Numbered(msgspec.Struct, frozen=True):
    """What there is in a question of every version."""

    number: int


class WishServer:
    """Answers every question with what lives, and tells it again whenever it changes.

    Args:
        keepers: Grant the wishes for engines and are the list.
        crew: Grants the others.
    """

    def __init__(self, keepers: Keepers, crew: Crew) -> None:
        self._keepers = keepers
        self._crew = crew
        self._writers: set[asyncio.StreamWriter] = set()
        keepers.on_change = crew.on_change = self.broadcast

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Serve on this socket for as long as the block runs."""
        server = await asyncio.start_unix_server(self._serve, sock=private_socket(path), limit=_LINE_LIMIT)
        try:
            yield
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    def broadcast(self) -> None:
        """Tell everybody who is connected what lives now."""
        for writer in self._writers:
            self._send(writer, number=0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        works: set[asyncio.Task[None]] = set()
        self._writers.add(writer)
        try:
            self._send(writer, number=0)
            while line := await reader.readline():
                self._take(line, writer, works)
        except (ConnectionError, msgspec.MsgspecError):
            pass  # control was killed; what it still wants to know, its successor will ask
        finally:
            for work in works:
                work.cancel()
            self._writers.discard(writer)
            writer.close()

    def _take(self, line: bytes, writer: asyncio.StreamWriter, works: set[asyncio.Task[None]]) -> None:
        number = msgspec.json.decode(line, type=_Numbered).number
        try:
            wish = msgspec.json.decode(line, type=Question).wish
        except msgspec.ValidationError as error:
            words = f"the fleet's supervisor is of version {__version__} and does not know this wish: {error}"
            self._send(writer, number=number, error=f"{words}; `tuneplex down` and `tuneplex up` bring a newer one")
            return
        if isinstance(wish, Restart):
            work = asyncio.create_task(self._restarted(number, wish, writer))
            works.add(work)
            work.add_done_callback(works.discard)
        else:
            self._send(writer, number=number, error=self._keepers.grant(wish))

    async def _restarted(self, number: int, wish: Restart, writer: asyncio.StreamWriter) -> None:
        """Grant a wish that takes a while; it is taken back by hanging up."""
        error = tail = ""
        try:
            await self._crew.restart(wish, lambda step: self._send(writer, number=number, step=step))
        except EngineStartError as failure:
            error, tail = str(failure), failure.tail
        except TuneplexError as failure:
            error = str(failure)
        if error:
            get_logger(__name__).warning("a restart failed", error=error)
        self._send(writer, number=number, error=error, tail=tail)

    def _send(
        self, writer: asyncio.StreamWriter, *, number: int, error: str = "", tail: str = "", step: str = ""
    ) -> None:
        answer = Answer(number, self._keepers.children, error, tail, step, self._crew.gateways, PROTOCOL)
        writer.write(msgspec.json.encode(answer) + b"\n")
