"""Frames on the feed: four bytes of length, then a msgpack value."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

__all__ = ["PROTOCOL", "FrameError", "Hello", "greeting", "pack", "read_frame", "read_hello"]

PROTOCOL = 1
"""The version of the feed, raised by every change that an older or newer process would not understand."""

T = TypeVar("T")
_LENGTH_BYTES = 4
_LONGEST = 64 * 1024 * 1024


class FrameError(Exception):
    """The other side sent something that is not a frame of the feed."""


class Hello(msgspec.Struct, frozen=True):
    """What each side says first: the two may be of different versions of tuneplex, while one of them is replaced."""

    protocol: int


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


def greeting() -> bytes:
    """What this side says first."""
    return pack(Hello(PROTOCOL))


async def read_hello(reader: asyncio.StreamReader) -> bool:
    """Whether the other side is there and speaks as we do.

    Raises:
        FrameError: It is, and speaks another version of the feed.
    """
    hello = await read_frame(reader, msgspec.msgpack.Decoder(Hello))
    if hello is not None and hello.protocol != PROTOCOL:
        other, ours = hello.protocol, PROTOCOL
        raise FrameError(
            f"it speaks version {other} of the feed and this process version {ours}: restart the older one"
        )
    return hello is not None
