"""`doctor`: sees what there is, judges it, prints it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import platformdirs

from tuneplex import __version__, fleetfile
from tuneplex.app import engine_env
from tuneplex.app.state import default_path
from tuneplex.cli import checks, externals, locate
from tuneplex.cli.checks import Level
from tuneplex.cli.terminal import Terminal

__all__ = ["doctor"]

_DEFAULT_PORT = 8000


def doctor(fleet: Path | None, *, port: int | None, as_json: bool) -> int:
    """Print what is missing here; 1 when something is.

    Raises:
        FleetFileError: The fleet file is wrong.
    """
    terminal = Terminal.standard()
    found = checks.findings(_look(fleet, port))
    if as_json:
        terminal.json([asdict(one) for one in found])
    else:
        terminal.show(checks.sheet(found))
    return 1 if any(one.level is Level.FAIL for one in found) else 0


def _look(fleet: Path | None, port: int | None) -> checks.Machine:
    file = fleetfile.load(fleet) if fleet else None
    listen = file.gateway.port if file else _DEFAULT_PORT
    known = locate.known()
    alive = {state.path for state in known if state.is_locked()}
    return checks.look(
        externals=externals.ask(file, os.environ) if file else (),
        local=file is None or file.runs_engines,
        tuneplex=__version__,
        engine_python=(file.engine.python if file else None) or engine_env.find() or "",
        cache_dir=platformdirs.user_cache_path("tuneplex"),
        state_dir=default_path("any").parent,
        port=listen if port is None else port,
        running=tuple(path.name for path in sorted(alive)),
        leftovers=tuple(str(state.path) for state in known if state.run.is_symlink() and state.path not in alive),
    )
