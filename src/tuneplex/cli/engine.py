"""`engine install`: makes the environment that local replicas run in."""

from __future__ import annotations

from pathlib import Path

from tuneplex.app import engine_env
from tuneplex.cli.progress import shown
from tuneplex.cli.terminal import Terminal

__all__ = ["install"]


def install(directory: Path | None, python: Path | None) -> int:
    """Make the environment, or bring it up to date; nothing is done twice.

    Raises:
        UserError: This machine cannot have it.
    """
    terminal = Terminal.standard()
    with shown(terminal) as progress:
        made = engine_env.install(directory, progress, python=python)
    terminal.say(f"the engine is ready: {made}")
    return 0
