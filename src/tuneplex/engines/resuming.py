"""The seam of a stream that is continued elsewhere: up to which token it is kept, and what of the text that means.

The engine makes text of tokens one by one, and gives it away only when its characters are complete. With stop strings
it also holds back as many characters as one of them may still begin with. So tokens run ahead of the text, and a stop
string may begin before the seam and end behind it, where the continuing engine, which knows its own text only, cannot
find it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import msgspec
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

__all__ = ["PRIMED", "Found", "Seam", "Stops", "Watch", "find_seam"]

# How many tokens of the prompt make sure that the first one behind it gets the right text: the engine decodes it behind
# all of them, but what a tokenizer makes of a token depends on the one or two before it.
PRIMED = 64


class Stops(msgspec.Struct, frozen=True):
    """The strings that end a reply.

    Attributes:
        strings: In the order in which they count where several end at the same character.
        reach: How many characters the longest has behind its first one.
        included: The one that ends a reply is part of it, so nothing has to be held back.
    """

    strings: tuple[str, ...] = ()
    reach: int = 0
    included: bool = False

    def find(self, text: str, new: int) -> tuple[int, int, str] | None:
        """The one that is complete first within the last `new` characters: where it ends and begins, and what it is."""
        found = []
        for order, string in enumerate(self.strings):
            at = text.find(string, max(0, len(text) - new - len(string) + 1))
            if at >= 0:
                found.append((at + len(string), order, at))
        if not found:
            return None
        end, order, at = min(found)
        return end, at, self.strings[order]


class Found(msgspec.Struct, frozen=True):
    """A stop string across the seam.

    Attributes:
        string: Which.
        text: What of the text behind the seam is still part of the reply, with what was held before it.
        tokens: How many of the last tokens it took.
    """

    string: str
    text: str
    tokens: int


class Watch:
    """Looks for stop strings that begin before the seam, until none can any more.

    Args:
        tokenizer: Of the base.
        stream: Has made text of all tokens before the seam.
        before: What was shown of that text, at least as much as a stop string can reach back.
        held: What was not shown.
        stops: What to look for.
    """

    def __init__(self, tokenizer: Tokenizer, stream: DecodeStream, before: str, held: str, stops: Stops) -> None:
        self._tokenizer = tokenizer
        self._stream = stream
        self._shown = len(before)
        self._seam = len(before) + len(held)
        self._text = before + held
        self._stops = stops

    @property
    def new(self) -> int:
        """Characters behind the seam."""
        return len(self._text) - self._seam

    @property
    def over(self) -> bool:
        """Whether a stop string that ends in what comes now has to begin behind the seam, where the engine finds it."""
        return self.new >= self._stops.reach

    def add(self, ids: Sequence[int]) -> Found | None:
        """Take the next tokens.

        Raises:
            Exception: The tokenizer cannot make text of them; it has no class of errors of its own.
        """
        ends = []
        known = len(self._text)
        for token_id in ids:
            self._text += self._stream.step(self._tokenizer, token_id) or ""
            ends.append(len(self._text))
        found = self._stops.find(self._text, len(self._text) - known)
        if found is None:
            return None
        end, at, string = found
        if at >= self._seam:
            return None
        tokens = next(number for number, reached in enumerate(ends, 1) if reached >= end)
        return Found(string, self._text[self._shown : end if self._stops.included else at], tokens)


class Seam(msgspec.Struct, frozen=True):
    """Where a stream is continued.

    Attributes:
        ids: The tokens that are kept, of those that came since the last seam.
        before: The end of the text that the client has.
        held: Text of the tokens that are kept which the client has not got yet.
        length: Characters of the whole reply up to the seam.
        watch: Looks for stop strings across it; None if there can be none.
    """

    ids: list[int]
    before: str
    held: str
    length: int
    watch: Watch | None


class Said(msgspec.Struct, frozen=True):
    """What an engine has said since the last seam.

    Attributes:
        prompt: The last `PRIMED` tokens before it, which the engine had as the end of its prompt.
        ids: Its tokens.
        before: The end of the text that the client had at the last seam.
        held: Text before the last seam that the client had not got then.
        length: Characters of the reply up to the last seam.
        shown: Text that the client has got since.
    """

    prompt: list[int]
    ids: list[int]
    before: str = ""
    held: str = ""
    length: int = 0
    shown: str = ""


def find_seam(tokenizer: Tokenizer, said: Said, stops: Stops, *, skip_special: bool) -> Seam | None:
    """Where to continue: behind the last token whose characters are complete. It may take milliseconds.

    Args:
        tokenizer: Of the base.
        said: What there is.
        stops: What may end the reply.
        skip_special: Special tokens are not part of the text.

    Returns:
        None if the tokens do not make the text that the client has got.
    """
    try:
        kept, new, stream = _replay(tokenizer, said, skip_special=skip_special)
    except Exception:  # noqa: BLE001 - tokens that make no text; the library has no class of errors of its own
        return None
    text = said.held + new
    length = said.length + len(new)
    held = text[len(said.shown) :]
    if not text.startswith(said.shown) or len(held) != min(0 if stops.included else stops.reach, length):
        return None
    before = (said.before + said.shown)[-stops.reach :] if stops.reach else ""
    watch = Watch(tokenizer, stream, before, held, stops) if stops.reach else None
    return Seam(said.ids[:kept], before, held, length, watch)


def _replay(tokenizer: Tokenizer, said: Said, *, skip_special: bool) -> tuple[int, str, DecodeStream]:
    """Make text of tokens as the engine has: how many of them are complete, their text, and what goes on from there."""
    start = DecodeStream(ids=_whole(tokenizer, said.prompt), skip_special_tokens=skip_special)
    stream, kept, pieces = copy.copy(start), 0, []
    for number, token_id in enumerate(said.ids, 1):
        piece = stream.step(tokenizer, token_id)
        if piece:
            kept = number
            pieces.append(piece)
    if kept < len(said.ids):
        stream = start
        for token_id in said.ids[:kept]:
            stream.step(tokenizer, token_id)
    return kept, "".join(pieces), stream


def _whole(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The tokens from the first one on that begins a character."""
    while ids and tokenizer.decode(ids, skip_special_tokens=False).startswith("\ufffd"):
        ids = ids[1:]
    return ids
