"""Frames on the feed: four bytes of length, then a msgpack value."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

__all__ = ["FrameError", "pack", "read_frame"]

T = TypeVar("T")
_LENGTH_BYTES = 4
_LONGEST = 64 * 1024 * 1024


class FrameError(Exception):
    """The other side sent something that is not a frame of the feed."""


def pack(value: msgspec.Struct) -> bytes:
    """One value as a frame."""
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """The next value, or None when the other side is gone.

    Raises:
        FrameError: What arrived is not a frame with such a value.
    """
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        if length > _LONGEST:
            raise FrameError(f"a frame of {length} bytes")
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error
