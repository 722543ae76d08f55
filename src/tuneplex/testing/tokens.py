"""A small tokenizer of FakeEngine's own: byte-exact both ways, and with characters that span several tokens.

The first ids are special tokens, then come the 256 bytes, then whole words. Text that no word covers becomes one token
per byte, so that a character outside ASCII has token borders inside it, as it has in a real engine.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

__all__ = ["CHARACTERS", "Detokenizer", "Tokenizer"]

_WORDS = (
    "a about after again all and answer any are as ask at back be been before both but by call can clear come could "
    "day do down each east even every far few find first five for four free from full give go good great green had "
    "hand has have he head help her here high him his home house how if in into is it its just keep kind know land "
    "large last late left less let life light like line little long look low made make many may mean men might model "
    "more most much must name near new next night no north not now number of off old on one only open or other our "
    "out over own part place point put rain read red right river road room said same say sea see set she short show "
    "side small so some south stand start stay stone such sun take tell than that the their them then there these "
    "they thing think this three time to too town tree two under until up us use very wait walk want was water way we "
    "well went were west what when where which while white who why will wind with word work world would year you your"
)
_HEADERS = ("system\n", "user\n", "assistant\n", "tool\n")
# Each begins with another byte, so that the first token of a character decides which one it becomes.
CHARACTERS = ("é", "ж", "世", "한", "🙂")


class Tokenizer:
    """Turns text into token ids and back, without loss.

    Attributes:
        eos: The id that ends a reply and a chat message.
    """

    specials: ClassVar[tuple[str, ...]] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    start: ClassVar[int] = 1
    eos: ClassVar[int] = 2
    first_byte: ClassVar[int] = len(specials)
    first_word: ClassVar[int] = first_byte + 256

    def __init__(self) -> None:
        words = [f" {word}" for word in _WORDS.split()]
        self.words = tuple(words + [word.strip().capitalize() for word in words] + list(_HEADERS))
        pieces: list[bytes] = [b""] * len(self.specials)
        pieces += [bytes((value,)) for value in range(256)]
        pieces += [word.encode() for word in self.words]
        self._bytes = tuple(pieces)
        self._ids = {text: number for number, text in enumerate(self.specials)}
        self._ids |= {word: self.first_word + number for number, word in enumerate(self.words)}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, longest_first)) + "|.", re.DOTALL)

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self._bytes)

    @property
    def plain_words(self) -> range:
        """The ids of words that begin with a space."""
        return range(self.first_word, self.first_word + (len(self.words) - len(_HEADERS)) // 2)

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`; the names of special tokens in it count as those tokens."""
        ids: list[int] = []
        for piece in self._split.findall(text):
            known = self._ids.get(piece)
            if known is None:
                ids += [self.first_byte + value for value in piece.encode("utf-8", "surrogatepass")]
            else:
                ids.append(known)
        return ids

    def bytes_of(self, token_id: int) -> bytes:
        """What one token adds to the text; nothing for a special one."""
        return self._bytes[token_id]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        shown = (self._bytes[i] or (b"" if skip_special else self.specials[i].encode()) for i in ids)
        return b"".join(shown).decode("utf-8", "replace")

    def name(self, token_id: int) -> str:
        """How log-probabilities call a token."""
        return self.specials[token_id] if token_id < len(self.specials) else self.decode((token_id,))

    def as_json(self) -> str:
        """The same tokenizer as the `tokenizer.json` of a base, for whoever makes text of the fake's tokens."""
        words = sorted(self.words, key=len, reverse=True)
        names = [*self.specials, *(f"<0x{value:02X}>" for value in range(256)), *self.words]
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        split = {"pattern": {"Regex": "|".join(map(re.escape, words))}, "behavior": "Isolated", "invert": False}
        model = {"type": "BPE", "byte_fallback": True, "ignore_merges": True, "merges": []}
        return json.dumps(
            {
                "version": "1.0",
                "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(self.specials)],
                "pre_tokenizer": {"type": "Split", **split},
                "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
                "model": {**model, "vocab": {name: number for number, name in enumerate(names)}},
            }
        )

    def chat(self, messages: Sequence[tuple[str, str]], *, generate: bool = True) -> list[int]:
        """The ids of a conversation of (role, text), in ChatML, open for the assistant's turn."""
        turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)
        return self.encode(turns + ("<|im_start|>assistant\n" if generate else ""))


class Detokenizer:
    """Turns a stream of token ids into text that only ever grows by whole characters.

    It holds back what could still become a stop string, and ends at one, as vLLM does.

    Args:
        tokenizer: Whose ids they are.
        stop: The strings that end the text.
        include_stop: Leave the stop string in the text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, include_stop: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._include_stop = include_stop
        self._hold = 0 if include_stop or not stop else max(map(len, stop)) - 1
        self._sent = 0
        self.text = ""

    def add(self, token_id: int, *, may_stop: bool = True) -> str | None:
        """Take one more token; the stop string, if that completed one and may end the text here."""
        new = self._decoder.decode(self._tokenizer.bytes_of(token_id))
        self.text += new
        return self._stopped(len(new)) if new and self._stop and may_stop else None

    def _stopped(self, new: int) -> str | None:
        ends = []
        for number, stop in enumerate(self._stop):
            at = self.text.find(stop, max(0, len(self.text) - new - len(stop) + 1))
            if at >= 0:
                ends.append((at + len(stop), number, at))
        if not ends:
            return None
        end, number, at = min(ends)
        self.text = self.text[: end if self._include_stop else at]
        return self._stop[number]

    def take(self, *, finished: bool) -> str:
        """The text that has not been taken yet and may be shown."""
        end = len(self.text) - (0 if finished else self._hold)
        if end <= self._sent:
            return ""
        new, self._sent = self.text[self._sent : end], end
        return new
