r"""Exchange the model's name in a reply by a search over bytes, without parsing JSON.

Why this cannot touch generated text: the search is for `"model":"NAME"` with its quotes. Inside of a JSON string every
quote is written `\"`, so the quote after `model`, which follows an `l`, ends a string; the colon after it makes that
string a key; and the quotes around NAME make it that key's whole value. Generated text is always the content of a
string, so it cannot contain the sequence. (The name in the search is JSON-encoded, so it may hold quotes itself.)
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

__all__ = ["Renamer"]

_SEPARATORS = (":", ": ")


class Renamer:
    """Replaces the engine's name of a model by the client's wherever it is the value of a `model` field.

    Args:
        name: The engine's name.
        shown: The client's name.
    """

    __slots__ = ("_held", "_longest", "_name", "_pairs", "_shown")

    def __init__(self, name: str, shown: str) -> None:
        self._name = name
        self._shown = shown
        self._pairs = _pairs(name, shown) if name != shown else ()
        self._longest = max((len(old) for old, _ in self._pairs), default=0)
        self._held = b""

    def events(self, data: bytes) -> bytes:
        """Rename in data that ends where no field is cut: whole events."""
        for old, new in self._pairs:
            data = data.replace(old, new)
        return data

    def document(self, data: bytes) -> bytes:
        """Rename in a whole JSON document, however it is spaced."""
        renamed = self.events(data)
        if renamed is data and self._pairs:
            return _spaced(self._name).sub(lambda _: _field(self._shown), data)
        return renamed

    def feed(self, data: bytes) -> bytes:
        """Rename in a stream that is cut anywhere; a few bytes may be kept for the next call."""
        data = self._held + data
        start = self._after_last(data)
        keep = self._prefix_at_end(data, start)
        self._held = data[len(data) - keep :] if keep else b""
        return self.events(data[: len(data) - keep])

    def flush(self) -> bytes:
        """The bytes that `feed` has kept, once nothing more comes."""
        held, self._held = self._held, b""
        return held

    def _after_last(self, data: bytes) -> int:
        """Where the last complete field ends."""
        return max((data.rfind(old) + len(old) for old, _ in self._pairs if old in data), default=0)

    def _prefix_at_end(self, data: bytes, start: int) -> int:
        """How many bytes at the end may be the beginning of a field."""
        for size in range(min(self._longest - 1, len(data) - start), 0, -1):
            end = data[-size:]
            if any(old.startswith(end) for old, _ in self._pairs):
                return size
        return 0


@lru_cache(maxsize=1024)
def _pairs(name: str, shown: str) -> tuple[tuple[bytes, bytes], ...]:
    """What to search for and what to put there: both usual spacings, raw and ASCII-only spelling."""
    spellings = dict.fromkeys(json.dumps(name, ensure_ascii=ascii_only) for ascii_only in (False, True))
    value = json.dumps(shown)
    return tuple(
        (f'"model"{separator}{spelling}'.encode(), f'"model"{separator}{value}'.encode())
        for spelling in spellings
        for separator in _SEPARATORS
    )


def _field(shown: str) -> bytes:
    return f'"model":{json.dumps(shown)}'.encode()


def _spaced(name: str) -> re.Pattern[bytes]:
    return re.compile(rb'"model"\s*:\s*' + re.escape(json.dumps(name, ensure_ascii=False).encode()))
