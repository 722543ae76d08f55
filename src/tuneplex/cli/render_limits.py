"""What the commands show of limits: pure functions from values to sheets and lines."""

from __future__ import annotations

from collections.abc import Iterable

from tuneplex.cli.terminal import Cell, Sheet
from tuneplex.control.bodies import LimitsInfo, LimitUse
from tuneplex.units import parse_money

__all__ = ["limits", "uses"]

_WORDS = {
    "requests_per_minute": "requests/min",
    "tokens_per_minute": "tokens/min",
    "tokens_per_day": "tokens/day",
    "concurrent": "at a time",
}
_MONEY = "MONEY/MONTH"
_HEADS = ("REQUESTS/MIN", "TOKENS/MIN", "TOKENS/DAY", "AT A TIME", _MONEY)


def limits(found: LimitsInfo) -> str:
    """Limits in a few words: `60 requests/min, 4 at a time, 25.00 EUR/month (cuts streams)`; empty without any."""
    given = ((getattr(found, name), words) for name, words in _WORDS.items())
    words = [f"{value} {words}" for value, words in given if value is not None]
    if found.money_per_month is not None:
        cuts = " (cuts streams)" if found.cut_streams else ""
        words.append(f"{found.money_per_month} {found.currency or 'money'}/month{cuts}")
    return ", ".join(words)


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
        _money(found),
        Cell(str(found.refused), "yellow" if found.refused else ""),
    )


def _cell(used: int, limit: int | None) -> Cell:
    if limit is None:
        return Cell("")
    return Cell(f"{used} of {limit}", "red" if used >= limit else "")


def _money(found: LimitUse) -> Cell:
    limit = found.limits.money_per_month
    if limit is None:
        return Cell("")
    over = parse_money(found.month_money)[0] >= parse_money(limit)[0]
    return Cell(f"{found.month_money} of {limit} {found.currency}".rstrip(), "red" if over else "")
