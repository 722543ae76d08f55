"""`status` and `adapters list`: what runs, as a table or as JSON."""

from __future__ import annotations

import time

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tuneplex.app.state import StateDir
from tuneplex.cli import render
from tuneplex.cli.admin import Admin
from tuneplex.cli.terminal import Sheet, Terminal, table
from tuneplex.errors import StateError
from tuneplex.types import Status

__all__ = ["show", "show_adapters", "watch"]

_EVERY_S = 1.0


def show(state: StateDir, *, as_json: bool) -> int:
    """Print the fleet once. The exit code is 0 when it is ready and 1 when it is not, so that scripts can wait for it.

    Raises:
        StateError: Control does not answer.
    """
    terminal, status = Terminal.standard(), _ask(state)
    if as_json:
        terminal.json(msgspec.to_builtins(status))
    else:
        terminal.say(render.headline(status, time.time()))
        for line, style in _notices(status):
            terminal.say(line, style)
        terminal.gap()
        terminal.show(*_sheets(status))
    return 0 if status.ready else 1


def show_adapters(state: StateDir, *, as_json: bool) -> int:
    """Print the fleet's adapters once.

    Raises:
        StateError: Control does not answer.
    """
    terminal, status = Terminal.standard(), _ask(state)
    if as_json:
        terminal.json(msgspec.to_builtins(status.adapters))
    else:
        terminal.show(render.adapters(status))
    return 0


def watch(state: StateDir) -> int:
    """Show the fleet until Ctrl-C or its end, once a second; a pipe gets the headline each time.

    Raises:
        StateError: The fleet does not run.
    """
    terminal = Terminal.standard()
    if not terminal.live:
        while True:
            terminal.say(render.headline(_ask(state), time.time()))
            time.sleep(_EVERY_S)
    with Live(_picture(state), console=terminal.out, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_S)
            live.update(_picture(state), refresh=True)


def _ask(state: StateDir) -> Status:
    with Admin(state.admin_socket) as admin:
        return admin.status()


def _picture(state: StateDir) -> RenderableType:
    """The fleet now; a control process that restarts is no reason to end."""
    try:
        status = _ask(state)
    except StateError as error:
        if not state.is_locked():
            raise
        return Text(f"{error}", style="yellow")
    tables = (part for sheet in _sheets(status) for part in (Text(), table(sheet)))
    notices = (Text(line, style=style) for line, style in _notices(status))
    return Group(
        Text(render.headline(status, time.time()), style="bold"), *notices, *tables, Text("\nCtrl-C ends", style="dim")
    )


def _notices(status: Status) -> tuple[tuple[str, str], ...]:
    """What is unusual about the fleet, a line each, with its style."""
    store = tuple((words, "yellow") for words in (status.store, status.records) if words)
    waiting = ((line, "yellow") for line in render.waiting(status))
    replaced = ((line, "magenta") for line in render.replaced(status))
    return (*((line, "") for line in render.reserved(status)), *replaced, *waiting, *store)


def _sheets(status: Status) -> tuple[Sheet, ...]:
    return render.replicas(status), render.adapters(status)
