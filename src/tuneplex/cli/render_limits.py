"""What the commands show of limits: pure functions from values to sheets and lines."""

from __future__ import annotations

from collections.abc import Iterable

from tuneplex.cli.terminal import Cell, Sheet
from tuneplex.control.bodies import LimitUse
from tuneplex.identity import Limits

__all__ = ["limits", "uses"]

_WORDS = {
    "requests_per_minute": "requests/min",
    "tokens_per_minute": "tokens/min",
    "tokens_per_day": "tokens/day",
    "concurrent": "at a time",
}
_HEADS = ("REQUESTS/MIN", "TOKENS/MIN", "TOKENS/DAY", "AT A TIME")


def limits(found: Limits) -> str:
    """Limits in a few words: `60 requests/min, 4 at a time`; empty when there is none."""
    given = ((getattr(found, name), words) for name, words in _WORDS.items())
    return ", ".join(f"{value} {words}" for value, words in given if value is not None)


def uses(found: Iterable[LimitUse]) -> Sheet:
    """One row for each subject: what it has used of what it may use."""
    return Sheet(
        columns=("SUBJECT", *_HEADS, "REFUSED"),
        rows=tuple(_row(one) for one in found),
        empty="no limits; `tuneplex tenants set NAME --requests-per-minute N` sets one",
        right=frozenset({*_HEADS, "REFUSED"}),
        flexible=frozenset({"SUBJECT"}),
    )


def _row(found: LimitUse) -> tuple[Cell, ...]:
    used = (found.requests, found.tokens, found.day_tokens, found.concurrent)
    return (
        Cell(found.subject, "bold"),
        *(_cell(one, getattr(found.limits, name)) for one, name in zip(used, _WORDS, strict=True)),
        Cell(str(found.refused), "yellow" if found.refused else ""),
    )


def _cell(used: int, limit: int | None) -> Cell:
    if limit is None:
        return Cell("")
    return Cell(f"{used} of {limit}", "red" if used >= limit else "")
