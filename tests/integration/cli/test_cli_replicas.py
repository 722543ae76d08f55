"""Replicas taken out and put back, from the command line."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import CommandLine


def refusal(line: CommandLine, *words: str) -> tuple[int, str]:
    """Exit code and words of a command that does nothing."""
    done = line.run("replicas", *words)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_draining_resuming_and_restarting(cli: CommandLine) -> None:
    """Each command says what it has done, waits when it should, and is refused with a hint where it would hurt."""
    cli.write_fleet(pool="replicas: 2, drain: 1h")
    assert cli.run("up", "--detach").returncode == 0
    drained = cli.run("replicas", "drain", "default-0", "--wait")
    assert (drained.returncode, drained.stdout) == (
        0, "default-0 is draining, no requests left; takes none until it is resumed\n",
    )  # fmt: skip
    assert "no requests left; takes none until it is resumed" in cli.run("status").stdout
    code, words = refusal(cli, "restart", "default-1")
    assert code == 2
    assert "error: default-1 is the only replica of pool default that is ready" in words
    assert "hint: --force does it all the same" in words
    assert cli.run("replicas", "resume", "default-0").stdout.startswith("default-0 is ready")
    restarted = cli.run("replicas", "restart", "default-0", "--wait", "--now", "--json")
    assert restarted.returncode == 0
    shown = json.loads(restarted.stdout)
    assert (shown["state"], shown["restarts"], shown["held"]) == ("ready", 1, "")
    assert "default-0 is draining" in restarted.stderr
    assert refusal(cli, "drain", "default-7") == (
        2, "error: there is no replica 'default-7'; there are: default-0, default-1\n",
    )  # fmt: skip
    assert refusal(cli, "drain", "default-0", "--timeout", "soon")[0] == 2
    assert cli.completed("tuneplex", "replicas", "drain", "default-") == ["default-0", "default-1"]
    assert cli.run("down").returncode == 0


def test_waiting_has_an_end(cli: CommandLine) -> None:
    """A request that takes longer than the wait leaves exit code 1, and what is left is told."""
    cli.write_fleet(env=", TUNEPLEX_FAKE_SCRIPT: '{\"between_chunks_s\": 0.5}'")
    assert cli.run("up", "--detach").returncode == 0
    asking = cli.start("ask", "tiny", "hello", "--max-tokens", "400")
    while not json.loads(cli.run("status", "--json").stdout)["replicas"][0]["outstanding"]:
        assert asking.process.poll() is None
    done = cli.run("replicas", "drain", "default-0", "--force", "--wait", "--timeout", "1s")
    assert done.returncode == 1
    assert "default-0 is draining, 1 request left, moved in 4m" in done.stdout
    assert cli.run("down").returncode == 0
    asking.wait()


@pytest.mark.parametrize("verb", ["drain", "resume", "restart"])
def test_without_a_fleet(cli: CommandLine, verb: str) -> None:
    """Where none runs, that is what is said."""
    code, words = refusal(cli, verb, "default-0")
    assert (code, "no fleet is running" in words) == (2, True)
