"""The command line's tree: help, usage errors, exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from tuneplex import __version__
from tuneplex.cli.main import build, run


def commands() -> Iterator[tuple[str, ...]]:
    """Each command's words."""
    tree: dict[str, Any] = get_command(build(decorated=False)).commands  # type: ignore[attr-defined]
    for name, command in tree.items():
        yield from ((name, verb) for verb in command.commands) if hasattr(command, "commands") else ((name,),)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_each_command_has_help_with_an_example(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` ends with 0, is plain in a pipe, and shows a whole command line to copy."""
    assert run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"Example: tuneplex {' '.join(words)}", text)
    assert "\x1b" not in text
    assert "╭" not in text


def test_help_lists_every_command_in_a_full_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """No summary is cut off, and no arguments at all is the same as asking for help."""
    assert run([]) == 0
    bare = capsys.readouterr().out
    assert run(["--help"]) == 0
    assert bare == capsys.readouterr().out
    assert "..." not in bare.partition("Commands:")[2]
    for group in {words[0] for words in commands() if len(words) > 1}:
        assert run([group, "--help"]) == 0
        assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints name and version."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"tuneplex {__version__}\n"


@pytest.mark.parametrize(
    "argv,message,help_of",
    [
        (["nonsense"], "No such command 'nonsense'", "tuneplex --help"),
        (["config"], "Missing command", "tuneplex config --help"),
        (["up", "--nonsense"], "No such option: --nonsense", "tuneplex up --help"),
        (["ask", "base"], "Missing argument", "tuneplex ask --help"),
        (["adapters", "list", "more"], "unexpected extra argument", "tuneplex adapters list --help"),
    ],
)
def test_wrong_usage_is_one_error_and_one_hint(
    argv: list[str], message: str, help_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, nothing on standard output, and the hint names the right help."""
    assert run(argv) == 2
    said = capsys.readouterr()
    error, hint = said.err.splitlines()
    assert said.out == ""
    assert error.startswith("error: ")
    assert message in error
    assert hint == f"hint: see `{help_of}`"


def test_help_does_not_load_what_it_does_not_need() -> None:
    """Help stays quick because clients, schemas and engines are imported by the commands that use them."""
    script = (
        "import sys; from tuneplex.cli.main import run; run(['--help']);"
        "print([name for name in ('httpx2', 'yaml', 'psutil', 'asyncio', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_commands_load_neither_the_servers_nor_the_database() -> None:
    """A command that asks a running fleet stays quick, and completion more so."""
    script = (
        "import sys; from tuneplex.cli import complete; complete.tenants(''); complete.keys('');"
        "print('httpx2' in sys.modules);"
        "import tuneplex.cli.status, tuneplex.cli.keys, tuneplex.cli.tenants;"
        "print([name for name in ('starlette', 'uvicorn', 'sqlalchemy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "[]"]
