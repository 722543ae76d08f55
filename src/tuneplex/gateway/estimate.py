"""How many tokens a request may need, before an engine has counted them: a pure function of its fields.

The prompt is estimated, four bytes of text for a token; what is to come is what the client allows at most. When the
request is over, what was really used takes the estimate's place.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tuneplex.types import Route

__all__ = ["UNSAID_COMPLETION", "Estimate", "estimate"]

# What is to come where the client allows anything.
UNSAID_COMPLETION = 1024
_BYTES_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4
_MOST = 2**40

_TEXTS = {
    Route.CHAT: ("messages",),
    Route.COMPLETIONS: ("prompt",),
    Route.RESPONSES: ("input", "instructions"),
    Route.EMBEDDINGS: ("input", "messages"),
}
# The fields of a message, and of its parts, that hold text which the model reads.
_INNER = ("content", "text", "output", "arguments", "tool_calls", "function", "name")
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

_anything = msgspec.json.Decoder()


class Estimate(msgspec.Struct, frozen=True):
    """Tokens that a request may need.

    Attributes:
        prompt: About how many it has.
        completion: How many the engine may add at most, as far as the client says.
    """

    prompt: int
    completion: int


class _Sums(msgspec.Struct):
    """What was found in a prompt: bytes of text, tokens that the client has counted itself, and messages."""

    text_bytes: int = 0
    tokens: int = 0
    messages: int = 0


def estimate(route: Route, fields: Mapping[str, msgspec.Raw]) -> Estimate:
    """Tokens of the prompt and to come. What makes no sense is left to the engine to refuse."""
    sums = _Sums()
    prompts = 1
    for name in _TEXTS[route]:
        value = _value(fields, name)
        if value is None:
            sums.text_bytes += _unreadable(fields.get(name))
        _add(sums, value)
        if route is Route.COMPLETIONS and isinstance(value, list) and value and not isinstance(value[0], int):
            prompts = len(value)
    prompt = -(-sums.text_bytes // _BYTES_PER_TOKEN) + sums.tokens + _TOKENS_PER_MESSAGE * sums.messages
    if route is Route.EMBEDDINGS:
        return Estimate(prompt, 0)
    return Estimate(prompt, min(_MOST, _to_come(fields) * prompts * max(1, _number(fields, "n") or 1)))


def _to_come(fields: Mapping[str, msgspec.Raw]) -> int:
    for name in _LIMITS:
        allowed = _number(fields, name)
        if allowed is not None:
            return max(0, allowed)
    return UNSAID_COMPLETION


def _number(fields: Mapping[str, msgspec.Raw], name: str) -> int | None:
    value = _value(fields, name)
    return min(value, _MOST) if isinstance(value, int) and not isinstance(value, bool) else None


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> object:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _anything.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _unreadable(raw: msgspec.Raw | None) -> int:
    """The bytes of what could not be decoded: nobody must come in for nothing because of one strange part."""
    return 0 if raw is None or bytes(raw) == b"null" else len(raw)


def _add(sums: _Sums, value: object) -> None:
    """Add up whatever a prompt can be: a text, tokens, messages, parts of messages, or lists of them."""
    found = [value]
    while found:
        one = found.pop()
        if isinstance(one, str):
            sums.text_bytes += len(one) if one.isascii() else len(one.encode(errors="surrogatepass"))
        elif isinstance(one, int):
            sums.tokens += 1
        elif isinstance(one, list):
            found += one
        elif isinstance(one, dict):
            sums.messages += "role" in one
            found += [one[name] for name in _INNER if name in one]
