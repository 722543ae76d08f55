"""`cache`: what is kept of models and adapters that were fetched, and how that becomes less."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tuneplex.adapters import Kept, held, kept, prune
from tuneplex.app.cache_users import in_use
from tuneplex.app.prepare import cache_dir
from tuneplex.cli.terminal import Cell, Sheet, Terminal
from tuneplex.cli.times import distance
from tuneplex.errors import UserError
from tuneplex.units import format_bytes, parse_bytes

__all__ = ["reduce", "show"]

_DIGEST = re.compile(r"[0-9a-f]{32,64}")
_SHORT = 12


def show(*, as_json: bool) -> int:
    """Print what the cache holds, the least recently used first."""
    terminal, cache = Terminal.standard(), cache_dir()
    found, total, used = kept(cache), held(cache), {path.resolve() for path in in_use(cache)}
    serving = [Path(one.path).resolve() in used for one in found]
    if as_json:
        rows = [msgspec.to_builtins(one) | {"serves": serves} for one, serves in zip(found, serving, strict=True)]
        terminal.json({"cache": str(cache), "size": total, "kept": rows})
        return 0
    terminal.show(_sheet(found, serving, cache))
    terminal.note(f"{format_bytes(total)} in {cache}")
    return 0


def _sheet(found: Sequence[Kept], serving: Sequence[bool], cache: Path) -> Sheet:
    now = time.time()
    rows = tuple(
        (
            Cell(_short(one, cache), "bold"),
            Cell(one.source),
            Cell(format_bytes(one.size)),
            Cell("serves" if serves else distance(one.used, now), "green" if serves else ""),
        )
        for one, serves in zip(found, serving, strict=True)
    )
    columns = ("KEPT", "FROM", "SIZE", "USED")
    return Sheet(columns, rows, "nothing was fetched yet", frozenset({"SIZE"}), frozenset({"KEPT", "FROM"}))


def _short(one: Kept, cache: Path) -> str:
    """Where it lies in the cache, with as much of a digest as tells it from others."""
    path = Path(one.path).relative_to(cache)
    return str(path.with_name(path.name[:_SHORT])) if _DIGEST.fullmatch(path.name) else str(path)


def reduce(most: str, *, as_json: bool) -> int:
    """Remove what was used least recently, until the cache holds at most so much.

    Raises:
        UserError: That is no size.
    """
    terminal, cache = Terminal.standard(), cache_dir()
    try:
        wanted = parse_bytes(most)
    except ValueError as error:
        raise UserError(f"--to: {error}") from None
    removed = prune(cache, wanted, in_use(cache))
    total = held(cache)
    if as_json:
        terminal.json({"removed": msgspec.to_builtins(removed), "size": total})
        return 0
    for one in removed:
        terminal.say(f"removed {_short(one, cache)} ({format_bytes(one.size)})")
    terminal.say(f"{format_bytes(total)} are left in {cache}")
    if total > wanted:
        terminal.warn("what is left is served by a fleet, is being fetched, or was used within the last hour")
    return 0
