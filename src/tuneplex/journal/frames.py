"""How entries lie in a file: each is four bytes of length, four of CRC-32, and that many bytes of msgpack."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgspec

from tuneplex.journal.entries import Entry, Foreign

__all__ = ["LARGEST", "DamagedError", "framed", "read_frames"]

LARGEST = 1024 * 1024  # of one entry; they have some hundred bytes
_HEAD = struct.Struct("<II")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


class DamagedError(Exception):
    """What lies in a journal is not what was written.

    Attributes:
        offset: Where in the data that was read.
    """

    def __init__(self, words: str, offset: int) -> None:
        super().__init__(words)
        self.offset = offset


def framed(entry: Entry) -> bytes:
    """An entry as it lies in a file."""
    data = _encoder.encode(entry)
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


def read_frames(data: bytes, offset: int = 0) -> Iterator[tuple[Entry, int]]:
    """The entries in `data` from `offset` on, each with the offset behind it; ends before one that is not complete.

    Raises:
        DamagedError: Something is there that was not written like this.
    """
    while offset + _HEAD.size <= len(data):
        size, checksum = _HEAD.unpack_from(data, offset)
        if not 0 < size <= LARGEST:
            raise DamagedError(f"an entry of {size} bytes", offset)
        end = offset + _HEAD.size + size
        if end > len(data):
            return
        yield _read(data[offset + _HEAD.size : end], checksum, offset), end
        offset = end


def _read(body: bytes, checksum: int, offset: int) -> Entry:
    if zlib.crc32(body) != checksum:
        raise DamagedError("a checksum that is wrong", offset)
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:
        return Foreign()
    except msgspec.MsgspecError as error:
        raise DamagedError(f"an entry that is none: {error}", offset) from error
