"""`config show`: every effective setting and where it comes from."""

from __future__ import annotations

from pathlib import Path

from tuneplex import fleetfile
from tuneplex.app.prepare import preview
from tuneplex.cli import render
from tuneplex.cli.terminal import Terminal
from tuneplex.errors import UserError

__all__ = ["show"]


def show(path: Path, *, as_json: bool) -> int:
    """Print the settings of a fleet file.

    Raises:
        FleetFileError: The file is wrong.
    """
    terminal = Terminal.standard()
    file = fleetfile.load(path)
    try:
        spec = preview(file)
    except UserError as error:  # a file that cannot be served yet can still be looked at
        terminal.warn(str(error))
        spec = None
    entries = fleetfile.explain(file, spec)
    if as_json:
        terminal.json([{"key": key, "value": value, "from": origin} for key, value, origin in entries])
    else:
        terminal.show(render.config(entries))
    return 0
