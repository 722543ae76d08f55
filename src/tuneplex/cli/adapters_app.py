"""The commands about adapters: their arguments and help. What they do is in the modules that each of them imports."""

from __future__ import annotations

from typing import Literal

import typer

from tuneplex.cli import options as use

__all__ = ["add"]


def add(app: typer.Typer, look: Literal["rich"] | None) -> None:
    """Add the commands to the command line's tree.

    Args:
        app: The tree.
        look: How help looks.
    """
    group = typer.Typer(rich_markup_mode=look, help="The fleet's fine-tunes.")
    group.command("list")(listing)
    app.add_typer(group, name="adapters")


def listing(*, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """List the adapters of a running fleet, with where they are loaded.

    Example: tuneplex adapters list --json
    """
    from tuneplex.cli import locate
    from tuneplex.cli import status as command

    return command.show_adapters(locate.running_fleet(state_dir, fleet), as_json=json)
