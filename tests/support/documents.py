"""The examples in the documentation, found by the language of their fences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "Block", "blocks"]

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced example."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str, *pages: str) -> list[Block]:
    """All examples of one language on these pages, in their order."""
    return list(_blocks(language, pages))


def _blocks(language: str, pages: tuple[str, ...]) -> Iterator[Block]:
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if match[1] == language:
                yield Block(page, text.count("\n", 0, match.start()) + 1, match[2])
