"""FakeEngine's tokenizer as a `tokenizer.json`, with which gateways read its ids."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tuneplex.testing.tokens import Tokenizer

__all__ = ["write_tokenizer"]


def write_tokenizer(path: Path) -> Path:
    """Write it; returns the path."""
    fake = Tokenizer()
    letters = _letters()
    vocabulary: dict[str, int] = {}
    for number in range(fake.first_byte, fake.size):
        token = "".join(letters[byte] for byte in fake.bytes_of(number))
        if token in vocabulary:  # a word of one letter takes the place of its byte, as it does in the fake
            vocabulary[f"<unused {vocabulary[token]}>"] = vocabulary[token]
        vocabulary[token] = number
    specials = {name: number for number, name in enumerate(fake.specials)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=specials | vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in fake.specials])
    tokenizer.save(str(path))
    return path


def _letters() -> dict[int, str]:
    """How byte-level tokenizers write each byte: as itself where that can be seen, else as a letter from 256 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + at) for at, byte in enumerate(others)}
