"""The supervisor's Unix socket: control's wishes come in, the list of children goes out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from tuneplex.app.keepers import Keepers
from tuneplex.feed.sockets import private_socket
from tuneplex.launchers.spawner import Answer, Question

__all__ = ["WishServer"]

_LINE_LIMIT = 16 * 1024 * 1024


class WishServer:
    """Answers every question with the list of children, and sends the list again whenever it changes.

    Args:
        keepers: Grant the wishes and are the list.
    """

    def __init__(self, keepers: Keepers) -> None:
        self._keepers = keepers
        self._writers: set[asyncio.StreamWriter] = set()
        keepers.on_change = self.broadcast

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
        """Tell everybody who is connected the list as it is now."""
        for writer in self._writers:
            self._send(writer, number=0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = msgspec.json.Decoder(Question)
        self._writers.add(writer)
        try:
            self._send(writer, number=0)
            while line := await reader.readline():
                question = decoder.decode(line)
                self._send(writer, number=question.number, error=self._keepers.grant(question.wish))
        except ConnectionError:
            pass  # control was killed; what it still wants to know, its successor will ask
        finally:
            self._writers.discard(writer)
            writer.close()

    def _send(self, writer: asyncio.StreamWriter, *, number: int, error: str = "") -> None:
        writer.write(msgspec.json.encode(Answer(number, self._keepers.children, error)) + b"\n")
