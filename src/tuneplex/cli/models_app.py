"""Where models are kept: arguments and help of `push` and `cache`. What they do is in the modules that they import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tuneplex.cli import options as use

__all__ = ["add"]

_Directory = Annotated[Path, typer.Argument(metavar="PATH", help="An adapter's or a base's directory.")]
_Place = Annotated[str, typer.Argument(metavar="PLACE", help="Where to: s3://BUCKET/PREFIX.")]
_Endpoint = Annotated[
    str,
    typer.Option("--endpoint", metavar="URL", help="The object store; else as AWS_ENDPOINT_URL_S3 or a profile says."),
]
_Region = Annotated[str, typer.Option("--region", metavar="NAME", help="Its region; else as AWS_REGION says.")]
_Most = Annotated[str, typer.Option("--to", metavar="SIZE", help="What may stay, for instance 50GiB.")]


def add(app: typer.Typer, look: Literal["rich"] | None) -> None:
    """Add the commands to the command line's tree.

    Args:
        app: The tree.
        look: How help looks.
    """
    app.command()(push)
    group = typer.Typer(rich_markup_mode=look, help="What is kept of models and adapters that were fetched.")
    group.command("show")(cache_show)
    group.command("prune")(cache_prune)
    app.add_typer(group, name="cache")


def push(
    path: _Directory, place: _Place, *, endpoint: _Endpoint = "", region: _Region = "", json: use.Json = False
) -> int:
    """Store an adapter or a base in an object store.

    What is there already is not sent again, and a push that was cut off goes on where it was. Fleets fetch it when all
    of it is there.

    Example: tuneplex push ./adapters/legal s3://models/adapters/legal
    """
    from tuneplex.cli import push as command
    from tuneplex.types import ObjectStore

    return command.push(path, place, ObjectStore(endpoint, region), as_json=json)


def cache_show(*, json: use.Json = False) -> int:
    """List what is kept of what was fetched.

    What was used least recently comes first.

    Example: tuneplex cache show
    """
    from tuneplex.cli import cache as command

    return command.show(as_json=json)


def cache_prune(*, to: _Most, json: use.Json = False) -> int:
    """Remove what was used least recently.

    What a running fleet serves from stays, and what was used within the last hour.

    Example: tuneplex cache prune --to 50GiB
    """
    from tuneplex.cli import cache as command

    return command.reduce(to, as_json=json)
