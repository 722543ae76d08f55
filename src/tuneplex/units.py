"""Bytes and durations as people write them."""

from __future__ import annotations

import re

__all__ = ["format_bytes", "format_duration", "parse_bytes", "parse_duration"]

_BYTES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Read `512MiB`, `2 GB` or `1048576` as a number of bytes.

    Raises:
        ValueError: The text is not a size.
    """
    match = _QUANTITY.fullmatch(text)
    factor = _BYTES.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write for instance 512MiB or 2GiB")
    return int(float(match[1]) * factor)


def format_bytes(count: int) -> str:
    """Write a number of bytes with a binary unit: `1.5 GiB`."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:  # noqa: PLR2004 - the step between binary units
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def parse_duration(text: str) -> float:
    """Read `250ms`, `30s`, `10m` or `1.5h` as seconds; a plain number is seconds.

    Raises:
        ValueError: The text is not a duration.
    """
    match = _QUANTITY.fullmatch(text)
    factor = _SECONDS.get(match[2] or "s") if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a duration; write for instance 500ms, 30s or 10m")
    return float(match[1]) * factor


def format_duration(seconds: float) -> str:
    """Write seconds briefly: `0.3s`, `42s`, `3m05s`, `2h10m`."""
    if seconds < 10:  # noqa: PLR2004 - below this a decimal is worth reading
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 1:
        return f"{rest}s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours}h{minutes_left:02d}m" if hours else f"{minutes}m{rest:02d}s"
