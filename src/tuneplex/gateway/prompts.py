"""What of a request's fields the model reads as its prompt, in pieces that are small enough to be counted one by one.

Nothing is rendered and nothing large is decoded at once: a long text is cut as it stands in the JSON, mostly before a
space, where tokenizers cut, too, and each piece is decoded when its turn comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from tuneplex.types import Route

__all__ = ["SEVERAL", "TEXTS", "Part", "parts", "size_of"]

_BYTES_PER_TOKEN = 4
_PIECE = 8 * 1024  # bytes of JSON
_SLICE = 1024 * 1024
_DEEPEST = 10  # levels of a large value that are looked into
_MOST_VALUES = 100_000  # of them in a large value
_CUT = 16  # tokens that a cut may add at most: a special token, written out in a text, falls to pieces
_JOINED = 8  # tokens that a chat's template may save where it joins texts
_EDGES = 4  # characters of white space at a text's ends; templates strip them

TEXTS = {
    Route.CHAT: ("messages",),
    Route.COMPLETIONS: ("prompt",),
    Route.RESPONSES: ("input", "instructions"),
    Route.EMBEDDINGS: ("input", "messages"),
}
SEVERAL = {Route.COMPLETIONS: "prompt", Route.EMBEDDINGS: "input"}  # where a list is a list of prompts
_TEMPLATED = frozenset({Route.CHAT, Route.RESPONSES})
# The fields of a message, and of its parts, that hold text which the model reads.
_INNER = ("content", "text", "output", "arguments", "tool_calls", "function", "name", "reasoning", "reasoning_content")
_READ = frozenset({"content", "text"})  # of them, those that every template reads
# Of a text in JSON, what can stand for itself: other bytes, two escapes that are one character, other escapes.
_UNITS = re.compile(rb"(?:[^\\]++|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u(?![dD][89abAB])....|\\[^u])*+", re.DOTALL)
_QUOTE, _BRACKET = b'"['

_anything = msgspec.json.Decoder()
_text = msgspec.json.Decoder(str)
_list = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Part(msgspec.Struct, frozen=True):
    """A piece of a prompt.

    Attributes:
        sequence: Which of the request's prompts it belongs to.
        text: To be counted.
        tokens: That are known already.
        message: A message begins.
        certain: The model reads all of it, whatever the chat's template is.
        spare: Tokens by which counting it apart may be too much.
        size: Bytes of the request that it stands for.
    """

    sequence: int
    text: str = ""
    tokens: int = 0
    message: bool = False
    certain: bool = True
    spare: int = 0
    size: int = 0


def size_of(route: Route, fields: Mapping[str, msgspec.Raw]) -> int:
    """Bytes of the request's prompt, as it came."""
    return sum(len(memoryview(fields[name])) for name in TEXTS[route] if name in fields)


def parts(route: Route, fields: Mapping[str, msgspec.Raw]) -> Iterator[Part]:
    """The prompts of a request, piece by piece; what makes no sense is left out, for the engine to refuse."""
    for name in TEXTS[route]:
        if name not in fields:
            continue
        prompts = _open(fields[name], 0)
        if SEVERAL.get(route) == name and isinstance(prompts, list) and not _is_tokens(prompts):
            for number, prompt in enumerate(prompts):
                yield from _Walk(number, templated=False).through(prompt, 1)
        else:
            yield from _Walk(0, templated=route in _TEMPLATED or name == "messages").through(prompts, 1)


class _Long(msgspec.Struct):
    """A text that is cut before it is decoded."""

    raw: memoryview


class _Tokens(msgspec.Struct):
    """A list of tokens that is not decoded at all."""

    count: int
    size: int


class _Unread(msgspec.Struct):
    """A value that is too large, or too deep, to be looked into."""

    size: int


class _Walk:
    """Goes through one prompt."""

    def __init__(self, sequence: int, *, templated: bool) -> None:
        self._sequence = sequence
        self._templated = templated

    def through(self, value: object, depth: int, *, certain: bool = True) -> Iterator[Part]:
        """Whatever a prompt can be: a text, tokens, messages, parts of messages, or lists of them."""
        value = _open(value, depth)
        if isinstance(value, str):
            yield self._part(value, len(value), certain=certain, first=True)
        elif isinstance(value, _Long):
            yield from self._cut(value.raw, certain=certain)
        elif isinstance(value, int):
            yield Part(self._sequence, tokens=1, certain=certain)
        elif isinstance(value, _Tokens):
            yield Part(self._sequence, tokens=value.count, certain=certain, size=value.size)
        elif isinstance(value, _Unread):
            yield Part(self._sequence, tokens=-(-value.size // _BYTES_PER_TOKEN), certain=False, size=value.size)
        elif isinstance(value, list) and all(isinstance(one, int) for one in value):
            yield Part(self._sequence, tokens=len(value), certain=certain)
        elif isinstance(value, list):
            for one in value:
                yield from self.through(one, depth + 1, certain=certain)
        elif isinstance(value, dict):
            yield from self._message(value, depth, certain=certain)
        else:
            yield Part(self._sequence)  # nothing, but whoever counts can look up after so many of them

    def _message(self, message: dict[str, object], depth: int, *, certain: bool) -> Iterator[Part]:
        if "role" in message:
            # Templates leave out some of what a model has said before: reasoning, for instance.
            certain = _open(message["role"], depth) != "assistant"
        elif depth <= 2:  # noqa: PLR2004 - an item of a response's input that is no message
            certain = False
        yield Part(self._sequence, message="role" in message)
        for name in _INNER:
            if name in message:
                yield from self.through(message[name], depth + 1, certain=certain and name in _READ)

    def _cut(self, raw: memoryview, *, certain: bool) -> Iterator[Part]:
        start, end = 1, len(raw) - 1
        while start < end:
            window = bytes(raw[start : min(end, start + _PIECE)])
            piece = window if start + len(window) == end else window[: _cut_at(window)]
            try:
                text = _text.decode(b'"%b"' % piece)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                text, certain = piece.decode(errors="replace"), False
            yield self._part(text, len(piece), certain=certain, first=start == 1)
            start += len(piece)

    def _part(self, text: str, size: int, *, certain: bool, first: bool) -> Part:
        if self._templated and certain:
            certain = len(text) - len(text.strip()) <= _EDGES
        spare = _CUT * (not first) + _JOINED * self._templated
        return Part(self._sequence, text, certain=certain, spare=spare, size=size)


def _open(value: object, depth: int) -> object:
    """One level of a value that is still JSON."""
    if not isinstance(value, msgspec.Raw):
        return value
    raw = memoryview(value)
    try:
        return _anything.decode(value) if len(raw) <= _PIECE else _opened(value, raw, depth)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Unread(len(raw))  # an engine may read it, and nobody must come in for nothing by one strange part


def _opened(value: msgspec.Raw, raw: memoryview, depth: int) -> object:
    if raw[0] == _QUOTE:
        return _Long(raw)
    whole = bytes(raw)
    if raw[0] == _BRACKET and whole.find(b"[", 1) < 0 and b'"' not in whole and b"{" not in whole:
        return _Tokens(_commas(whole) + 1, len(whole))
    if depth > _DEEPEST or (depth <= 1 and _commas(whole) > _MOST_VALUES):
        return _Unread(len(whole))
    return _list.decode(value) if raw[0] == _BRACKET else _object.decode(value)


def _commas(whole: bytes) -> int:
    """How many there are, and so at most how many values; in slices, because the interpreter is held for each."""
    return sum(whole.count(b",", start, start + _SLICE) for start in range(0, len(whole), _SLICE))


def _cut_at(window: bytes) -> int:
    """Where a text can be cut as it stands in JSON: before a space, else between any two characters."""
    space = window.rfind(b" ", 1)
    if space > 0:
        return space
    found = _UNITS.match(window)
    end = found.end() if found is not None and found.end() else len(window)
    last = end - 1
    while last > 0 and window[last] & 0xC0 == 0x80:  # noqa: PLR2004 - not the first byte of a character in UTF-8
        last -= 1
    return last if last > 0 and window[last] >= 0xC0 else end  # noqa: PLR2004 - of a character of several bytes


def _is_tokens(prompts: list[object]) -> bool:
    """Whether a list is one prompt in tokens, and not several prompts."""
    first = _open(prompts[0], 1) if prompts else 0
    return isinstance(first, int)
