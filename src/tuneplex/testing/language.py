"""FakeEngine's language model: the next token is a function of all tokens before it, and of the adapter.

So a reply that was cut anywhere can be continued from its token ids, here or on another FakeEngine, and comes out the
same, which is what a real engine does at temperature 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tuneplex.testing.tokens import CHARACTERS, Tokenizer

__all__ = ["Continuation", "Language", "Recital"]

_MASK = (1 << 64) - 1
_SHORTEST = 12
_CHARACTERS = tuple(character.encode() for character in CHARACTERS)
_HEADS = frozenset(character[:length] for character in _CHARACTERS for length in range(1, len(character)))


class Language:
    """The next token after some tokens, for one way of speaking.

    Args:
        tokenizer: Whose ids it speaks in.
        voice: What makes one way of speaking different from another: adapter, seed, index of the choice.
        prompt: The ids that come first.
    """

    def __init__(self, tokenizer: Tokenizer, voice: str, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._state = int.from_bytes(hashlib.blake2b(voice.encode(), digest_size=8).digest())
        self._head = b""
        self._since_special = 0
        for token_id in prompt:
            self.hear(token_id)

    def hear(self, token_id: int) -> None:
        """Take one token into account."""
        self._state = ((self._state ^ token_id) * 6364136223846793005 + 1442695040888963407) & _MASK
        self._since_special = 0 if token_id < Tokenizer.first_byte else self._since_special + 1
        if Tokenizer.first_byte <= token_id < Tokenizer.first_word:
            byte = self._tokenizer.bytes_of(token_id)
            self._head = next((head for head in (self._head + byte, byte) if head in _HEADS), b"")
        else:
            self._head = b""

    def next(self, *, may_end: bool = True) -> int:
        """The token that follows; nothing is remembered."""
        chance = self._state >> 33
        if self._head:
            return self._finish_character()
        if may_end and self._since_special >= _SHORTEST and chance % 24 == 0:
            return Tokenizer.eos
        if chance % 7 == 0:
            return Tokenizer.first_byte + _CHARACTERS[(chance // 7) % len(_CHARACTERS)][0]
        words = self._tokenizer.plain_words
        return words[(chance // 11) % len(words)]

    def _finish_character(self) -> int:
        length = len(self._head)
        whole = next(character for character in _CHARACTERS if character[:length] == self._head)
        return Tokenizer.first_byte + whole[length]


class Continuation:
    """Speaks on after a prompt, for as long as it is asked."""

    def __init__(self, language: Language) -> None:
        self._language = language

    def next(self, *, may_end: bool = True) -> int:
        """The next token of the reply."""
        token_id = self._language.next(may_end=may_end)
        self._language.hear(token_id)
        return token_id


class Recital:
    """Says the ids it was given, then ends; made for replies whose text is prescribed."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = iter(ids)

    def next(self, *, may_end: bool = True) -> int:
        """The next token of the reply; the end comes when all has been said, whether or not it may."""
        del may_end
        return next(self._ids, Tokenizer.eos)
