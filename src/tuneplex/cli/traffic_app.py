"""The commands about traffic: their arguments and help. What they do is in the modules that each of them imports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tuneplex.cli import options as use

__all__ = ["add"]

_Since = Annotated[
    str,
    typer.Option("--since", metavar="TIME", help="From when on: 2026-12-01, 2026-12-01T08:30 (UTC), or 2h ago."),
]
_Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Up to when; of a date its whole day. Now if not given.")
]
_Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; standard output if it is not given.")
]
_Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="Makes names comparable with other exports by it; made if not there."),
]


def add(app: typer.Typer, look: Literal["rich"] | None) -> None:
    """Add the commands to the command line's tree.

    Args:
        app: The tree.
        look: How help looks.
    """
    group = typer.Typer(rich_markup_mode=look, help="The requests that a fleet has had.")
    group.command("export")(export)
    app.add_typer(group, name="traffic")


def export(
    *,
    since: _Since = "1d",
    until: _Until = None,
    output: _Output = None,
    key: _Key = None,
    force: use.Force = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Write down when requests came, and how large they were.

    As JSON lines, without anything of what was in them. Tenants and sessions are hashed by a key that is thrown away,
    so two exports cannot be joined.

    Example: tuneplex traffic export --since 2026-12-01 -o traffic.jsonl
    """
    from tuneplex.cli import locate
    from tuneplex.cli import traffic as command

    wish = command.Wish(since=since, until=until, output=output, key=key, force=force)
    return command.export(locate.any_fleet(state_dir, fleet), wish)
