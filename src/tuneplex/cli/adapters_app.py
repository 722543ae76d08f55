"""The commands about adapters: their arguments and help. What they do is in the modules that each of them imports."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from tuneplex.cli import complete
from tuneplex.cli import options as use

__all__ = ["add"]


class DividedBy(StrEnum):
    """What the requests have in common that get the same version."""

    USER = "user"
    KEY = "key"
    REQUEST = "request"


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


_Name = Annotated[str, typer.Argument(metavar="NAME", help="The adapter's name.", autocompletion=complete.adapters)]
_NewName = Annotated[
    str, typer.Argument(metavar="NAME", help="The adapter's name; a new one, too.", autocompletion=complete.adapters)
]
_Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A directory, or another source, as hf:ORG/NAME.")]
_Version = Annotated[str, typer.Argument(metavar="NAME@DIGEST", help="The version; the digest's beginning will do.")]
_Share = Annotated[
    float, typer.Option("--to", metavar="PERCENT", min=0.1, max=100, help="Requests that get it while it is tried.")
]
_DividedBy = Annotated[
    DividedBy, typer.Option("--by", help="What always gets the same version; user is the field of a request.")
]
_Within = Annotated[
    str, typer.Option("--within", metavar="1h", help="How long it is tried; then what is known decides.")
]
_Probes = Annotated[
    Path | None,
    typer.Option("--probes", metavar="FILE", help="What it has to read first: JSON lines, see docs/rollouts.md."),
]
_ScoreTokens = Annotated[
    int, typer.Option("--score-tokens", metavar="NUMBER", min=1, max=4096, help="How long an answer is at most.")
]
_Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it is decided, or at once.")]
_ScoreUrl = Annotated[
    str | None, typer.Option("--score-url", metavar="URL", help="Who tells how good answers are: by POST.")
]
_ScoreCommand = Annotated[
    str | None, typer.Option("--score-command", metavar="COMMAND", help="The same: a command that reads JSON.")
]


def add(app: typer.Typer, look: Literal["rich"] | None) -> None:
    """Add the commands to the command line's tree.

    Args:
        app: The tree.
        look: How help looks.
    """
    group = typer.Typer(rich_markup_mode=look, help="The fleet's fine-tunes.")
    group.command("list")(listing)
    group.command("show")(show)
    group.command("add")(add_version)
    group.command("promote")(promote)
    group.command("rollback")(roll_back)
    group.command("remove")(remove)
    group.command("probe")(probe)
    group.command("check")(check)
    # A line of vLLM is flags: what is no option of ours belongs to it.
    group.command("import", context_settings={"ignore_unknown_options": True})(bring)
    app.add_typer(group, name="adapters")


def listing(*, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """List adapters, with where they are loaded.

    Example: tuneplex adapters list --json
    """
    from tuneplex.cli import locate
    from tuneplex.cli import status as command

    return command.show_adapters(locate.running_fleet(state_dir, fleet), as_json=json)


def show(name: _Name, *, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """Show an adapter's versions, and what was done with it.

    While a version is being rolled out, also how far that is.

    Example: tuneplex adapters show contacts
    """
    from tuneplex.cli import locate
    from tuneplex.cli import versions as command

    return command.show(locate.running_fleet(state_dir, fleet), name, as_json=json)


def add_version(
    name: _NewName,
    source: _Source,
    *,
    to: _Share = 10.0,
    by: _DividedBy = DividedBy.USER,
    within: _Within = "1h",
    probes: _Probes = None,
    score_url: _ScoreUrl = None,
    score_command: _ScoreCommand = None,
    score_tokens: _ScoreTokens = 64,
    wait: _Wait = True,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Add a version of an adapter to a running fleet.

    It is checked, loaded and probed; then a share of the requests get it, until it is promoted because it is not
    worse than the version before, or rolled back because it is. The first version of an adapter is promoted after its
    probes. With --to 100 each is. The exit code is 1 when it is not promoted.

    Example: tuneplex adapters add contacts runs/contacts-v2

    Example: tuneplex adapters add sql hf:acme/sql-lora --to 20 --by key --probes sql.jsonl
    """
    from tuneplex.cli import locate
    from tuneplex.cli import versions as command
    from tuneplex.cli.times import positive

    wish = command.Wish(
        share=to / 100,
        divided_by=by.value,
        within_s=positive(within, "--within"),
        probes=probes,
        scorer=command.scorer(score_url, score_command, score_tokens),
        wait=wait,
        as_json=json,
    )
    return command.add(locate.running_fleet(state_dir, fleet), name, source, wish)


def promote(
    version: _Version, *, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """Let requests get a version, as soon as it is loaded.

    Example: tuneplex adapters promote contacts@3f2a90c11b7d
    """
    from tuneplex.cli import locate
    from tuneplex.cli import versions as command

    return command.promote(locate.running_fleet(state_dir, fleet), version, as_json=json)


def roll_back(
    name: _Name, *, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """Give up a rollout, or go back to the version before.

    Without a rollout, requests get the version that was promoted before; once more goes back further.

    Example: tuneplex adapters rollback contacts
    """
    from tuneplex.cli import locate
    from tuneplex.cli import versions as command

    return command.roll_back(locate.running_fleet(state_dir, fleet), name, as_json=json)


def remove(name: _Name, *, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """Remove an adapter that was added to a running fleet.

    One of the fleet file is removed there, and the file applied.

    Example: tuneplex adapters remove contacts
    """
    from tuneplex.cli import locate
    from tuneplex.cli import versions as command

    return command.remove(locate.running_fleet(state_dir, fleet), name)


def probe(
    version: _Version, *, probes: _Probes = None, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """Print probes with what a version says of them.

    Another fleet can hold its own against that: `adapters add --probes`.

    Example: tuneplex adapters probe contacts@3f2a90c11b7d --probes contacts.jsonl > recorded.jsonl
    """
    from tuneplex.cli import locate
    from tuneplex.cli import versions as command

    return command.probe(locate.running_fleet(state_dir, fleet), version, probes)


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
