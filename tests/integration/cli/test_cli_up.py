"""Starting and ending fleets: what a person sees, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import httpx2
import pytest

from tests.support.command_line import CommandLine

OWN_PROCESSES = ("app.supervisor", "control_process", "gateway_process", "keeper", "fake_engine")


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str)
def test_signal_to_a_foreground_fleet_ends_all_of_it(cli: CommandLine, number: signal.Signals, code: int) -> None:
    """Ctrl-C, SIGTERM and a closed terminal end the fleet in order, and the exit code tells which it was."""
    up = cli.start("up")
    up.line("READY")
    assert all(any(name in line for line in cli.processes().values()) for name in OWN_PROCESSES)
    assert up.end(number) == code
    assert cli.processes() == {}
    assert not list(cli.states.glob("*/run"))


def test_foreground_start_is_told_in_plain_lines(cli: CommandLine) -> None:
    """A pipe gets each phase once, then what one needs to use the fleet."""
    up = cli.start("up")
    url = up.line("base URL").split()[-1]
    models = up.line("models").split(maxsplit=1)[1]
    assert models == "tiny, contacts, sql"
    assert httpx2.get(f"{url}/models").json()["data"][0]["id"] == "tiny"
    up.end(signal.SIGINT)
    text = "\n".join(up.lines)
    assert "default-0: ready" in text
    assert "stopping the fleet" in text
    assert "\x1b" not in text
    assert len(up.lines) == len(set(up.lines))


def test_second_ctrl_c_ends_a_fleet_at_once(cli: CommandLine) -> None:
    """An engine that does not react to SIGTERM does not keep an impatient person waiting."""
    cli.write_fleet(env=", TUNEPLEX_FAKE_HANG_ON_TERM: '1'")
    up = cli.start("up")
    up.line("READY")
    up.process.send_signal(signal.SIGINT)
    up.line("stopping the fleet")
    assert up.end(signal.SIGINT) == 130
    assert cli.all_gone()


def test_ctrl_c_during_the_start_leaves_nothing(cli: CommandLine) -> None:
    """A start that is broken off ends what it had started."""
    cli.write_fleet(env=", TUNEPLEX_FAKE_START_DELAY_S: '60'")
    up = cli.start("up")
    up.line("default-0: starting")
    assert up.end(signal.SIGINT) == 130
    assert cli.processes() == {}


def test_killed_command_takes_its_fleet_with_it(cli: CommandLine) -> None:
    """SIGKILL gives the command no chance to clean up; the supervisor's lifeline does."""
    up = cli.start("up")
    up.line("READY")
    assert up.end(signal.SIGKILL) == -signal.SIGKILL
    assert cli.all_gone()


def test_detached_fleet_outlives_its_command_until_down(cli: CommandLine) -> None:
    """`up --detach` returns when the fleet is ready, `down` ends it."""
    started = cli.run("up", "--detach")
    assert (started.returncode, started.stderr) == (0, "")
    assert "tuneplex down" in started.stdout
    again = cli.run("up", "--detach")
    assert again.returncode == 2
    assert "error: the fleet 'shop' runs already" in again.stderr
    assert "tuneplex apply" in again.stderr
    ended = cli.run("down")
    assert (ended.returncode, ended.stdout) == (0, "shop: ended\n")
    assert cli.processes() == {}
    assert cli.run("down").returncode == 2


@pytest.mark.parametrize("flag", [[], ["--detach"]], ids=["foreground", "detached"])
def test_engine_that_cannot_start_shows_its_last_words(cli: CommandLine, flag: list[str]) -> None:
    """The log's end and one error are shown, the exit code is 1, and nothing is left running."""
    cli.write_fleet(env=", TUNEPLEX_FAKE_FAIL_START: 'there is no memory left'")
    failed = cli.run("up", *flag)
    assert failed.returncode == 1
    *tail, error, hint = failed.stderr.splitlines()
    assert any("there is no memory left" in line for line in tail)
    assert error.startswith("error: default-0 does not start: ")
    assert hint == "hint: `tuneplex logs` shows more"
    assert cli.processes() == {}
    assert "there is no memory left" in cli.run("logs", "default-0").stdout


def test_start_that_takes_too_long_is_given_up(cli: CommandLine) -> None:
    """`--timeout` bounds the wait; nothing is left running."""
    cli.write_fleet(env=", TUNEPLEX_FAKE_START_DELAY_S: '60'")
    failed = cli.run("up", "--timeout", "2s")
    assert failed.returncode == 1
    assert "error: the fleet was not ready within 2.0s" in failed.stderr
    assert cli.processes() == {}


@pytest.mark.parametrize(
    "old,new,error",
    [
        ("adapters:", "adaptors:", "fleet.yaml:5: adaptors: unknown key"),
        ("models/sql", "models/nothing", "fleet.yaml:7: adapters.sql.source: "),
        ("models/tiny", "models/nothing", "fleet.yaml:2: base.source: "),
        ("models/sql", "models/tiny", "fleet.yaml:7: adapters.sql.source: "),
        ("replicas: 1", "max_lora_rank: 8", "fleet.yaml:7: adapters.sql: has rank 16"),
        ("/python", "/no-python", "fleet.yaml:3: engine.python: "),
    ],
)
def test_wrong_fleet_file_is_one_message_and_starts_nothing(cli: CommandLine, old: str, new: str, error: str) -> None:
    """File, line and key are named, the exit code is 2, and no state is written."""
    path = cli.directory / "fleet.yaml"
    path.write_text(path.read_text().replace(old, new, 1))
    failed = cli.run("up")
    said = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    assert failed.returncode == 2
    assert len(said) == 1
    assert said[0].startswith(f"error: {error}")
    assert "Traceback" not in failed.stderr
    assert not cli.states.exists()


def test_taken_port_is_refused_with_its_owner(cli: CommandLine) -> None:
    """Who has the port, and how to choose another, is told before anything starts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cli.write_fleet(f"gateway: {{port: {port}}}")
        failed = cli.run("up")
    assert failed.returncode == 2
    assert f"error: port {port} is taken by" in failed.stderr
    assert f"pid {os.getpid()}" in failed.stderr
    assert "gateway.port" in failed.stderr
    assert not cli.states.exists()


def test_state_directory_can_be_chosen(cli: CommandLine, tmp_path: Path) -> None:
    """`--state-dir` puts a fleet's state where one wants it, and finds it there again."""
    state = str(tmp_path / "state")
    assert cli.run("up", "--detach", "--state-dir", state).returncode == 0
    assert json.loads(cli.run("status", "--json", TUNEPLEX_STATE_DIR=state).stdout)["name"] == "shop"
    assert "no fleet is running" in cli.run("status").stderr
    assert cli.run("down", "--state-dir", state).returncode == 0


def test_one_of_several_fleets_must_be_named(cli: CommandLine) -> None:
    """With two fleets, commands take the one of this directory, or the one that is named."""
    assert cli.run("up", "-d").returncode == 0
    cli.write_fleet(name="desk")
    assert cli.run("up", "-d").returncode == 0
    assert cli.run("status").stdout.startswith("desk: ready")
    assert cli.run("status", "--fleet", "shop").stdout.startswith("shop: ready")
    (cli.directory / "fleet.yaml").unlink()
    unclear = cli.run("status")
    assert unclear.returncode == 2
    assert "several fleets are running: desk, shop" in unclear.stderr
    assert "--fleet NAME" in unclear.stderr
