"""What `tuneplex push` writes beside the files that it stores: what they are, each with its SHA-256.

It is written twice: before the first file, saying that a push is under way, and after the last one. So nobody takes
half of a push for a whole one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["MANIFEST", "Item", "Manifest", "decoded"]

MANIFEST = "tuneplex.json"


class Item(msgspec.Struct, frozen=True):
    """A file.

    Attributes:
        size: Bytes.
        sha256: Of its content, 64 hex digits.
    """

    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, frozen=True):
    """All files of a push.

    Attributes:
        complete: Whether all of them are stored.
        files: By name.
        format: How this is written; there is only 1.
    """

    complete: bool
    files: dict[str, Item]
    format: int = 1

    def encoded(self) -> bytes:
        """As it is stored."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


def decoded(content: bytes) -> Manifest:
    """Read one.

    Raises:
        ValueError: It is none that this version understands.
    """
    try:
        found = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error}") from None
    if found.format != 1:
        raise ValueError(f"{MANIFEST} was written by a newer tuneplex")
    return found
