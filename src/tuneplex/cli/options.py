"""Arguments and options that the commands are made of."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from tuneplex.cli import complete
from tuneplex.identity import Scope
from tuneplex.types import Part as RestartedPart

__all__ = [
    "Adapters",
    "AllKeys",
    "ApiKey",
    "AuditDir",
    "AuditFile",
    "AuditFormat",
    "AuditTenant",
    "BackupFile",
    "BaseModel",
    "BaseUrl",
    "CacheGroup",
    "Concurrent",
    "CutStreams",
    "Detach",
    "Drain",
    "DryRun",
    "EngineDir",
    "EnginePython",
    "Expect",
    "Expires",
    "ExpiresAnew",
    "Fleet",
    "FleetName",
    "Follow",
    "Force",
    "ForceDrain",
    "Grace",
    "Isolated",
    "Json",
    "KeyId",
    "KeyTenant",
    "Label",
    "LabelAnew",
    "Lines",
    "MaxTokens",
    "Model",
    "MoneyPerMonth",
    "NoAdapters",
    "Now",
    "Once",
    "OptionalFleet",
    "Part",
    "Patience",
    "Port",
    "Process",
    "Prompt",
    "PublicKey",
    "Recording",
    "Records",
    "Replace",
    "Replica",
    "RequestId",
    "RequestsPerMinute",
    "RestartTimeout",
    "Revoke",
    "Scopes",
    "Since",
    "SloBy",
    "SloCheck",
    "SloFirstToken",
    "SloTarget",
    "SloWindow",
    "StateDir",
    "System",
    "Temperature",
    "Tenant",
    "TenantFilter",
    "Timeout",
    "TokensPerDay",
    "TokensPerMinute",
    "Until",
    "Wait",
    "WaitTime",
    "Watch",
    "Weight",
    "Why",
    "Yes",
]


class Recording(StrEnum):
    """Whether a tenant's requests need an entry in the journal before they go anywhere."""

    REQUIRED = "required"
    BEST_EFFORT = "best-effort"


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
Part = Annotated[RestartedPart, typer.Argument(metavar="PART", help="gateways, control or all.")]
RestartTimeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long each new process may take to come up.")
]
Drain = Annotated[
    str, typer.Option("--drain", metavar="TIME", help="How long an old gateway may finish its streams; then it ends.")
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
Why = Annotated[bool, typer.Option("--why", help="Tell afterwards where it went, and what it waited for.")]
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

Tenant = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", autocompletion=complete.tenants)]
KeyTenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="Whose key it is.", autocompletion=complete.tenants)
]
TenantFilter = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only its keys.", autocompletion=complete.tenants)
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapters",
        metavar="PATTERN",
        help="Only adapters with such names, for instance 'acme-*'. Can be repeated; '*' means all.",
        autocompletion=complete.adapters,
    ),
]
NoAdapters = Annotated[bool, typer.Option("--no-adapters", help="No adapter at all.")]
BaseModel = Annotated[bool | None, typer.Option("--base/--no-base", help="Whether the base may be called.")]
Isolated = Annotated[
    bool | None, typer.Option("--isolated/--shared", help="Served only by pools that are reserved for it, or by any.")
]
CacheGroup = Annotated[
    str | None,
    typer.Option(
        "--cache-group", metavar="NAME", help="Shares prefix caches with the group's tenants; '' with nobody."
    ),
]
Revoke = Annotated[bool, typer.Option("--revoke", help="Revoke its keys first.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id, not its secret.", autocompletion=complete.keys)]
Label = Annotated[str, typer.Option("--label", metavar="TEXT", help="What it is for, for people.")]
LabelAnew = Annotated[str | None, typer.Option("--label", metavar="TEXT", help="What it is for, for people.")]
RequestsPerMinute = Annotated[
    str | None,
    typer.Option("--requests-per-minute", metavar="N", help="Requests in any 60 seconds; none for no limit."),
]
TokensPerMinute = Annotated[
    str | None,
    typer.Option(
        "--tokens-per-minute", metavar="N", help="Tokens of prompts and answers in any 60 seconds; none for no limit."
    ),
]
TokensPerDay = Annotated[
    str | None,
    typer.Option("--tokens-per-day", metavar="N", help="The same in a day of UTC; none for no limit."),
]
Concurrent = Annotated[
    str | None, typer.Option("--concurrent", metavar="N", help="Requests under way at a time; none for no limit.")
]
MoneyPerMonth = Annotated[
    str | None,
    typer.Option(
        "--money-per-month", metavar="AMOUNT", help="What a calendar month may cost, as 25.00; none for no limit."
    ),
]
CutStreams = Annotated[
    bool | None,
    typer.Option("--cut-streams/--no-cut-streams", help="Whether streams are ended when this money is gone."),
]
Weight = Annotated[
    int | None,
    typer.Option("--weight", metavar="N", min=1, max=1000, help="Its share when requests have to wait; 1 at first."),
]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST_ID", help="The request's id.")]
Records = Annotated[
    Recording | None,
    typer.Option("--records", help="Whether a request is refused unless its entry is on the disk first."),
]
SloWindow = Annotated[
    str, typer.Option("--window", metavar="TIME", help="What the error budget is for, for instance 7d.")
]
SloTarget = Annotated[
    float | None,
    typer.Option(
        "--target", metavar="PERCENT", min=50, max=99.999999, help="How many are served; else as the fleet file says."
    ),
]
SloFirstToken = Annotated[
    str | None,
    typer.Option(
        "--ttft", metavar="TIME", help="In which time 95 % of streams begin, as 2s; else as the fleet file says."
    ),
]
SloBy = Annotated[str, typer.Option("--by", metavar="NAMES", help="model, tenant or model,tenant.")]
SloCheck = Annotated[bool, typer.Option("--check", help="Exit with 1 when not all was kept.")]
Scopes = Annotated[
    list[Scope] | None,
    typer.Option(
        "--scope",
        metavar="SCOPE",
        help="use: call models. usage: read usage and metrics. admin: manage the fleet. Can be repeated; "
        "use when it is not given.",
    ),
]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="TIME", help="For how long it works, for instance 90d; else for ever."),
]
ExpiresAnew = Annotated[
    str | None,
    typer.Option("--expires", metavar="TIME", help="For how long the new one works, or never; else as the old one."),
]
Grace = Annotated[str, typer.Option("--grace", metavar="TIME", help="For how long the old one goes on; 0 ends it now.")]
BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
Replace = Annotated[bool, typer.Option("--replace", help="Lose what the store holds now.")]
AllKeys = Annotated[bool, typer.Option("--all", "-a", help="Also keys that were revoked or have expired.")]
Replica = Annotated[str, typer.Argument(metavar="NAME", help="The replica.", autocompletion=complete.replicas)]
Now = Annotated[bool, typer.Option("--now", help="Move its streams to other replicas at once.")]
ForceDrain = Annotated[bool, typer.Option("--force", help="Even if it is its pool's only one that is ready.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is done, and tell how far it is meanwhile.")]
WaitTime = Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait, with --wait.")]
AuditDir = Annotated[
    Path | None, typer.Argument(metavar="[DIR]", help="A copy of the log, where the fleet's own one is not meant.")
]
PublicKey = Annotated[
    Path | None,
    typer.Option("--public-key", metavar="FILE", help="The key that was kept elsewhere; else that beside the log."),
]
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="HEAD",
        help="A head that was kept elsewhere, or s3://BUCKET/PREFIX where they are kept: they must still be there.",
    ),
]
Since = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="From this date or time of UTC on, as 2026-12-01T08:30.")
]
Until = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="Before this time of UTC; of a date to the end of its day.")
]
AuditTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only its own events.", autocompletion=complete.tenants)
]
AuditFormat = Annotated[
    Literal["jsonl", "csv"], typer.Option("--format", help="Lines as they stand in the log, or a table.")
]
AuditFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; standard output if it is not given.")
]
