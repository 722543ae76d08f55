"""Small tokenizers of the kinds that models have, made here: no model is needed to count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

__all__ = ["KINDS", "make"]

_SENTENCES = (
    "The river runs through the old town, and every spring it floods the lower streets. ",
    "Give me the customer's address: Hauptstraße 12, 80331 München, or the café's phone number.\n\n",
    'def add(a, b):\n    """Add."""\n    return a + b\n\n{"total": 1234567, "items": [1, 2, 3]}\n',
    "Это большой город. 東京は大きい都市です。😀😃 ",
)
_TEXT = [f"{number} {sentence}" for number in range(40) for sentence in _SENTENCES]
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def _byte_level() -> Tokenizer:
    """As GPT-2 and SmolLM2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=_alphabet(), show_progress=False))


def _split() -> Tokenizer:
    """As Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_LLAMA_3), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(use_regex=False)])
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=_alphabet(), show_progress=False))


def _sentencepiece() -> Tokenizer:
    """As Llama 2 and Gemma: the whole text is one word, and unknown characters are bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False)
    trained = _trained(tokenizer, trainer)
    trained.post_processor = processors.TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 0)])
    return trained


def _unigram() -> Tokenizer:
    """As T5 and many embedding models."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=800, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    return _trained(tokenizer, trainer)


def _wordpiece() -> Tokenizer:
    """As BERT: a word that is too long is one unknown token."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _trained(
        tokenizer, trainers.WordPieceTrainer(vocab_size=1000, special_tokens=["[UNK]"], show_progress=False)
    )


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    return tokenizer


def _alphabet() -> list[str]:
    return pre_tokenizers.ByteLevel.alphabet()


KINDS: Mapping[str, Callable[[], Tokenizer]] = MappingProxyType(
    {
        "byte level": _byte_level,
        "split": _split,
        "sentencepiece": _sentencepiece,
        "unigram": _unigram,
        "wordpiece": _wordpiece,
    }
)


@cache
def make(kind: str) -> Tokenizer:
    """One of `KINDS`, trained when it is first asked for."""
    return KINDS[kind]()
