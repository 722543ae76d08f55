"""The commands about adapters: their arguments and help. What they do is in the modules that each of them imports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tuneplex.cli import options as use

__all__ = ["add"]

_Sources = Annotated[
    list[str], typer.Argument(metavar="ADAPTER...", help="Directories, or other sources of adapters, as hf:ORG/NAME.")
]
_Base = Annotated[
    str | None,
    typer.Option("--base", metavar="BASE", help="What to hold them against: a base's source, or a fleet file."),
]
_What = Annotated[
    list[str], typer.Argument(metavar="WHAT...", help="A directory with adapters in it, or a command line of vLLM.")
]
_To = Annotated[
    Path | None, typer.Option("--to", metavar="FLEET", help="The fleet file; standard output if it is not given.")
]
_BaseSource = Annotated[
    str, typer.Option("--base", metavar="SOURCE", help="The base; else the line's, or what all adapters say.")
]
_ByRank = Annotated[
    bool,
    typer.Option("--by-rank", help="Write a pool for each max_lora_rank that is needed, with engines of its own."),
]


def add(app: typer.Typer, look: Literal["rich"] | None) -> None:
    """Add the commands to the command line's tree.

    Args:
        app: The tree.
        look: How help looks.
    """
    group = typer.Typer(rich_markup_mode=look, help="The fleet's fine-tunes.")
    group.command("list")(listing)
    group.command("check")(check)
    # A line of vLLM is flags: what is no option of ours belongs to it.
    group.command("import", context_settings={"ignore_unknown_options": True})(bring)
    app.add_typer(group, name="adapters")


def listing(*, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """List the adapters of a running fleet, with where they are loaded.

    Example: tuneplex adapters list --json
    """
    from tuneplex.cli import locate
    from tuneplex.cli import status as command

    return command.show_adapters(locate.running_fleet(state_dir, fleet), as_json=json)


def check(sources: _Sources, *, base: _Base = None, json: use.Json = False) -> int:
    """Tell whether adapters can be served.

    Says what an engine would leave out of them, and what to do about it. Nothing is changed or started. The exit code
    is 1 when one is refused.

    Example: tuneplex adapters check adapters/contacts --base fleet.yaml
    """
    from tuneplex.cli import adapters_check as command

    return command.check(sources, base, as_json=json)


def bring(
    what: _What,
    *,
    base: _BaseSource = "",
    to: _To = None,
    by_rank: _ByRank = False,
    force: use.Force = False,
    json: use.Json = False,
) -> int:
    """Write a fleet file for adapters that are there already.

    WHAT is a directory, in which adapters lie at any depth, or what vLLM was started with. Adapters that cannot be
    served are left out, with the reason, and the exit code is then 1.

    Example: tuneplex adapters import runs --base models/llama --to fleet.yaml

    Example: tuneplex adapters import vllm serve models/llama --lora-modules sql=runs/sql --max-loras 4
    """
    from tuneplex.cli import adapters_import as command

    wish = command.Wish(tuple(what), base=base, to=to, force=force, by_rank=by_rank, as_json=json)
    return command.run(wish)
