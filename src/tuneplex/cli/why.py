"""What a gateway says of why a request took so long, in words."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tuneplex.why import Tokens, Told, Tried

__all__ = ["explained", "lines"]

_WORTH_TELLING_S = 0.005


def explained(text: str) -> tuple[str, ...]:
    """A line for each thing that happened, in their order.

    Args:
        text: JSON, from the header or the comment.

    Raises:
        msgspec.MsgspecError: It is something else.
    """
    return tuple(lines(msgspec.json.decode(text, type=Told)))


def lines(told: Told) -> Iterator[str]:
    """A line for each thing that happened, in their order."""
    if told.counted_s:
        yield f"its tokens were counted after {told.counted_s:.2f} s"
    if told.waited_for:
        yield f"it waited {told.waited_s:.2f} s for {told.waited_for}"
    elif told.waited_s >= _WORTH_TELLING_S:
        yield f"it waited {told.waited_s:.2f} s"
    yield from map(_attempt, told.attempts)
    first = "" if told.first_token_s is None else f"the first token came after {told.first_token_s:.2f} s, "
    yield f"{first}all of it after {told.took_s:.2f} s"
    if told.tokens is not None:
        yield _tokens(told.tokens)


def _attempt(tried: Tried) -> str:
    what = "it went on" if tried.goes_on else "it went"
    others = "" if not tried.beside else f" beside {tried.beside} other{'s' if tried.beside > 1 else ''}"
    pool = f" of the pool {tried.pool}" if tried.pool else ""
    wrote = f" with {tried.wrote} tokens" if tried.wrote else ""
    end = "" if tried.took_s is None else f", and was {tried.ended} {tried.took_s:.2f} s later{wrote}"
    return f"after {tried.after_s:.2f} s {what} to {tried.replica}{pool}{others}{end}"


def _tokens(tokens: Tokens) -> str:
    about = "" if tokens.exact else "about "
    cached = f" ({tokens.cached} of them from the prefix cache)" if tokens.cached else ""
    return f"tokens: {about}{tokens.prompt} of the prompt{cached}, {tokens.completion} of the reply"
