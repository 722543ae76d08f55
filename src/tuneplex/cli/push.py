"""`push`: stores an adapter or a base in an object store."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuneplex.adapters.push import Push, Pushed
from tuneplex.cli.progress import shown
from tuneplex.cli.terminal import Terminal
from tuneplex.errors import UserError
from tuneplex.objects import Place
from tuneplex.types import ObjectStore
from tuneplex.units import format_bytes

__all__ = ["push"]


def push(directory: Path, place: str, store: ObjectStore, *, as_json: bool) -> int:
    """Store what is in a directory, and tell what lies there now.

    Raises:
        UserError: The place is none, the directory is neither an adapter nor a base, or the store refuses or is not
            reached.
    """
    terminal = Terminal.standard()
    try:
        where = Place.parse(place)
    except ValueError as error:
        raise UserError(f"{place} {error}") from None
    try:
        with shown(terminal) as progress:
            pushed = Push(directory.absolute(), where, progress, store).run()
    except KeyboardInterrupt:
        terminal.note("what has arrived is kept; the same command goes on with it")
        raise
    if as_json:
        terminal.json(msgspec.to_builtins(pushed))
    else:
        for line in _lines(pushed):
            terminal.say(line)
    return 0


def _lines(pushed: Pushed) -> list[str]:
    count, size = len(pushed.files), sum(item.size for item in pushed.files.values())
    sent = f"{format_bytes(pushed.sent)} sent" if pushed.sent else "all of it was there"
    lines = [f"{pushed.place}: the {pushed.kind} {pushed.digest[:12]}, {count} files, {format_bytes(size)}, {sent}"]
    if pushed.others:
        names = ", ".join(pushed.others[:4]) + (" and others" if len(pushed.others) > len(pushed.others[:4]) else "")
        lines.append(f"not part of it, and fetched by nobody: {names}")
    return lines
