"""The commands about usage: their arguments and help. What they do is in the modules that each imports when it runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tuneplex.cli import complete
from tuneplex.cli import options as use

__all__ = ["add"]

_By = Annotated[
    str,
    typer.Option(
        "--by", metavar="WHAT", help="What to tell apart: day, tenant, key, model, version, pool, outcome; with commas."
    ),
]
_Since = Annotated[
    str | None,
    typer.Option("--since", metavar="7d|DATE", help="The first day, of UTC; 30 days if it is not given."),
]
_Until = Annotated[
    str | None, typer.Option("--until", metavar="DATE", help="The last day, included; today if it is not given.")
]
_Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only its requests.", autocompletion=complete.tenants)
]
_Key = Annotated[
    str | None, typer.Option("--key", metavar="ID", help="Only requests with it.", autocompletion=complete.keys)
]
_Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Only requests for it.", autocompletion=complete.models)
]
_Version = Annotated[
    str | None, typer.Option("--version", metavar="VERSION", help="Only requests for this version of a model.")
]
_Pool = Annotated[str | None, typer.Option("--pool", metavar="NAME", help="Only requests that were there.")]
_Outcome = Annotated[
    str | None, typer.Option("--outcome", metavar="WORD", help="Only requests that ended so, for instance complete.")
]
_Csv = Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")]
_Starts = Annotated[
    str | None,
    typer.Option("--since", metavar="7d|DATE", help="Only engines that were there then or later; 7d if not given."),
]


def add(app: typer.Typer, look: Literal["rich"] | None) -> None:
    """Add the commands to the command line's tree.

    Args:
        app: The tree.
        look: How help looks.
    """
    group = typer.Typer(rich_markup_mode=look, invoke_without_command=True)
    group.callback()(usage)
    group.command("reconcile")(reconcile)
    app.add_typer(group, name="usage")


def usage(
    context: typer.Context,
    *,
    by: _By = "tenant",
    since: _Since = None,
    until: _Until = None,
    tenant: _Tenant = None,
    key: _Key = None,
    model: _Model = None,
    version: _Version = None,
    pool: _Pool = None,
    outcome: _Outcome = None,
    json: use.Json = False,
    csv: _Csv = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Show requests and tokens that were used.

    Of requests that are over, by days of UTC. Also of a fleet that does not run. Numbers in JSON and CSV are exact.

    Example: tuneplex usage --by tenant,model --since 7d

    Example: tuneplex usage --by day --tenant acme --since 2026-11-01 --until 2026-11-30 --csv
    """
    if context.invoked_subcommand is not None:
        return 0
    import time

    from tuneplex.cli import locate
    from tuneplex.cli import usage as command

    only = {"tenant": tenant, "key": key, "model": model, "version": version, "pool": pool, "outcome": outcome}
    asked = command.question(by, since, until, only, time.time())
    return command.show(locate.any_fleet(state_dir, fleet), asked, as_json=json, as_csv=csv)


def reconcile(
    *, since: _Starts = None, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """Hold what the engines have counted against what requests say.

    For each start of each engine, with an explanation of every difference. The exit code is 1 when one is left
    without an explanation.

    Example: tuneplex usage reconcile --since 1d
    """
    from tuneplex.cli import locate
    from tuneplex.cli import reconcile as command

    return command.show(locate.any_fleet(state_dir, fleet), since or "7d", as_json=json)
