r"""What a request has used, in tokens, as the engine tells it: how a stream is asked for it, and how a reply is read.

Only values are parsed that were found by a search over bytes. Generated text cannot be taken for one: the search is for
`"usage"` with its quotes, and inside of a JSON string every quote is written `\"`, so the quote before the `u` would
follow a backslash. What is found is then read as JSON and has to have numbers of tokens in it, which a tool's schema
that a reply repeats (`"usage":{"type":"object",…}`) has not.
"""

from __future__ import annotations

import json
import re
from typing import Annotated

import msgspec

from tuneplex.types import Route

__all__ = [
    "ASKABLE",
    "OPTIONS",
    "Aloud",
    "Telling",
    "Usage",
    "UsageFinder",
    "asking",
    "asking_aloud",
    "estimated_tokens",
    "read_document",
    "read_usage",
]

# Where a stream tells its usage only to those who ask. Responses tell it always, in their last event.
ASKABLE = frozenset({Route.CHAT, Route.COMPLETIONS})
OPTIONS = "stream_options"

_BYTES_PER_TOKEN = 4  # of English text, roughly
_KEY = re.compile(rb'"usage"\s*:\s*(?=\{)')
_LONGEST = 4096  # no `usage` is longer; vLLM's longest has about 400 bytes

# No request has more tokens. What an engine makes up must not be more than a report of it can hold.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request.

    Attributes:
        prompt: Of the prompt, once however many choices there are.
        completion: Of all choices together.
        cached: Of the prompt's tokens, those that the engine had in its prefix cache, where it tells so.
        exact: As the engine says; otherwise the gateway had to count events and to estimate the prompt.
    """

    prompt: int
    completion: int
    cached: int = 0
    exact: bool = True


class Telling(msgspec.Struct):
    """How an engine tells the usage of its streams, as far as its replies have shown it yet.

    Attributes:
        takes_options: It can be asked for it (`stream_options`); None while that is not known.
        fingerprint: What it then leaves out of an event that ends a choice: the bytes of `,"system_fingerprint":"…"`.
            Empty for nothing; None while that is not known.
        broke_off: It has broken off instead of answering when it was asked, while it was not known to take that.
    """

    takes_options: bool | None = None
    fingerprint: bytes | None = None
    broke_off: bool = False


# --- asking

_ASKED = msgspec.Raw(b'{"include_usage":true}')
_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_value = msgspec.json.Decoder(bool | int | float | str | None)
# vLLM reads `stream_options` as leniently as pydantic does, and who writes 0 for false must not go uncounted.
_SPELLINGS: dict[object, bool] = {
    **dict.fromkeys((None, False, 0, "0", "off", "f", "false", "n", "no"), False),
    **dict.fromkeys((True, 1, "1", "on", "t", "true", "y", "yes"), True),
}


def asking(fields: dict[str, msgspec.Raw]) -> msgspec.Raw | None:
    """The `stream_options` that make an engine tell the usage of a stream to a client that does not want to know it.

    Args:
        fields: Of the request's body.

    Returns:
        The client's own options with `include_usage`. None where they have to stay as they are: the client asks for
        the usage itself, or they are so wrong that the engine must see and refuse them.
    """
    if OPTIONS not in fields:
        return _ASKED
    options = _options_of(fields)
    if options is None or _truth(options.get("include_usage")):
        return None
    asked: dict[str, object] = {**options, "include_usage": True}
    if "continuous_usage_stats" in options:
        asked["continuous_usage_stats"] = False  # without `include_usage` it has no effect
    return msgspec.Raw(msgspec.json.encode(asked))


class Aloud(msgspec.Struct, frozen=True):
    """How an engine is asked to tell the usage in every event, and what of it the client has asked for.

    Attributes:
        options: The `stream_options`.
        usage: The client wants to see it at the end.
        always: The client wants to see it in every event.
    """

    options: msgspec.Raw
    usage: bool
    always: bool


def asking_aloud(fields: dict[str, msgspec.Raw]) -> Aloud | None:
    """The `stream_options` that make an engine tell the usage in every event, as vLLM can.

    Args:
        fields: Of the request's body.

    Returns:
        None where they are so wrong that the engine must see and refuse them.
    """
    options = _options_of(fields)
    if options is None:
        return None
    usage = _truth(options.get("include_usage")) is True
    asked = {**options, "include_usage": True, "continuous_usage_stats": True}
    always = usage and _truth(options.get("continuous_usage_stats")) is True
    return Aloud(msgspec.Raw(msgspec.json.encode(asked)), usage, always)


def _options_of(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw] | None:
    """The client's own options; None if no engine would understand them."""
    if OPTIONS not in fields:
        return {}
    try:
        options = _options.decode(fields[OPTIONS])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    options = options or {}
    flags = ("include_usage", "continuous_usage_stats")
    return None if any(_truth(options.get(name)) is None for name in flags) else options


def _truth(raw: msgspec.Raw | None) -> bool | None:
    """What a flag says; None if it says nothing that an engine would understand."""
    if raw is None:
        return False
    try:
        value = _value.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return _SPELLINGS.get(value.lower() if isinstance(value, str) else value)


# --- reading


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None


class _Counts(msgspec.Struct):
    """`usage`, as chat, completions and embeddings have it or, with other names, responses."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: _Details | None = None


class _Document(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw()


_counts = msgspec.json.Decoder(_Counts | None)
_document = msgspec.json.Decoder(_Document)
_any = msgspec.json.Decoder(msgspec.Raw)
_pieces = json.JSONDecoder()


def read_usage(value: msgspec.Raw | bytes) -> Usage | None:
    """The tokens in the value of a `usage` field; None if there are none."""
    try:
        counts = _counts.decode(value) if value else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if counts is None:
        return None
    prompt = counts.input_tokens if counts.prompt_tokens is None else counts.prompt_tokens
    if prompt is None:
        return None
    details = counts.prompt_tokens_details or counts.input_tokens_details or _Details()
    return Usage(prompt, counts.completion_tokens or counts.output_tokens or 0, details.cached_tokens or 0)


def read_document(body: bytes) -> Usage | None:
    """The usage in a whole reply; None if it tells none.

    Raises:
        msgspec.DecodeError: The reply is not JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return read_usage(_document.decode(body).usage)
    except msgspec.ValidationError:  # JSON, but no object
        _any.decode(body)
        return None


def estimated_tokens(size: int) -> int:
    """About how many tokens so many bytes are."""
    return -(-size // _BYTES_PER_TOKEN)


class UsageFinder:
    """Finds the usage in a document that comes in pieces, cut anywhere, and is too large to be kept.

    Attributes:
        usage: The last one that was found.
    """

    __slots__ = ("_held", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._held = b""

    def feed(self, data: bytes) -> None:
        """Search in the next bytes; as many as a usage can have are kept for the next call."""
        data = self._held + data
        self._search(data, max(0, len(data) - _LONGEST))
        self._held = data[-_LONGEST:]

    def flush(self) -> None:
        """Search in what was kept, once nothing more comes."""
        self._search(self._held, len(self._held))

    def _search(self, data: bytes, end: int) -> None:
        """Read each usage that begins before `end`."""
        for found in _KEY.finditer(data):
            if found.start() >= end:
                return
            self.usage = _read_first(data[found.end() : found.end() + _LONGEST]) or self.usage


def _read_first(data: bytes) -> Usage | None:
    """The usage at the beginning of `data`, whatever follows it."""
    try:
        value, _ = _pieces.raw_decode(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return read_usage(msgspec.json.encode(value))
