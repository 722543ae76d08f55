"""Commands that look at a running fleet or ask it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.support.command_line import CommandLine
from tuneplex.app.state import StateDir


def url(running: CommandLine) -> str:
    """Where the running fleet's clients call."""
    info = StateDir(running.states / "shop").supervisor()
    assert info is not None
    return info.url


def test_status_is_a_plain_table(running: CommandLine) -> None:
    """A pipe gets the headline, then aligned rows for replicas and adapters."""
    shown = running.run("status")
    assert shown.returncode == 0
    head, _, columns, replica, *rest = shown.stdout.splitlines()
    assert head.startswith("shop: ready  http://127.0.0.1:")
    assert columns.split()[:4] == ["REPLICA", "STATE", "SINCE", "ADAPTERS"]
    assert replica.split()[0:2] == ["default-0", "ready"]
    assert "2/2" in replica
    assert any(line.startswith("contacts") and "gpt-4o-mini" in line for line in rest)
    assert "\x1b" not in shown.stdout


def test_status_as_json_has_the_vocabularys_fields(running: CommandLine) -> None:
    """`--json` is the admin API's own answer."""
    status = json.loads(running.run("status", "--json").stdout)
    assert status["ready"] is True
    assert status["url"] == url(running)
    assert [one["version"]["name"] for one in status["adapters"]] == ["contacts", "sql"]


def test_watched_status_in_a_pipe_is_a_line_a_second(running: CommandLine) -> None:
    """`--watch` goes on until Ctrl-C, and moves nothing where nobody looks."""
    watch = running.start("status", "--watch")
    watch.line("shop: ready")
    assert watch.end(signal.SIGINT) == 130
    assert all(line.startswith("shop: ready") for line in watch.lines)


def test_adapters_are_listed_with_where_they_are_loaded(running: CommandLine) -> None:
    """Each adapter has its version, rank, pool and the replicas that have it."""
    assert running.run("adapters", "list").stdout.splitlines()[0].startswith("ADAPTER")
    listed = json.loads(running.run("adapters", "list", "--json").stdout)
    assert [(one["version"]["rank"], one["replicas"]) for one in listed] == [(8, ["default-0"]), (16, ["default-0"])]


def test_answer_is_printed_as_it_comes(running: CommandLine) -> None:
    """`ask` prints the answer and nothing else; an alias works like a name."""
    for model in ("tiny", "contacts", "gpt-4o-mini"):
        asked = running.run("ask", model, "hello", "--max-tokens", "8", "--key", "sk-shop")
        assert (asked.returncode, asked.stderr) == (0, "")
        assert asked.stdout.strip()


def test_prompt_can_come_from_standard_input(running: CommandLine) -> None:
    """`-` reads the prompt; the key may come from the environment; `--json` prints the whole reply."""
    words = ("ask", "tiny", "-", "--json", "--system", "be brief", "--temperature", "0", "--max-tokens", "5")
    asked = running.run(*words, stdin="hello\n", TUNEPLEX_API_KEY="sk-shop")
    reply = json.loads(asked.stdout)
    assert reply["model"] == "tiny"
    assert reply["usage"]["completion_tokens"] == 5
    empty = running.run(*words, stdin=" \n", TUNEPLEX_API_KEY="sk-shop")
    assert (empty.returncode, empty.stderr.splitlines()[0]) == (2, "error: the prompt is empty")


@pytest.mark.parametrize(
    "words,code,error,hint",
    [
        (["tiny", "hi"], 2, "key", "--key or TUNEPLEX_API_KEY"),
        (["tiny", "hi", "--key", "wrong"], 2, "key", "--key or TUNEPLEX_API_KEY"),
        (["nobody", "hi", "--key", "sk-shop"], 2, "nobody", "models here: tiny, contacts, sql"),
        (["tiny", "hi", "--base-url", "http://127.0.0.1:1/v1"], 1, "http://127.0.0.1:1/v1 does not answer", ""),
        (["tiny", "hi", "--base-url", "localhost"], 2, "is not a URL", "http://127.0.0.1:8000/v1"),
        (["tiny", "hi", "--fleet", "nothing"], 2, "no fleet runs in", "running fleets: shop"),
        (["tiny", "hi", "--fleet", "a", "--state-dir", "b"], 2, "name two fleets", "one of them"),
    ],
)
def test_refused_question_says_what_to_do(
    running: CommandLine, words: list[str], code: int, error: str, hint: str
) -> None:
    """Wrong input ends with 2, a server that is not there with 1; nothing is printed as if it were an answer."""
    asked = running.run("ask", *words)
    assert (asked.returncode, asked.stdout) == (code, "")
    assert asked.stderr.startswith("error: ")
    assert error in asked.stderr
    assert hint in asked.stderr


def test_another_server_can_be_asked(running: CommandLine) -> None:
    """`--base-url` asks any OpenAI-compatible server."""
    asked = running.run("ask", "tiny", "hi", "--base-url", url(running), "--key", "sk-shop", "--max-tokens", "3")
    assert asked.returncode == 0, asked.stderr


def test_logs_of_all_processes_have_heads(running: CommandLine) -> None:
    """Without a name each process's last lines stand under its name, with one they stand alone."""
    everything = running.run("logs", "-n", "1").stdout.splitlines()
    assert [line for line in everything if line.startswith("==>")] == [
        f"==> {name} <==" for name in ("control", "default-0", "gateway-0", "supervisor")
    ]
    assert len(running.run("logs", "default-0", "-n", "2").stdout.splitlines()) == 2
    wrong = running.run("logs", "default-9")
    assert wrong.returncode == 2
    assert "there is: control, default-0, gateway-0, supervisor" in wrong.stderr


def test_followed_logs_show_new_lines(running: CommandLine) -> None:
    """`-f` shows what is written from then on, with the name of the process when there are several."""
    following = running.start("logs", "-f", "-n", "0")
    following.line("==> supervisor <==")
    with (running.states / "shop" / "logs" / "control.log").open("a") as file:
        file.write("a line for the test\n")
    assert following.line("a line for the test") == "control | a line for the test"
    assert following.end(signal.SIGINT) == 130


def test_reader_that_leaves_is_no_error(running: CommandLine) -> None:
    """`tuneplex logs | head -1` prints no complaint, however much is left to say."""
    log = running.states / "shop" / "logs" / "large.log"
    log.write_text("a line of a long log\n" * 50_000)
    script = f"{sys.executable} -m tuneplex.cli logs -n 50000 | head -n 1"
    done = subprocess.run(["/bin/sh", "-c", script], env=running.env, capture_output=True, text=True, check=False)
    log.unlink()
    assert done.stdout.startswith("==>")
    assert done.stderr == ""


def test_names_are_completed(running: CommandLine) -> None:
    """The shell completes fleets, processes and models of fleets, by typer's own mechanism."""
    completed = running.completed
    assert completed("tuneplex", "status", "--fleet", "s") == ["shop"]
    assert completed("tuneplex", "logs", "de") == ["default-0"]
    assert completed("tuneplex", "ask", "con") == ["contacts"]
    assert completed("tuneplex", "ask", "g") == ["gpt-4o-mini"]


def test_doctor_reports_the_running_fleet(running: CommandLine) -> None:
    """`doctor --json` gives each finding with its level; for a fleet file it looks at that file's engine."""
    found = json.loads(running.run("doctor", "fleet.yaml", "--json").stdout)
    by_name = {one["name"]: one for one in found}
    assert by_name["python"]["level"] == "ok"
    assert by_name["fleets"]["detail"] == "running: shop"
    assert str(running.python) in by_name["engine"]["detail"]
    assert all(one["hint"] for one in found if one["level"] != "ok")


def test_doctor_fails_when_the_engine_is_missing(cli: CommandLine) -> None:
    """The exit code tells a script that no fleet can run here, and the table what to do about it."""
    told = cli.run("doctor", TUNEPLEX_ENGINE_PYTHON=str(cli.directory / "nothing"))
    assert told.returncode == 1
    assert any(line.startswith("engine") and "fail" in line for line in told.stdout.splitlines())


def test_doctor_names_what_a_killed_fleet_left(cli: CommandLine) -> None:
    """A run directory without a supervisor is a leftover, and a warning."""
    state = cli.states / "old"
    state.mkdir(parents=True)
    (state / "fleet.json").write_text("{}")
    (state / "run").symlink_to(cli.directory / "gone")
    found = json.loads(cli.run("doctor", "--json").stdout)
    assert [(one["level"], one["detail"]) for one in found if one["name"] == "leftover"] == [("warn", str(state))]
    (state / "run").unlink()


def test_settings_are_shown_with_their_origin(cli: CommandLine) -> None:
    """`config show` tells file and line, default or why; secrets are masked, in JSON too."""
    cli.write_fleet("gateway: {port: 0, key: sk-very-secret}")
    shown = cli.run("config", "show")
    settings = {one["key"]: one for one in json.loads(cli.run("config", "show", "--json").stdout)}
    assert shown.stdout.splitlines()[0].split() == ["KEY", "VALUE", "FROM"]
    assert (settings["name"]["value"], settings["name"]["from"]) == ("shop", "fleet.yaml:1")
    assert settings["gateway.host"]["from"] == "default"
    assert settings["pools.default.max_lora_rank"]["value"] == "16"
    assert "sk-very-secret" not in shown.stdout + json.dumps(settings)


def test_changes_come_live(cli: CommandLine) -> None:
    """`apply` shows the difference, does nothing without consent, and brings it live without a restart."""
    assert cli.run("up", "-d").returncode == 0
    assert "nothing to change" in cli.run("apply").stdout
    path = cli.write_fleet("gateway: {port: 0}\naliases: {gpt-4o-mini: sql}")
    path.write_text(path.read_text().replace("  contacts: models/contacts\n", ""))
    dry = cli.run("apply", "--dry-run")
    assert dry.returncode == 0
    assert [line.split()[:3] for line in dry.stdout.splitlines()[1:]] == [
        ["remove", "adapter", "contacts"],
        ["add", "alias", "gpt-4o-mini"],
    ]
    alone = cli.run("apply")
    assert alone.returncode == 2
    assert "--yes" in alone.stderr
    pid = json.loads(cli.run("status", "--json").stdout)["replicas"][0]["pid"]
    applied = json.loads(cli.run("apply", "--yes", "--json").stdout)
    assert (applied["applied"], len(applied["changes"])) == (True, 2)
    assert cli.run("ask", "gpt-4o-mini", "hi", "--max-tokens", "2").returncode == 0
    assert cli.run("ask", "contacts", "hi").returncode == 2
    assert json.loads(cli.run("status", "--json").stdout)["replicas"][0]["pid"] == pid


def test_change_that_needs_a_restart_is_refused_whole(cli: CommandLine) -> None:
    """A fleet cannot move to another port while it runs: it is told, and nothing is applied."""
    assert cli.run("up", "-d").returncode == 0
    cli.write_fleet("gateway: {port: 1234}\naliases: {gpt-4o-mini: sql}")
    refused = cli.run("apply", "--yes")
    assert refused.returncode == 2
    assert "cannot change while the fleet runs: listen" in refused.stderr
    assert cli.run("ask", "gpt-4o-mini", "hi").returncode == 2


def test_key_from_the_environment_is_never_on_disk(cli: CommandLine) -> None:
    """The fleet's state holds the hash of the gateway's key only."""
    assert cli.run("up", "-d", TUNEPLEX_API_KEY="sk-from-the-environment").returncode == 0
    assert cli.run("ask", "tiny", "hi", "--key", "sk-from-the-environment").returncode == 0
    kept = [path for path in cli.states.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"sk-from-the-environment" in path.read_bytes() for path in kept)
    assert (cli.states / "shop" / "fleet.json").stat().st_mode & 0o077 == 0
