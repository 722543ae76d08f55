r"""Exchange the model's name in a reply by a search over bytes, without parsing JSON.

Why this cannot touch generated text: the search is for `"model":"NAME"` with its quotes. Inside of a JSON string every
quote is written `\"`, so the quote after `model`, which follows an `l`, ends a string; the colon after it makes that
string a key; and the quotes around NAME make it that key's whole value. Generated text is always the content of a
string, so it cannot contain the sequence. (NAME is JSON-encoded for the search, so it may hold quotes itself.)
"""

from __future__ import annotations

import json
import re

__all__ = ["Renamer", "StreamRenamer"]

_SEPARATORS = (":", ": ")


class Renamer:
    """Replaces the engine's name of a model by the client's wherever it is the value of a `model` field.

    It keeps nothing between calls, so one can serve all replies with these names. It expects that a reply is spelt by
    one and the same JSON writer.

    Args:
        name: The engine's name.
        shown: The client's name.

    Attributes:
        longest: The most bytes that a field to be changed has, in one of the two usual spacings.
    """

    __slots__ = ("_pairs", "_shown", "_spaced", "longest")

    def __init__(self, name: str, shown: str) -> None:
        values = dict.fromkeys(json.dumps(name, ensure_ascii=ascii_only).encode() for ascii_only in (False, True))
        self._shown = json.dumps(shown).encode()
        self._pairs = tuple(_pair(value, self._shown, sep) for value in values for sep in _SEPARATORS)
        self._spaced = re.compile(rb'("model"\s*:\s*)(?:%b)' % b"|".join(map(re.escape, values)))
        if name == shown:
            self._pairs = ()
        self.longest = max((len(old) for old, _ in self._pairs), default=0)

    def events(self, data: bytes) -> bytes:
        """Rename in data that ends where no field is cut: whole events."""
        for old, new in self._pairs:
            renamed = data.replace(old, new)
            if renamed is not data:
                return renamed
        return data

    def document(self, data: bytes) -> bytes:
        """Rename in a whole JSON document, however it is spaced."""
        renamed = self.events(data)
        if renamed is data and self._pairs:
            return self._spaced.sub(lambda found: found[1] + self._shown, data)
        return renamed


class StreamRenamer:
    """Renames in a document that comes in pieces, cut anywhere.

    Args:
        renamer: What to rename.
    """

    __slots__ = ("_held", "_keep", "_rename")

    def __init__(self, renamer: Renamer) -> None:
        self._rename = renamer.events
        self._keep = renamer.longest
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Rename in the next bytes; as many as a field can have are kept for the next call."""
        data = self._rename(self._held + data)
        end = max(0, len(data) - self._keep)
        self._held = data[end:]
        return data[:end]

    def flush(self) -> bytes:
        """The bytes that `feed` has kept, once nothing more comes."""
        held, self._held = self._held, b""
        return held


def _pair(value: bytes, shown: bytes, separator: str) -> tuple[bytes, bytes]:
    """What to search for and what to put there."""
    key = f'"model"{separator}'.encode()
    return key + value, key + shown
