"""Bytes, durations and money as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = [
    "CURRENCY",
    "MOST_MONEY",
    "PICOS",
    "format_bytes",
    "format_duration",
    "format_long",
    "format_money",
    "parse_bytes",
    "parse_duration",
    "parse_money",
]

_BYTES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
# Eighteen digits are more than any machine has bytes; without a limit a long number would become infinite.
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)"
_SIZE = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z]*)\s*")
_DURATION_PART = re.compile(rf"\s*{_NUMBER}\s*(ms|s|min|m|h|d)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+\s*")

# Money is counted in whole picos, so that no sum ever loses or makes any. One token's price needs that many digits.
PICOS = 10**12
# More would not fit into the databases' integers, sums of several months included.
MOST_MONEY = 4_000_000 * PICOS
CURRENCY = r"[A-Z]{3}"
_MONEY_DIGITS = 12
_MONEY = re.compile(rf"\s*([0-9]{{1,18}})(?:\.([0-9]{{1,{_MONEY_DIGITS}}})(?:0*))?\s*({CURRENCY})?\s*")


def parse_bytes(text: str) -> int:
    """Read `512MiB`, `2 GB` or `1048576` as a number of bytes; a fraction of a byte is dropped.

    Raises:
        ValueError: The text is not a size.
    """
    match = _SIZE.fullmatch(text)
    factor = _BYTES.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write for instance 512MiB or 2GiB")
    return int(Decimal(match[1]) * factor)


def format_bytes(count: int) -> str:
    """Write a number of bytes with a binary unit: `1.5 GiB`."""
    if count < 1024:  # noqa: PLR2004 - the step between binary units
        return f"{count} B"
    size = count / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1023.95:  # noqa: PLR2004 - from here on one decimal would read 1024.0
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def parse_duration(text: str) -> float:
    """Read `250ms`, `30s`, `1.5h` or `1h30m` as seconds; a plain number is seconds.

    Raises:
        ValueError: The text is not a duration.
    """
    if plain := re.fullmatch(rf"\s*{_NUMBER}\s*", text):
        return float(plain[1])
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration; write for instance 500ms, 30s or 10m")
    return float(sum(Decimal(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text)))


def format_duration(seconds: float) -> str:
    """Write seconds briefly: `0.3s`, `42s`, `3m05s`, `2h10m`."""
    if seconds < 9.95:  # noqa: PLR2004 - below this a decimal is worth reading
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 1:
        return f"{rest}s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours}h{minutes_left:02d}m" if hours else f"{minutes}m{rest:02d}s"


def format_long(seconds: float) -> str:
    """Write seconds briefly, whole days as such if they are several: `90d`, `24h00m`."""
    days, rest = divmod(seconds, 86400)
    return f"{days:.0f}d" if days > 1 and not rest else format_duration(seconds)


def parse_money(text: str) -> tuple[int, str]:
    """Read `12.50` or `12.50 EUR` as picos (10^-12) of the currency's unit, exactly; and the currency, or nothing.

    Raises:
        ValueError: The text is not an amount, or not one that picos can hold.
    """
    match = _MONEY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an amount of money; write for instance 12.50, with 12 decimals at most")
    whole, decimals, currency = match.groups(default="")
    return int(whole) * PICOS + int(decimals.ljust(_MONEY_DIGITS, "0")), currency


def format_money(picos: int, currency: str = "") -> str:
    """Write picos as an exact decimal with two digits at least: `12.50 EUR`, `0.000015`."""
    whole, rest = divmod(abs(picos), PICOS)
    decimals = f"{rest:0{_MONEY_DIGITS}}".rstrip("0").ljust(2, "0")
    return f"{'-' if picos < 0 else ''}{whole}.{decimals}{f' {currency}' if currency else ''}"
