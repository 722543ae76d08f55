"""How many tokens a request may need, before an engine has counted them: pure functions of its fields.

The prompt is counted by the base's tokenizer (see `tokens`) or estimated, four bytes of text for a token; what is to
come is what the client allows at most. When the request is over, what was really used takes the estimate's place.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tuneplex.errors import BadRequest
from tuneplex.gateway.prompts import SEVERAL, TEXTS, Part
from tuneplex.types import Route

__all__ = [
    "UNSAID_COMPLETION",
    "Estimate",
    "Tally",
    "by_size",
    "choices_of",
    "does_not_fit",
    "fits_by_size",
    "longest_answer",
]

# What is to come where the client allows anything.
UNSAID_COMPLETION = 1024
_BYTES_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4
_MOST = 2**40
# How each route calls what the client allows. Engines ignore the names of other routes, so they must not count here.
_LIMITS = {
    Route.CHAT: ("max_completion_tokens", "max_tokens"),
    Route.COMPLETIONS: ("max_tokens",),
    Route.RESPONSES: ("max_output_tokens",),
}
# Chat templates write these out about as they are.
_WRITTEN_OUT = ("tools", "documents")
_BRACKET = ord("[")
# What costs tokens, and whether a list of it is one of prompts.
_SIZED = {
    route: tuple((name, SEVERAL.get(route) == name) for name in (*names, *_WRITTEN_OUT))
    for route, names in TEXTS.items()
}

_anything = msgspec.json.Decoder()


class Estimate(msgspec.Struct, frozen=True):
    """Tokens that a request may need.

    Attributes:
        prompt: About how many it has. A chat's template is not rendered: its texts, and four for each message.
        completion: How many the engine may add at most, as far as the client says; for all choices and prompts.
        at_least: How many an engine must be able to hold for the longest of its prompts, or it refuses: all that is
            certain of the prompt and one more, or all that may be added, if that is more.
        whole: How many it must be able to hold so that the answer can be as long as the client allows; no smaller
            than `at_least`.
        counted: The base's tokenizer has counted; else bytes were.
        exact: All of it was looked at; else the rest was taken to be like the beginning.
        choices: How many replies are asked for, to all prompts together.
        prompts: How many prompts there are.
    """

    prompt: int
    completion: int
    at_least: int = 0
    whole: int = 0
    counted: bool = False
    exact: bool = True
    choices: int = 1
    prompts: int = 1


class Tally:
    """Adds up the parts of one request's prompts.

    Attributes:
        least: What is certain of the longest prompt so far, tokens.
        seen: Bytes of the request that were looked at.
    """

    def __init__(self, route: Route, fields: Mapping[str, msgspec.Raw]) -> None:
        self._route = route
        self._asked = longest_answer(route, fields)
        self._choices = choices_of(fields)
        self._cuts_off = _cuts_off(route, fields)
        self._tokens = 0
        self._bytes = sum(len(memoryview(fields[name])) for name in _WRITTEN_OUT if name in fields)
        self._prompts = 1
        self._certain = 0  # of the prompt that is being added
        self.least = 0
        self.seen = 0

    def add(self, part: Part, counted: int | None) -> None:
        """Add one part, with the number of tokens in its text if that was counted."""
        if part.sequence >= self._prompts:
            self._prompts, self._certain = part.sequence + 1, 0
        self.seen += part.size
        self._tokens += part.tokens + _TOKENS_PER_MESSAGE * part.message + (counted or 0)
        if counted is None:
            text = part.text
            self._bytes += len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if part.certain:
            self._certain += part.tokens + max(0, (counted or 0) - part.spare)
            self.least = max(self.least, self._certain)

    def result(self, *, counted: bool = False, of: int = 0) -> Estimate:
        """What it comes to; with `of`, bytes of which only `seen` were looked at, the rest is taken to be the same."""
        prompt = self._tokens + -(-self._bytes // _BYTES_PER_TOKEN)
        if of:
            prompt = prompt * max(of, self.seen) // self.seen if self.seen else of // _BYTES_PER_TOKEN
        asked, least = self._asked, 0 if self._cuts_off else self.least
        if self._route is Route.EMBEDDINGS:
            return Estimate(prompt, 0, least, least, counted, not of)
        to_come = UNSAID_COMPLETION if asked is None else asked
        choices = min(_MOST, self._prompts * self._choices)
        return Estimate(
            prompt=prompt,
            completion=min(_MOST, to_come * choices),
            at_least=max(least + 1, asked or 0),
            whole=least + max(1, asked or 0),
            counted=counted,
            exact=not of,
            choices=choices,
            prompts=self._prompts,
        )


def by_size(route: Route, fields: Mapping[str, msgspec.Raw]) -> tuple[Estimate, Estimate] | None:
    """What a request may need, by the sizes of its fields alone: about, and at most.

    A token stands for at least a byte, and the JSON around a message is longer than what a template writes around it.
    None where that is not enough to tell: there may be several prompts.
    """
    size = 0
    for name, several in _SIZED[route]:
        if name in fields:
            text = memoryview(fields[name])
            if several and text[0] == _BRACKET:
                return None
            size += len(text)
    choices = choices_of(fields)
    asked = 0 if route is Route.EMBEDDINGS else longest_answer(route, fields)
    completion = min(_MOST, (UNSAID_COMPLETION if asked is None else asked) * choices)
    about = Estimate(-(-size // _BYTES_PER_TOKEN), completion, choices=choices)
    return about, Estimate(size, completion, choices=choices)


def choices_of(fields: Mapping[str, msgspec.Raw]) -> int:
    """How many replies are made of each prompt."""
    return 1 if "n" not in fields else max(1, _number(fields, "n") or 1)


def fits_by_size(size: int, route: Route, fields: Mapping[str, msgspec.Raw], context: int | None) -> bool:
    """Whether a body of so many bytes fits a context for sure, so that nothing needs to be counted to know it.

    A token of a text stands for at least one byte of it. None is a context that nobody knows.
    """
    return context is None or size + (longest_answer(route, fields) or 1) <= context


def does_not_fit(needed: Estimate, largest: int) -> BadRequest:
    """The refusal of a request for which no context is large enough; `largest` is the largest there is."""
    many = f"{needed.at_least}" if needed.exact else f"about {max(needed.at_least, needed.prompt)}"
    return BadRequest(
        f"The request needs a context of at least {many} tokens, and the largest that serves this model has {largest}. "
        "Shorten the prompt, or ask for a shorter answer.",
        code="context_length_exceeded",
    )


def _cuts_off(route: Route, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the client lets the engine shorten the prompt."""
    if route is Route.RESPONSES:
        return _value(fields, "truncation") not in {None, "disabled"}
    return _value(fields, "truncate_prompt_tokens") is not None


def longest_answer(route: Route, fields: Mapping[str, msgspec.Raw]) -> int | None:
    """What the client allows for one answer; None if it says nothing."""
    for name in _LIMITS.get(route, ()):
        allowed = _number(fields, name) if name in fields else None
        if allowed is not None:
            return max(0, allowed)
    return None


def _number(fields: Mapping[str, msgspec.Raw], name: str) -> int | None:
    """A number as engines read it, who take `"5"` and `5.0` for 5: else such a spelling would reserve too little."""
    value = _value(fields, name)
    if isinstance(value, int):  # mostly
        return min(value, _MOST)
    if not isinstance(value, str | float):
        return None
    try:
        return int(min(float(value), _MOST))
    except (ValueError, OverflowError):
        return None


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> object:
    if name not in fields:
        return None
    try:
        return _anything.decode(fields[name])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
