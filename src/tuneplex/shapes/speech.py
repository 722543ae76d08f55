"""What of a model's files decides how prompts are written and answers end: template, added tokens, defaults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from tuneplex.errors import SourceError
from tuneplex.shapes.jsonfile import read_json

__all__ = ["Speech", "read_speech"]

_TEMPLATE = "chat_template.jinja"
_TOKENIZER = "tokenizer_config.json"
_T = TypeVar("_T")
_DIGITS = 10
_MOST_TEMPLATE = 4 * 1024 * 1024
# What an engine takes as a request's defaults.
_DEFAULTS = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "eos_token_id"}
)


class Speech(msgspec.Struct, frozen=True):
    """What a directory says; all of it may be missing.

    Attributes:
        template: The chat template.
        tokens: Tokens beside the vocabulary proper, and their numbers.
        padding: The token that fills batches up in training; no prompt or answer has it.
        defaults: Of sampling.
        damaged: The file that could not be read, and why.
    """

    template: str = ""
    tokens: dict[str, int] = {}
    padding: str = ""
    defaults: dict[str, object] = {}
    damaged: str = ""


class _TokenizerConfig(msgspec.Struct, frozen=True):
    chat_template: object = None
    added_tokens_decoder: dict[str, object] | None = None
    pad_token: object = None


class _Tokenizer(msgspec.Struct, frozen=True):
    added_tokens: list[object] | None = None


def read_speech(directory: Path) -> Speech:
    """Read what a directory of a model or an adapter says about templates, tokens and defaults. Never fails."""
    try:
        return _read(directory)
    except SourceError as error:
        return Speech(damaged=str(error))
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        return Speech(damaged=f"{directory}: {error}")


def _read(directory: Path) -> Speech:
    config = _optional(directory / _TOKENIZER, _TokenizerConfig) or _TokenizerConfig()
    tokenizer = _optional(directory / "tokenizer.json", _Tokenizer) or _Tokenizer()
    plain = _optional(directory / "added_tokens.json", dict[str, int]) or {}
    defaults = _optional(directory / "generation_config.json", dict[str, object]) or {}
    return Speech(
        template=_template(directory / _TEMPLATE, config.chat_template),
        tokens=plain | dict(_added(tokenizer, config)),
        padding=_text(config.pad_token),
        defaults={key: value for key, value in defaults.items() if key in _DEFAULTS and value is not None},
    )


def _optional(file: Path, kind: type[_T]) -> _T | None:
    return read_json(file, kind) if file.is_file() else None


def _template(file: Path, configured: object) -> str:
    """The file's, else the configuration's, which may be a list of several by name."""
    if file.is_file():
        if file.stat().st_size > _MOST_TEMPLATE:
            raise SourceError(f"{file}: is too large for a chat template")
        return file.read_text("utf-8").strip()
    if isinstance(configured, list):
        named = {one.get("name"): one.get("template") for one in configured if isinstance(one, dict)}
        configured = named.get("default")
    return configured.strip() if isinstance(configured, str) else ""


def _added(tokenizer: _Tokenizer, config: _TokenizerConfig) -> Iterator[tuple[str, int]]:
    for one in tokenizer.added_tokens or ():
        if isinstance(one, dict) and isinstance(one.get("id"), int):
            yield _text(one), one["id"]
    for number, one in (config.added_tokens_decoder or {}).items():
        if number.isdecimal() and len(number) < _DIGITS:
            yield _text(one), int(number)


def _text(token: object) -> str:
    """A token is written as it is, or as an object that says more about it."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""
