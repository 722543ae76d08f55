"""Sizes, durations and money, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.units import format_bytes, format_duration, format_money, parse_bytes, parse_duration, parse_money


@pytest.mark.parametrize(
    "text, count",
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("1B", 1),
        ("1kb", 1000),
        (" 1.5 GiB ", 3 << 29),
        ("2 TB", 2 * 10**12),
        ("0.1GB", 10**8),
    ],
)
def test_parse_bytes(text: str, count: int) -> None:
    """Sizes have decimal or binary units, or none."""
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 2", "1,5GB", "5 pounds", "1e3", "9" * 19, "٣"])
def test_parse_bytes_refuses(text: str) -> None:
    """Anything else is not a size."""
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1048575, "1.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    """Sizes are written with the binary unit that keeps the number short."""
    assert format_bytes(count) == text


@given(st.integers(0, 2**60))
def test_written_sizes_can_be_read(count: int) -> None:
    """What is written is within a twentieth of the unit of what was meant."""
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.06)


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("5", 5),
        ("0.5", 0.5),
        ("250ms", 0.25),
        ("30 s", 30),
        ("10m", 600),
        ("3min", 180),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1d", 86400),
    ],
)
def test_parse_duration(text: str, seconds: float) -> None:
    """Durations have units, also several, or are plain seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "5 parsecs", "5m5", "1h:30m", "9" * 400, "inf", "nan"])
def test_parse_duration_refuses(text: str) -> None:
    """Anything else is not a duration."""
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("seconds, text", [(0.31, "0.3s"), (9.97, "9s"), (42, "42s"), (185, "3m05s"), (7800, "2h10m")])
def test_format_duration(seconds: float, text: str) -> None:
    """Durations are written with at most two units."""
    assert format_duration(seconds) == text


@given(st.floats(0, 10**7))
def test_written_durations_can_be_read(seconds: float) -> None:
    """What is written reads as nearly the same duration."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.11, abs=0.06)


@pytest.mark.parametrize(
    "text, picos, currency",
    [
        ("0", 0, ""),
        ("12.50", 12_500_000_000_000, ""),
        (" 12.50 EUR ", 12_500_000_000_000, "EUR"),
        ("7USD", 7 * 10**12, "USD"),
        ("0.000000000001", 1, ""),
        ("0.1000000000000000", 10**11, ""),
    ],
)
def test_parse_money(text: str, picos: int, currency: str) -> None:
    """An amount is read to the last decimal, with the currency if it is there."""
    assert parse_money(text) == (picos, currency)


@pytest.mark.parametrize(
    "text", ["", "EUR", "-1", "1,50", "1e3", "1.", ".5", "5 euros", "0.0000000000001", "9" * 19, "٣"]
)
def test_parse_money_refuses(text: str) -> None:
    """Anything else is not an amount, and neither is one that picos cannot hold."""
    with pytest.raises(ValueError, match="is not an amount of money"):
        parse_money(text)


@given(st.integers(0, 10**30 - 1), st.sampled_from(["", "EUR"]))
def test_money_is_written_as_it_is_read(picos: int, currency: str) -> None:
    """No pico is lost on the way, and there are two decimals at least."""
    text = format_money(picos, currency)
    assert parse_money(text) == (picos, currency)
    assert len(text.split()[0].partition(".")[2]) >= 2


def test_money_below_nothing() -> None:
    """A difference can be written, too."""
    assert format_money(-1_500_000_000_000, "EUR") == "-1.50 EUR"
