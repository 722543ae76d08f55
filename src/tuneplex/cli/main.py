"""The commands: their arguments and help. What they do is in the modules that each of them imports when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from tuneplex.cli import options as use
from tuneplex.cli.failures import FAILED, INTERRUPTED, Failure, failure
from tuneplex.errors import TuneplexError

__all__ = ["build", "run"]

_EPILOG = "Start with `tuneplex doctor` and `tuneplex demo`. Add --help to any command for an example."
_FLEET = Path("fleet.yaml")


def build(*, decorated: bool) -> typer.Typer:
    """The command line's tree.

    Args:
        decorated: Whether help may have colours and boxes, which only a person wants.
    """
    look: Literal["rich"] | None = "rich" if decorated else None
    app = typer.Typer(name="tuneplex", rich_markup_mode=look, pretty_exceptions_enable=False)
    app.callback(epilog=_EPILOG)(root)
    for command in (demo, up, down, apply, status, logs, ask, doctor):
        app.command()(command)
    for name, about, commands in (
        ("adapters", "The fleet's fine-tunes.", {"list": adapters_list}),
        ("config", "The fleet file and its defaults.", {"show": config_show}),
        ("engine", "The engine's own environment.", {"install": engine_install}),
    ):
        group = typer.Typer(rich_markup_mode=look, help=about)
        for verb, function in commands.items():
            group.command(verb)(function)
        app.add_typer(group, name=name)
    return app


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
    return command.ask(target, question, as_json=json)


def doctor(fleet: use.OptionalFleet = None, *, port: use.Port = None, json: use.Json = False) -> int:
    """Find out what is missing on this machine, and how to get it.

    The exit code is 1 when something is missing without which no fleet can run here.

    Example: tuneplex doctor
    """
    from tuneplex.cli import doctor as command

    return command.doctor(fleet, port=port, as_json=json)


def adapters_list(*, json: use.Json = False, fleet: use.FleetName = None, state_dir: use.StateDir = None) -> int:
    """List the adapters of a running fleet, with where they are loaded.

    Example: tuneplex adapters list --json
    """
    from tuneplex.cli import locate
    from tuneplex.cli import status as command

    return command.show_adapters(locate.running_fleet(state_dir, fleet), as_json=json)


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
