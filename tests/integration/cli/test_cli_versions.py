"""`adapters add`, `show`, `promote`, `rollback`, `remove` and `probe`, on a fleet of FakeEngine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine, write_adapter

RANK = 8


def add(line: CommandLine, name: str, directory: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Add a version; the exit code and what was told."""
    if not (line.directory / directory).is_dir():
        write_adapter(line.directory / directory, RANK)
    done = line.run("adapters", "add", name, directory, "--json", *more)
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode, json.loads(done.stdout)


def shown(line: CommandLine, name: str) -> dict[str, Any]:
    """What `show` tells."""
    done = line.run("adapters", "show", name, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def idle(directory: Path) -> Path:
    """An adapter that changes nothing: all of its numbers are zero."""
    file = write_adapter(directory, RANK) / "adapter_model.safetensors"
    data = file.read_bytes()
    head = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[:head] + bytes(len(data) - head))
    return directory


def test_versions_come_and_go(running: CommandLine) -> None:
    """A version is promoted, rolled back and promoted again; the history tells all of it, and the first one answers."""
    first = shown(running, "contacts")["promoted"]
    code, told = add(running, "contacts", "second", "--to", "100")
    assert (code, told["promoted"]) == (0, True)
    second = told["version"]
    assert shown(running, "contacts")["promoted"] == second
    back = running.run("adapters", "rollback", "contacts")
    assert back.stdout == f"requests for contacts get {first}\n"
    again = running.run("adapters", "promote", second[: len("contacts@") + 6], "--json")
    assert json.loads(again.stdout)["promoted"] == second
    actions = [event["action"] for event in shown(running, "contacts")["history"] if event["version"] == second]
    assert [action for action in actions if action != "unloaded"] == ["added", "promoted", "promoted"]
    assert running.run("adapters", "rollback", "contacts").returncode == 0


def test_what_changes_nothing_is_refused(running: CommandLine) -> None:
    """An adapter that answers as the base does is refused with the reason, and nobody gets it."""
    before = shown(running, "contacts")["promoted"]
    idle(running.directory / "idle")
    code, told = add(running, "contacts", "idle")
    assert (code, told["promoted"]) == (1, False)
    assert "seems not to be applied" in told["why"]
    assert shown(running, "contacts")["promoted"] == before


def test_a_new_adapter_is_added_and_removed(running: CommandLine) -> None:
    """An adapter that was never in the file answers after its probes, can be asked for by its version, and goes."""
    code, told = add(running, "fresh", "fresh")
    assert (code, told["promoted"]) == (0, True)
    for name in ("fresh", told["version"]):
        asked = running.run("ask", name, "hello", TUNEPLEX_API_KEY="sk-shop")
        assert (asked.returncode, bool(asked.stdout.strip())) == (0, True), asked.stderr
    assert "fresh" in running.run("adapters", "list").stdout
    assert running.run("adapters", "remove", "fresh").returncode == 0
    gone = running.run("ask", "fresh", "hello", TUNEPLEX_API_KEY="sk-shop")
    assert gone.returncode != 0
    assert "does not exist" in gone.stderr


def test_a_rollout_goes_on_by_itself(running: CommandLine) -> None:
    """With --no-wait the command returns; the trial is shown in the status, and rolled back by hand."""
    code, told = add(running, "contacts", "third", "--to", "20", "--no-wait")
    assert (code, told["rollout"]["share"]) == (0, 0.2)
    version = told["rollout"]["version"]
    while shown(running, "contacts")["rollout"]["tried_since"] is None:
        pass  # each look takes a command's time
    assert "tried with 20 % of the requests" in running.run("adapters", "list").stdout
    assert "Not decided yet" in running.run("adapters", "show", "contacts").stdout
    second = running.run("adapters", "add", "contacts", "second")
    assert (second.returncode, f"{version}, is being rolled out" in second.stderr) == (2, True)
    assert running.run("adapters", "rollback", "contacts").returncode == 0
    assert shown(running, "contacts")["rollout"] is None


def test_probes_are_recorded_and_held_against(running: CommandLine) -> None:
    """What `probe` writes of a version lets the same content through elsewhere, and another one not."""
    probes, bare = running.directory / "probes.jsonl", running.directory / "bare.jsonl"
    bare.write_text(
        '{"prompt": "one two three four five six"}\n{"messages": [{"role": "user", "content": "hello you"}]}'
    )
    version = shown(running, "contacts")["promoted"]
    done = running.run("adapters", "probe", version, "--probes", str(bare))
    assert done.returncode == 0, done.stderr
    probes.write_text(done.stdout)
    assert [set(json.loads(line)) for line in done.stdout.splitlines()] == [
        {"prompt", "logprobs"},
        {"messages", "logprobs"},
    ]
    code, told = add(running, "twin", "models/contacts", "--probes", str(probes))
    assert (code, told["promoted"]) == (0, True)
    code, told = add(running, "other", "other", "--probes", str(probes))
    assert code == 1
    assert "differs from its reference" in told["why"]


@pytest.mark.parametrize(
    "words, problem",
    [
        (("remove", "sql"), "is in the fleet file"),
        (("show", "nobody"), "there is no adapter 'nobody'; there are: "),
        (("promote", "sql"), "names no version"),
        (("promote", "sql@0000"), "has no version"),
        (("rollback", "sql"), "has no earlier version"),
        (("add", "sql", "nowhere"), "is not a directory"),
        (("add", "tiny", "models/sql"), "is the name of something else in this fleet"),
        (("add", "sql", "models/sql"), "is what requests for sql get already"),
        (("add", "x", "models/sql", "--probes", "models"), "cannot be read"),
        (("add", "x", "models/sql", "--score-command", "no-such-program"), "there is no program no-such-program"),
        (("add", "x", "models/sql", "--score-command", "cat", "--score-url", "http://h"), "say the same"),
        (("add", "x", "models/sql", "--within", "0s"), "should be more than 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_wrong_is_said(running: CommandLine, words: tuple[str, ...], problem: str) -> None:
    """A wrong wish is refused in words, with exit code 2, and changes nothing."""
    done = running.run("adapters", *words)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr
