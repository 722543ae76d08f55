"""`logs`: what the processes of a fleet have written, while it runs and after it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tuneplex.app.state import StateDir
from tuneplex.cli.logfiles import follow, tail
from tuneplex.cli.terminal import Terminal
from tuneplex.errors import UserError

__all__ = ["find", "show"]

_LOOK_S = 0.2


def find(state: StateDir, name: str | None) -> dict[str, Path]:
    """The log files that are asked for, by the name of their process; all of them without a name.

    Raises:
        UserError: There is no such log.
    """
    present = {path.stem: path for path in sorted(state.logs.glob("*.log"))}
    if name is None:
        return present
    if name not in present:
        hint = f"there is: {', '.join(present)}" if present else "the fleet has not written any log yet"
        raise UserError(f"no log of {name!r} in {state.logs}", hint=hint)
    return {name: present[name]}


def show(paths: dict[str, Path], *, lines: int, following: bool) -> int:
    """Print the last lines of each log, then, if wanted, every new line until Ctrl-C."""
    terminal = Terminal.standard()
    look = follow(paths, _printer(terminal, named=len(paths) > 1))
    for name, path in paths.items():
        if len(paths) > 1:
            terminal.say(f"==> {name} <==", style="bold")
        for line in tail(path, lines):
            terminal.write(f"{line}\n")
    while following:
        time.sleep(_LOOK_S)
        look()
    return 0


def _printer(terminal: Terminal, *, named: bool) -> Callable[[str, str], None]:
    def show_line(name: str, line: str) -> None:
        terminal.write(f"{name} | {line}\n" if named else f"{line}\n")

    return show_line
