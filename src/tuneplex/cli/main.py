"""The commands: their arguments and help. What they do is in the modules that each of them imports when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from tuneplex.cli import adapters_app, models_app, past, traffic_app, usage_app
from tuneplex.cli import options as use
from tuneplex.cli.failures import FAILED, INTERRUPTED, Failure, failure
from tuneplex.errors import TuneplexError

__all__ = ["build", "run"]

_EPILOG = "Start with `tuneplex doctor` and `tuneplex demo`. Add --help to any command for an example."
_FLEET = Path("fleet.yaml")
_Commands = dict[str, Callable[..., int]]


def build(*, decorated: bool) -> typer.Typer:
    """The command line's tree.

    Args:
        decorated: Whether help may have colours and boxes, which only a person wants.
    """
    look: Literal["rich"] | None = "rich" if decorated else None
    app = typer.Typer(name="tuneplex", rich_markup_mode=look, pretty_exceptions_enable=False)
    app.callback(epilog=_EPILOG)(root)
    for command in (demo, up, down, apply, restart, status, limits, logs, ask, past.why, past.slo, doctor):
        app.command()(command)
    for name, about, commands in _groups():
        group = typer.Typer(rich_markup_mode=look, help=about)
        for verb, function in commands.items():
            group.command(verb)(function)
        app.add_typer(group, name=name)
    adapters_app.add(app, look)
    usage_app.add(app, look)
    traffic_app.add(app, look)
    models_app.add(app, look)
    return app


def _groups() -> tuple[tuple[str, str, _Commands], ...]:
    """Commands of two words: the first one, what it is about, and what follows it."""
    tenants: _Commands = {
        "list": tenants_list,
        "create": tenants_create,
        "show": tenants_show,
        "set": tenants_set,
        "disable": tenants_disable,
        "enable": tenants_enable,
        "remove": tenants_remove,
    }
    keys: _Commands = {
        "create": keys_create,
        "list": keys_list,
        "show": keys_show,
        "set": keys_set,
        "rotate": keys_rotate,
        "revoke": keys_revoke,
    }
    replicas: _Commands = {"drain": replicas_drain, "resume": replicas_resume, "restart": replicas_restart}
    store: _Commands = {
        "show": store_show,
        "backup": store_backup,
        "restore": store_restore,
        "upgrade": store_upgrade,
    }
    audit: _Commands = {"verify": audit_verify, "head": audit_head, "export": audit_export}
    return (
        ("config", "The fleet file and its defaults.", {"show": config_show}),
        ("engine", "The engine's own environment.", {"install": engine_install}),
        ("replicas", "The fleet's engines, one at a time.", replicas),
        ("tenants", "Who uses the fleet, and what is theirs.", tenants),
        ("keys", "The tenants' API keys.", keys),
        ("store", "The database of tenants and keys.", store),
        ("audit", "Who reached which model, and when.", audit),
    )


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; what went wrong is said on standard error.

    0: done. 1: it ran and failed. 2: wrong input, nothing was done. 130: ended by Ctrl-C.
    """
    app = build(decorated=sys.stdout.isatty())
    try:
        return app(args=list(argv) or ["--help"], prog_name="tuneplex", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (`tuneplex logs | head`); the interpreter must not try to flush to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if "--debug" in argv and not isinstance(error, (TuneplexError, typer.TyperException)):
            raise
        return _explain(failure(error, argv))


def _explain(told: Failure) -> int:
    from tuneplex.cli.terminal import Terminal

    terminal = Terminal.standard()
    if told.tail:
        terminal.note(told.tail)
    terminal.fail(told.message, told.hint)
    return told.code


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer passes the option's value by position
    if wanted:
        from tuneplex import __version__

        typer.echo(f"tuneplex {__version__}")
        raise typer.Exit


def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of unexpected errors.")] = False,
) -> None:
    """Serve many LoRA fine-tunes of one base model behind one OpenAI-compatible API."""


def demo(*, once: use.Once = False, port: use.Port = 8000, timeout: use.Timeout = "15m") -> int:
    """See it work: a small model and three fine-tunes on this machine.

    Each is asked one question, then the fleet stays up until Ctrl-C. No GPU is needed. What is missing is fetched
    first: the engine (about 3.5 GB on disk) and the model (90 MB).

    Example: tuneplex demo --once
    """
    from tuneplex.cli import demo as command

    return command.demo(once=once, port=8000 if port is None else port, timeout=timeout)


def up(
    fleet: use.Fleet = _FLEET,
    *,
    detach: use.Detach = False,
    timeout: use.Timeout = "15m",
    state_dir: use.StateDir = None,
) -> int:
    """Start a fleet.

    It runs until Ctrl-C, or with --detach until `tuneplex down`. Nothing is left running when it cannot start.

    Example: tuneplex up fleet.yaml
    """
    from tuneplex.cli import up as command

    return command.up(fleet, state_dir=state_dir, detach=detach, timeout=timeout)


def down(*, timeout: use.Patience = "60s", fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """End a running fleet.

    Requests under way may finish first.

    Example: tuneplex down --fleet support
    """
    from tuneplex.cli import locate
    from tuneplex.cli import up as command

    return command.down(locate.running_fleet(state_dir, fleet), timeout=timeout)


def apply(
    fleet: use.Fleet = _FLEET,
    *,
    dry_run: use.DryRun = False,
    yes: use.Yes = False,
    json: use.Json = False,
    name: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Bring a changed fleet file live.

    Shows how the file differs from what runs, asks, and applies it without a restart where that is possible.

    Example: tuneplex apply fleet.yaml --dry-run
    """
    from tuneplex.cli import apply as command

    return command.apply(fleet, command.Wish(dry_run=dry_run, yes=yes, as_json=json), state_dir=state_dir, name=name)


def status(
    *,
    watch: use.Watch = False,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Show replicas and adapters of a running fleet.

    The exit code is 0 when the fleet is ready and 1 while it is not.

    Example: tuneplex status --watch
    """
    from tuneplex.cli import locate
    from tuneplex.cli import status as command

    state = locate.running_fleet(state_dir, fleet)
    return command.watch(state) if watch else command.show(state, as_json=json)


def limits(*, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """Show all limits, and what is used of them.

    Those of tenants, keys and models, over all gateways.

    Example: tuneplex limits
    """
    from tuneplex.cli import limits as command
    from tuneplex.cli import locate

    return command.show(locate.running_fleet(state_dir, fleet), as_json=json)


def logs(
    process: use.Process = None,
    *,
    follow: use.Follow = False,
    lines: use.Lines = 20,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Show the logs of a fleet's processes.

    Also after the fleet ended: the last one that was started, unless another is named.

    Example: tuneplex logs default-0 -f
    """
    from tuneplex.cli import locate
    from tuneplex.cli import logs as command

    paths = command.find(locate.any_fleet(state_dir, fleet), process)
    return command.show(paths, lines=lines, following=follow)


def ask(
    model: use.Model,
    prompt: use.Prompt,
    *,
    system: use.System = None,
    max_tokens: use.MaxTokens = None,
    temperature: use.Temperature = None,
    why: use.Why = False,
    json: use.Json = False,
    base_url: use.BaseUrl = None,
    key: use.ApiKey = None,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Ask a model; its answer appears while it is written.

    Example: tuneplex ask contacts "Call Ada Lovelace at 555-0100"
    """
    from tuneplex.cli import ask as command

    question = command.Question(model, command.prompt_text(prompt), system, max_tokens, temperature)
    target = command.target(base_url, key, state_dir, fleet)
    return command.ask(target, question, as_json=json, why=why)


def doctor(fleet: use.OptionalFleet = None, *, port: use.Port = None, json: use.Json = False) -> int:
    """Find out what is missing on this machine, and how to get it.

    The exit code is 1 when something is missing without which no fleet can run here.

    Example: tuneplex doctor
    """
    from tuneplex.cli import doctor as command

    return command.doctor(fleet, port=port, as_json=json)


def restart(
    part: use.Part,
    *,
    timeout: use.RestartTimeout = "60s",
    drain: use.Drain = "10m",
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Replace processes while requests go on.

    PART is gateways, control or all. New processes run the version of tuneplex that is installed now, and read TLS
    certificates anew. Each new gateway serves before the old one stops to, in which streams finish. When a new process
    does not come up, the old one goes on and the exit code is 1. Engines are not touched.

    Example: tuneplex restart gateways
    """
    from tuneplex.cli import locate
    from tuneplex.cli import restart as command

    state = locate.running_fleet(state_dir, fleet)
    return command.restart(state, part, timeout=timeout, drain=drain, as_json=json)


def config_show(fleet: use.Fleet = _FLEET, *, json: use.Json = False) -> int:
    """Show every setting of a fleet and where its value comes from.

    Secrets are masked.

    Example: tuneplex config show fleet.yaml
    """
    from tuneplex.cli import config

    return config.show(fleet, as_json=json)


def engine_install(*, directory: use.EngineDir = None, python: use.EnginePython = None) -> int:
    """Make the engine's own environment.

    It holds vLLM for the CPU with tuneplex's plugin and takes about 3.5 GB. What is there is not done again.

    Example: tuneplex engine install --dir .venv-engine
    """
    from tuneplex.cli import engine

    return engine.install(directory, python)


def replicas_drain(
    name: use.Replica,
    *,
    now: use.Now = False,
    force: use.ForceDrain = False,
    wait: use.Wait = False,
    timeout: use.WaitTime = "15m",
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Give a replica no new requests, until it is resumed.

    Its streams finish; what has not after the pool's drain time is moved to other replicas.

    Example: tuneplex replicas drain default-0 --wait
    """
    from tuneplex.cli import locate, times
    from tuneplex.cli import replicas as command

    patience = times.seconds(timeout, "--timeout")
    wish = command.Wish(now=now, force=force, wait_s=patience if wait else None, as_json=json)
    return command.drain(locate.running_fleet(state_dir, fleet), name, wish)


def replicas_resume(
    name: use.Replica, *, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """Give a drained replica requests again.

    Example: tuneplex replicas resume default-0
    """
    from tuneplex.cli import locate
    from tuneplex.cli import replicas as command

    return command.resume(locate.running_fleet(state_dir, fleet), name, as_json=json)


def replicas_restart(
    name: use.Replica,
    *,
    now: use.Now = False,
    force: use.ForceDrain = False,
    wait: use.Wait = False,
    timeout: use.WaitTime = "15m",
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Drain a replica, end its engine and start it again.

    The other replicas serve meanwhile. External engines are not tuneplex's to restart.

    Example: tuneplex replicas restart default-0 --wait
    """
    from tuneplex.cli import locate, times
    from tuneplex.cli import replicas as command

    patience = times.seconds(timeout, "--timeout")
    wish = command.Wish(now=now, force=force, wait_s=patience if wait else None, as_json=json)
    return command.restart(locate.running_fleet(state_dir, fleet), name, wish)


def tenants_list(*, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """List the tenants, with what they may call.

    Example: tuneplex tenants list
    """
    from tuneplex.cli import locate
    from tuneplex.cli import tenants as command

    return command.listing(locate.running_fleet(state_dir, fleet), as_json=json)


def tenants_create(
    name: use.Tenant,
    *,
    adapters: use.Adapters = None,
    no_adapters: use.NoAdapters = False,
    base: use.BaseModel = None,
    isolated: use.Isolated = None,
    cache_group: use.CacheGroup = None,
    weight: use.Weight = None,
    records: use.Records = None,
    requests_per_minute: use.RequestsPerMinute = None,
    tokens_per_minute: use.TokensPerMinute = None,
    tokens_per_day: use.TokensPerDay = None,
    concurrent: use.Concurrent = None,
    money_per_month: use.MoneyPerMonth = None,
    cut_streams: use.CutStreams = None,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Make a tenant.

    Its keys may call what you allow here, at most; without options that is everything.

    Example: tuneplex tenants create acme --adapters 'acme-*' --no-base --requests-per-minute 600
    """
    from tuneplex.cli import limits as amounts
    from tuneplex.cli import locate
    from tuneplex.cli import tenants as command

    models = command.models(adapters, none=no_adapters, base=base)
    numbers = amounts.given(
        {
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "tokens_per_day": tokens_per_day,
            "concurrent": concurrent,
            "money_per_month": money_per_month,
        },
        cut_streams=cut_streams,
    )
    more = command.more(isolated=isolated, cache_group=cache_group, weight=weight, records=records)
    wanted = command.wanted(models, more, limits=numbers)
    return command.create(locate.running_fleet(state_dir, fleet), name, wanted, as_json=json)


def tenants_show(
    name: use.Tenant, *, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """Show one tenant.

    Example: tuneplex tenants show acme
    """
    from tuneplex.cli import locate
    from tuneplex.cli import tenants as command

    return command.show(locate.running_fleet(state_dir, fleet), name, as_json=json)


def tenants_set(
    name: use.Tenant,
    *,
    adapters: use.Adapters = None,
    no_adapters: use.NoAdapters = False,
    base: use.BaseModel = None,
    isolated: use.Isolated = None,
    cache_group: use.CacheGroup = None,
    weight: use.Weight = None,
    records: use.Records = None,
    requests_per_minute: use.RequestsPerMinute = None,
    tokens_per_minute: use.TokensPerMinute = None,
    tokens_per_day: use.TokensPerDay = None,
    concurrent: use.Concurrent = None,
    money_per_month: use.MoneyPerMonth = None,
    cut_streams: use.CutStreams = None,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Change what a tenant's keys may do, within a second.

    What is not given stays. A list of adapters replaces the whole list that was there.

    Example: tuneplex tenants set acme --adapters 'acme-*' --adapters sql
    """
    from tuneplex.cli import limits as amounts
    from tuneplex.cli import locate
    from tuneplex.cli import tenants as command

    models = command.models(adapters, none=no_adapters, base=base)
    numbers = amounts.given(
        {
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "tokens_per_day": tokens_per_day,
            "concurrent": concurrent,
            "money_per_month": money_per_month,
        },
        cut_streams=cut_streams,
    )
    more = command.more(isolated=isolated, cache_group=cache_group, weight=weight, records=records)
    wanted = command.wanted(models, more, limits=numbers)
    return command.change(locate.running_fleet(state_dir, fleet), name, wanted, as_json=json)


def tenants_disable(name: use.Tenant, *, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """Refuse all of a tenant's keys, until it is enabled again.

    Example: tuneplex tenants disable acme
    """
    from tuneplex.cli import locate
    from tuneplex.cli import tenants as command

    return command.switch(locate.running_fleet(state_dir, fleet), name, disabled=True)


def tenants_enable(name: use.Tenant, *, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """Let a disabled tenant's keys work again.

    Example: tuneplex tenants enable acme
    """
    from tuneplex.cli import locate
    from tuneplex.cli import tenants as command

    return command.switch(locate.running_fleet(state_dir, fleet), name, disabled=False)


def tenants_remove(
    name: use.Tenant,
    *,
    revoke: use.Revoke = False,
    yes: use.Yes = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Remove a tenant.

    One that has active keys stays, unless --revoke ends them first.

    Example: tuneplex tenants remove acme --revoke
    """
    from tuneplex.cli import locate
    from tuneplex.cli import tenants as command

    return command.remove(locate.running_fleet(state_dir, fleet), name, revoke=revoke, yes=yes)


def keys_create(
    *,
    tenant: use.KeyTenant,
    label: use.Label = "",
    adapters: use.Adapters = None,
    no_adapters: use.NoAdapters = False,
    base: use.BaseModel = None,
    scope: use.Scopes = None,
    expires: use.Expires = None,
    requests_per_minute: use.RequestsPerMinute = None,
    tokens_per_minute: use.TokensPerMinute = None,
    tokens_per_day: use.TokensPerDay = None,
    concurrent: use.Concurrent = None,
    money_per_month: use.MoneyPerMonth = None,
    cut_streams: use.CutStreams = None,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Make a key and print its secret, this once.

    Standard output has nothing but the secret, so a script can keep it: KEY=$(tuneplex keys create --tenant acme).

    Example: tuneplex keys create --tenant acme --label ci --adapters 'acme-*' --expires 90d
    """
    from tuneplex.cli import keys as command
    from tuneplex.cli import limits as amounts
    from tuneplex.cli import locate, tenants

    models = tenants.models(adapters, none=no_adapters, base=base)
    numbers = amounts.given(
        {
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "tokens_per_day": tokens_per_day,
            "concurrent": concurrent,
            "money_per_month": money_per_month,
        },
        cut_streams=cut_streams,
    )
    wish = command.wish(tenant, label=label, scopes=scope, models=models, expires=expires, limits=numbers)
    return command.create(locate.running_fleet(state_dir, fleet), wish, as_json=json)


def keys_list(
    *,
    tenant: use.TenantFilter = None,
    ended: use.AllKeys = False,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """List the active keys. Secrets are not among it: they are kept nowhere.

    Example: tuneplex keys list --tenant acme --all
    """
    from tuneplex.cli import keys as command
    from tuneplex.cli import locate

    return command.listing(locate.running_fleet(state_dir, fleet), tenant, ended=ended, as_json=json)


def keys_show(
    key: use.KeyId, *, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """Show one key.

    Example: tuneplex keys show KEY_ID
    """
    from tuneplex.cli import keys as command
    from tuneplex.cli import locate

    return command.show(locate.running_fleet(state_dir, fleet), key, as_json=json)


def keys_set(
    key: use.KeyId,
    *,
    label: use.LabelAnew = None,
    adapters: use.Adapters = None,
    no_adapters: use.NoAdapters = False,
    base: use.BaseModel = None,
    requests_per_minute: use.RequestsPerMinute = None,
    tokens_per_minute: use.TokensPerMinute = None,
    tokens_per_day: use.TokensPerDay = None,
    concurrent: use.Concurrent = None,
    money_per_month: use.MoneyPerMonth = None,
    cut_streams: use.CutStreams = None,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Change what a key may do, within a second.

    What is not given stays. A list of adapters replaces the whole list that was there.

    Example: tuneplex keys set KEY_ID --tokens-per-day 100000 --concurrent none
    """
    from tuneplex.cli import keys as command
    from tuneplex.cli import limits as amounts
    from tuneplex.cli import locate, tenants

    models = tenants.models(adapters, none=no_adapters, base=base)
    numbers = amounts.given(
        {
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "tokens_per_day": tokens_per_day,
            "concurrent": concurrent,
            "money_per_month": money_per_month,
        },
        cut_streams=cut_streams,
    )
    wish = command.change(label=label, models=models, limits=numbers)
    return command.changed(locate.running_fleet(state_dir, fleet), key, wish, as_json=json)


def keys_rotate(
    key: use.KeyId,
    *,
    grace: use.Grace = "24h",
    expires: use.ExpiresAnew = None,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Replace a key by a new one and print its secret.

    The new key may do what the old one may. Both work until the grace is over, so clients can change without a gap.

    Example: tuneplex keys rotate KEY_ID --grace 24h
    """
    from tuneplex.cli import keys as command
    from tuneplex.cli import locate

    state = locate.running_fleet(state_dir, fleet)
    return command.rotate(state, key, grace=grace, expires=expires, as_json=json)


def keys_revoke(
    key: use.KeyId, *, yes: use.Yes = False, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """End a key for ever, within a second.

    Example: tuneplex keys revoke KEY_ID
    """
    from tuneplex.cli import keys as command
    from tuneplex.cli import locate

    return command.revoke(locate.running_fleet(state_dir, fleet), key, yes=yes)


def store_show(*, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """Show where tenants and keys are kept, and how many.

    Also when the fleet does not run.

    Example: tuneplex store show
    """
    from tuneplex.cli import locate
    from tuneplex.cli import store as command

    return command.show(locate.any_fleet(state_dir, fleet), as_json=json)


def store_backup(
    file: use.BackupFile, *, force: use.Force = False, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """Write all tenants and keys into one file.

    Also while the fleet runs. The file restores into SQLite and PostgreSQL alike. It holds no key that a client could
    send, but keep it private.

    Example: tuneplex store backup tuneplex.backup
    """
    from tuneplex.cli import locate
    from tuneplex.cli import store as command

    return command.backup(locate.any_fleet(state_dir, fleet), file, force=force)


def store_restore(
    file: use.BackupFile, *, replace: use.Replace = False, fleet: use.FleetName = None, state_dir: use.StateDir = None
) -> int:
    """Take all tenants and keys from a backup.

    The fleet must not run. A file that is damaged changes nothing.

    Example: tuneplex store restore tuneplex.backup
    """
    from tuneplex.cli import locate
    from tuneplex.cli import store as command

    return command.restore(locate.any_fleet(state_dir, fleet), file, replace=replace)


def store_upgrade(*, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """Bring the tables to the revision of this version of tuneplex.

    The fleet must not run. A store in SQLite is upgraded by `tuneplex up` itself.

    Example: tuneplex store upgrade
    """
    from tuneplex.cli import locate
    from tuneplex.cli import store as command

    return command.upgrade(locate.any_fleet(state_dir, fleet))


def audit_verify(
    directory: use.AuditDir = None,
    *,
    public_key: use.PublicKey = None,
    expect: use.Expect = None,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Find out whether the audit log is as it was written.

    Names what was changed, removed or moved, and says up to which record everything is proven. It needs nothing but
    the log's files and the public key, also while the fleet runs. The exit code is 1 when the log is not proven.

    Example: tuneplex audit verify --public-key public.pem
    """
    from tuneplex.cli import audit as command
    from tuneplex.cli import locate

    where = directory or locate.any_fleet(state_dir, fleet).audit
    return command.check(where, public_key, expect, as_json=json)


def audit_head(*, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """Print the newest signed place of the audit log.

    Keep it elsewhere: `tuneplex audit verify --expect HEAD` tells later whether all up to there is still the same.

    Example: tuneplex audit head
    """
    from tuneplex.cli import audit as command
    from tuneplex.cli import locate

    return command.head(locate.any_fleet(state_dir, fleet), as_json=json)


def audit_export(
    *,
    since: use.Since = None,
    until: use.Until = None,
    tenant: use.AuditTenant = None,
    form: use.AuditFormat = "jsonl",
    file: use.AuditFile = None,
    force: use.Force = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Print events of the audit log.

    The log itself gets an event first that says who reads it.

    Example: tuneplex audit export --from 2026-11-01 --to 2026-11-30 --tenant acme --format csv -o acme.csv
    """
    from tuneplex.cli import audit as command
    from tuneplex.cli import locate, times
    from tuneplex.records.audit import Selection

    selection = Selection(
        since=float("-inf") if since is None else times.instant(since, "--from"),
        until=float("inf") if until is None else times.instant(until, "--to", end=True),
        tenant=tenant,
    )
    return command.export(locate.any_fleet(state_dir, fleet), command.Export(selection, form, file, force))
