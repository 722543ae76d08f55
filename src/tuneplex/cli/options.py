"""Arguments and options that the commands are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuneplex.cli import complete

__all__ = [
    "ApiKey",
    "BaseUrl",
    "Detach",
    "DryRun",
    "EngineDir",
    "EnginePython",
    "Fleet",
    "FleetName",
    "Follow",
    "Json",
    "Lines",
    "MaxTokens",
    "Model",
    "Once",
    "OptionalFleet",
    "Patience",
    "Port",
    "Process",
    "Prompt",
    "StateDir",
    "System",
    "Temperature",
    "Timeout",
    "Watch",
    "Yes",
]

Fleet = Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet file.")]
OptionalFleet = Annotated[Path | None, typer.Argument(metavar="[FLEET]", help="A fleet file to check for.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model.", autocompletion=complete.models)]
Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help="The question, or - for standard input.")]
Process = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="A replica, control, gateway-0 or supervisor; all of them without a name.",
        autocompletion=complete.logs,
    ),
]

StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", envvar="TUNEPLEX_STATE_DIR", help="The fleet's state directory."),
]
FleetName = Annotated[
    str | None,
    typer.Option("--fleet", metavar="NAME", help="Which of several fleets.", autocompletion=complete.fleets),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long the start may take, for instance 90s or 15m.")
]
Patience = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long an end in order may take; then it is forced.")
]
Port = Annotated[
    int | None, typer.Option("--port", metavar="PORT", min=0, max=65535, help="The gateway's port; 0 takes any.")
]
Once = Annotated[bool, typer.Option("--once", help="Stop after the answers, with exit code 0.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return when it is ready; it runs on.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the difference.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")]
Lines = Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many of the last lines.")]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system prompt.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", metavar="N", min=1, help="The longest answer, in tokens.")
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", metavar="T", min=0.0, help="Randomness; 0 is greedy.")
]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="Another server than the running fleet, with /v1.")
]
ApiKey = Annotated[
    str | None, typer.Option("--key", metavar="KEY", envvar="TUNEPLEX_API_KEY", help="The gateway's key.")
]
EngineDir = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="Where; the usual place when it is not given.")
]
EnginePython = Annotated[Path | None, typer.Option("--python", metavar="PYTHON", help="A Python 3.11 to make it with.")]
