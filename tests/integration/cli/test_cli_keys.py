"""Tenants and keys, from the command line to what clients may call."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tuneplex.app.state import StateDir


def made(line: CommandLine, *words: str) -> str:
    """A key's secret: all that standard output has."""
    done = line.run("keys", "create", *words)
    assert done.returncode == 0, done.stderr
    (secret,) = done.stdout.splitlines()
    return secret


def key_id(secret: str) -> str:
    """The public part of what clients send."""
    return secret.split("-")[1]


def listed(line: CommandLine, *words: str) -> dict[str, dict[str, Any]]:
    """Keys by their ids, as scripts read them."""
    return {one["id"]: one for one in json.loads(line.run("keys", "list", "--json", *words).stdout)}


def refusal(line: CommandLine, *words: str) -> tuple[int, str, str]:
    """Exit code, error and hint of a command that does nothing."""
    done = line.run(*words)
    assert done.stdout == ""
    error, _, hint = done.stderr.partition("\n")
    return done.returncode, error.removeprefix("error: "), hint.strip().removeprefix("hint: ")


def asked(line: CommandLine, model: str, key: str) -> int:
    """The exit code of a question to a model."""
    return line.run("ask", model, "hello", "--max-tokens", "2", "--key", key).returncode


def test_first_key_closes_an_open_fleet(cli: CommandLine) -> None:
    """The first key is announced as such, and whoever asks without one is told how to get one."""
    assert cli.run("up", "--detach").returncode == 0
    assert cli.run("ask", "tiny", "hello", "--max-tokens", "2").returncode == 0
    first = cli.run("keys", "create", "--tenant", "default")
    assert "first key: from now on it answers nobody without a key" in first.stderr
    code, error, hint = refusal(cli, "ask", "tiny", "hello")
    assert (code, "key" in error) == (2, True)
    assert "tuneplex keys create --tenant default" in hint
    assert asked(cli, "tiny", first.stdout.strip()) == 0
    second = cli.run("keys", "create", "--tenant", "default", "--json")
    assert second.stderr == ""
    assert json.loads(second.stdout)["secret"].startswith("tpx-")
    for secret in (first.stdout, json.loads(second.stdout)["secret"]):
        assert cli.run("keys", "revoke", key_id(secret), "--yes").returncode == 0
    assert refusal(cli, "ask", "tiny", "hello")[0] == 2


def test_revoking_the_last_key_is_pointed_out(cli: CommandLine) -> None:
    """A fleet that nobody can call any more says so; the next start still asks for a key, and says that too."""
    assert cli.run("up", "--detach").returncode == 0
    only = key_id(made(cli, "--tenant", "default"))
    assert "that was the last key" in cli.run("keys", "revoke", only, "--yes").stderr
    assert "revoked already" in cli.run("keys", "revoke", only, "--yes").stdout
    assert cli.run("down").returncode == 0
    again = cli.run("up", "--detach")
    assert [line for line in again.stdout.splitlines() if line.startswith("key")] == [
        "key       a tenant's; see `tuneplex keys list`"
    ]


def test_tenant_limits_its_keys_and_keys_limit_themselves(running: CommandLine) -> None:
    """A key calls what both allow; what it may not call does not exist for it, and changes come at once."""
    assert running.run("tenants", "create", "acme", "--adapters", "con*", "--no-base").returncode == 0
    wide, narrow = made(running, "--tenant", "acme"), made(running, "--tenant", "acme", "--adapters", "sql")
    assert [asked(running, model, wide) for model in ("contacts", "sql", "tiny")] == [0, 2, 2]
    assert asked(running, "sql", narrow) == 2
    told = running.run("ask", "tiny", "hello", "--key", wide).stderr
    assert "models here: contacts" in told
    assert running.run("tenants", "set", "acme", "--adapters", "*", "--base").returncode == 0
    assert [asked(running, model, narrow) for model in ("contacts", "sql", "tiny")] == [2, 0, 0]
    assert running.run("tenants", "disable", "acme").returncode == 0
    assert asked(running, "sql", narrow) == 2
    assert running.run("keys", "list", "--tenant", "acme").stdout.count("disabled") == 2
    assert running.run("tenants", "enable", "acme").returncode == 0
    assert asked(running, "sql", narrow) == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_secret_that_cannot_be_written_opens_nothing(running: CommandLine, form: list[str]) -> None:
    """Where the disk is full or nobody reads any more, the key that nobody has seen is revoked again."""
    reader, writer = os.pipe()
    os.close(reader)
    before = listed(running).keys()
    with Path("/dev/full").open("wb") as full, os.fdopen(writer, "wb") as broken:
        for stdout, why in ((full, "No space left on device"), (broken, "Broken pipe")):
            done = running.run("keys", "create", "--tenant", "default", *form, stdout=stdout)
            assert done.returncode == 1
            assert f"cannot be written to standard output ({why}), so it is revoked again" in done.stderr
            assert "Exception" not in done.stderr
            assert "tpx-" not in done.stderr
    assert listed(running).keys() == before
    old = key_id(made(running, "--tenant", "default"))
    with Path("/dev/full").open("wb") as full:
        done = running.run("keys", "rotate", old, "--grace", "1h", *form, stdout=full)
    assert (done.returncode, f"{old} ends as if it had been replaced" in done.stderr) == (1, True)


def test_rotated_key_goes_on_for_its_grace(running: CommandLine) -> None:
    """Both secrets work until the grace is over, and the new key keeps label, limits and lifetime."""
    old = made(running, "--tenant", "default", "--label", "ci", "--adapters", "sql", "--expires", "90d")
    done = running.run("keys", "rotate", key_id(old), "--grace", "1h")
    new = done.stdout.strip()
    assert f"{key_id(old)} works until " in done.stderr
    assert [asked(running, "sql", key) for key in (old, new)] == [0, 0]
    found = listed(running)
    assert found[key_id(new)]["replaces"] == key_id(old)
    assert [found[key_id(new)][name] for name in ("label", "adapters")] == ["ci", ["sql"]]
    lives = [found[key_id(key)]["expires"] - found[key_id(key)]["created"] for key in (old, new)]
    assert (lives[0] < 3700, lives[1]) == (True, 90 * 86400)  # the old one was made a moment before
    assert "opens nothing any more" in running.run("keys", "rotate", key_id(new), "--grace", "0").stderr
    assert asked(running, "sql", new) == 2


def test_revoked_and_expired_keys_are_listed_on_demand(running: CommandLine) -> None:
    """The list has what opens something; `--all` has the rest with its state."""
    gone, kept = made(running, "--tenant", "default"), made(running, "--tenant", "default", "--label", "kept")
    assert running.run("keys", "revoke", key_id(gone), "--yes").returncode == 0
    assert asked(running, "tiny", gone) == 2
    assert key_id(gone) not in listed(running)
    assert listed(running, "--all")[key_id(gone)]["state"] == "revoked"
    head, *rows = running.run("keys", "list", "--all").stdout.splitlines()
    assert head.split() == ["ID", "TENANT", "LABEL", "SCOPES", "MODELS", "LIMITS", "STATE", "EXPIRES"]
    assert any(row.split() == [key_id(kept), "default", "kept", "use", "all", "active", "never"] for row in rows)
    assert "just now" in next(row for row in rows if row.startswith(key_id(gone)))
    shown = json.loads(running.run("keys", "show", key_id(gone), "--json").stdout)
    assert (shown["state"], "sha256" in shown) == ("revoked", False)


def test_tenant_with_keys_is_only_removed_with_them(running: CommandLine) -> None:
    """Removing somebody who still calls is refused, unless their keys shall go as well."""
    assert running.run("tenants", "create", "brief").returncode == 0
    secret = made(running, "--tenant", "brief")
    code, error, hint = refusal(running, "tenants", "remove", "brief", "--yes")
    assert (code, error) == (2, "the tenant brief has 1 active key")
    assert "--revoke" in hint
    assert running.run("tenants", "remove", "brief", "--revoke", "--yes").stdout == "brief: removed\n"
    assert asked(running, "tiny", secret) == 2
    assert refusal(running, "tenants", "show", "brief")[0] == 2


def test_tenants_are_told_apart_in_a_plain_table(running: CommandLine) -> None:
    """What is special about a tenant stands in its row; what was hardly meant is a warning."""
    words = ("--isolated", "--cache-group", "europe", "--adapters", "nothing-*", "--json")
    done = running.run("tenants", "create", "apart", *words)
    assert json.loads(done.stdout)["cache_group"] == "europe"
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["warning", "warning"]
    (row,) = [line for line in running.run("tenants", "list").stdout.splitlines() if line.startswith("apart")]
    assert row.split() == ["apart", "base,", "nothing-*", "reserved", "europe", "1", "0", "active"]
    assert running.run("tenants", "set", "apart", "--cache-group", "", "--shared").returncode == 0
    shown = json.loads(running.run("tenants", "show", "apart", "--json").stdout)
    assert (shown["isolated"], shown["cache_group"]) == (False, "")


@pytest.mark.parametrize(
    "words,error,hint",
    [
        (["keys", "create", "--tenant", "nobody"], "nobody", "`tuneplex tenants create nobody`"),
        (["keys", "create", "--tenant", "No Body"], "--tenant: 'No Body' is not a name", "small letters"),
        (["keys", "create", "--tenant", "default", "--expires", "soon"], "--expires: 'soon'", ""),
        (["keys", "create", "--tenant", "default", "--adapters", ""], "--adapters: ", "--no-adapters"),
        (["keys", "create", "--tenant", "default", "--adapters", "a", "--no-adapters"], "contradict", "one of them"),
        (["keys", "create", "--tenant", "default", "--label", "x" * 129], "--label: too long", "128"),
        (["keys", "create", "--tenant", "default", "--label", "a\nb"], "cannot be printed", ""),
        (["keys", "list", "--tenant", "nobody"], "nobody", "tuneplex tenants list"),
        (["keys", "show", "a/b?c"], "there is no ", "tuneplex keys list --all"),
        (["keys", "rotate", "nothing"], "nothing", "tuneplex keys list --all"),
        (["keys", "revoke", "nothing"], "nothing", "tuneplex keys list --all"),
        (["tenants", "create", "default"], "default", "tuneplex tenants set default"),
        (["tenants", "create", "x", "--cache-group", "A B"], "--cache-group: 'A B' is not a name", ""),
        (["tenants", "set", "default"], "nothing was given to change", "tenants set --help"),
        (["tenants", "set", "nobody", "--base"], "nobody", "tuneplex tenants list"),
        (["tenants", "remove", "default", "--yes", "--revoke"], "default", ""),
        (["tenants", "disable", "nobody"], "nobody", "tuneplex tenants list"),
    ],
)
def test_wrong_wish_says_what_to_do(running: CommandLine, words: list[str], error: str, hint: str) -> None:
    """Wrong input ends with 2 and nothing on standard output, and the hint leads on."""
    code, told, help_ = refusal(running, *words)
    assert code == 2
    assert error in told
    assert hint in help_


def test_nobody_is_asked_where_nobody_is(running: CommandLine) -> None:
    """A script that forgot `--yes` does not hang and changes nothing."""
    secret = made(running, "--tenant", "default")
    assert refusal(running, "keys", "revoke", key_id(secret)) == (2, "there is nobody to ask", "add --yes")
    assert asked(running, "tiny", secret) == 0


def test_person_may_say_no(running: CommandLine) -> None:
    """Just pressing Enter leaves the key as it was, and the exit code tells."""
    secret = made(running, "--tenant", "default")
    ours, theirs = pty.openpty()
    os.write(ours, b"\n")
    done = subprocess.run(
        running._command(("keys", "revoke", key_id(secret))),
        cwd=running.directory,
        env=running.env,
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    os.close(ours)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"revoke {key_id(secret)} of default? [y/N]" in done.stderr
    assert asked(running, "tiny", secret) == 0


def test_database_that_does_not_answer_is_named(running: CommandLine) -> None:
    """The command fails with 1 and says that nothing was changed, while keys that are known go on."""
    secret = made(running, "--tenant", "default")
    file = StateDir(running.states / "shop").store_file
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        code, error, hint = refusal(running, "keys", "create", "--tenant", "default")
        assert asked(running, "tiny", secret) == 0
        other.execute("ROLLBACK")
    assert code == 1
    assert "nothing was changed" in error
    assert "callers are served on" in hint


def test_names_and_ids_are_completed_from_files(running: CommandLine) -> None:
    """The shell completes tenants and keys without asking the fleet."""
    secret = made(running, "--tenant", "default")
    assert running.completed("tuneplex", "keys", "create", "--tenant", "def") == ["default"]
    assert running.completed("tuneplex", "keys", "revoke", key_id(secret)[:8]) == [key_id(secret)]
    assert running.completed("tuneplex", "tenants", "set", "default", "--adapters", "con") == ["contacts"]


def test_secret_is_nowhere_on_disk(running: CommandLine) -> None:
    """The fleet's state directory, logs included, holds hashes only."""
    secret = made(running, "--tenant", "default")
    assert asked(running, "tiny", secret) == 0
    kept = [path for path in running.states.rglob("*") if path.is_file()]
    assert kept
    assert not any(secret.rpartition("-")[2].encode() in path.read_bytes() for path in kept)


def test_whole_key_stands_for_its_id(running: CommandLine) -> None:
    """Whoever finds a key in a place where it should not be can revoke it, and the secret is not repeated."""
    secret = made(running, "--tenant", "default")
    done = running.run("keys", "revoke", secret, "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{key_id(secret)}: revoked")
    assert secret not in done.stdout + done.stderr


def test_default_tenant_stays(running: CommandLine) -> None:
    """Nobody is sent to revoke all keys of a tenant that cannot be removed anyway."""
    code, error, hint = refusal(running, "tenants", "remove", "default")
    assert (code, error) == (2, "the tenant default is always there")
    assert "tuneplex tenants disable default" in hint


def test_limits_are_set_shown_changed_and_removed(running: CommandLine) -> None:
    """What a tenant and a key may ask is given in options, shown in words, and `none` takes it away."""
    words = ("--requests-per-minute", "600", "--concurrent", "4")
    assert running.run("tenants", "create", "bounded", *words).returncode == 0
    key = key_id(made(running, "--tenant", "bounded", "--tokens-per-day", "100000"))
    shown = running.run("tenants", "show", "bounded").stdout
    assert re.search(r"^limits +600 requests/min, 4 at a time$", shown, re.MULTILINE)
    assert running.run("tenants", "set", "bounded", "--concurrent", "none").returncode == 0
    changed = running.run("keys", "set", key, "--label", "ci", "--tokens-per-minute", "50")
    assert re.search(r"^limits +50 tokens/min, 100000 tokens/day$", changed.stdout, re.MULTILINE)
    assert re.search(r"^tenant's limits +600 requests/min$", changed.stdout, re.MULTILINE)
    assert (listed(running)[key]["label"], listed(running)[key]["limits"]) == (
        "ci",
        {"tokens_per_minute": 50, "tokens_per_day": 100000},
    )
    found = {one["subject"]: one for one in json.loads(running.run("limits", "--json").stdout)}
    assert found["tenant bounded"]["limits"] == {"requests_per_minute": 600}
    head, *rows = running.run("limits").stdout.splitlines()
    heads = ["SUBJECT", "REQUESTS/MIN", "TOKENS/MIN", "TOKENS/DAY", "AT A TIME", "MONEY/MONTH", "REFUSED"]
    assert head.split() == " ".join(heads).split()
    assert f"key {key} 0 of 50 0 of 100000 0".split() in [row.split() for row in rows]


def test_whole_key_stands_for_its_id_and_is_not_repeated(running: CommandLine) -> None:
    """Who gives a command the secret means that key; no message has the secret in it."""
    secret = made(running, "--tenant", "default")
    for words in (["show"], ["set", "--label", "whole"], ["rotate"], ["revoke", "--yes"]):
        done = running.run("keys", words[0], secret, *words[1:])
        assert done.returncode == 0, done.stderr
        assert secret not in done.stdout + done.stderr
    assert listed(running, "--all")[key_id(secret)]["label"] == "whole"


def test_money_and_weights_are_set_and_shown(running: CommandLine) -> None:
    """An amount is given as a decimal, and shown exactly with its currency; cutting goes with it."""
    words = ("--money-per-month", "25.5", "--cut-streams", "--weight", "4")
    assert running.run("tenants", "create", "payer", *words).returncode == 0
    shown = running.run("tenants", "show", "payer").stdout
    assert re.search(r"^limits +25.50 EUR/month \(cuts streams\)$", shown, re.MULTILINE)
    assert re.search(r"^weight +4, when requests have to wait$", shown, re.MULTILINE)
    told = json.loads(running.run("tenants", "show", "payer", "--json").stdout)
    assert told["limits"] == {"money_per_month": "25.50", "currency": "EUR", "cut_streams": True}
    assert told["weight"] == 4
    secret = made(running, "--tenant", "payer", "--money-per-month", "0.000001 EUR")
    assert asked(running, "contacts", secret) == 2
    assert running.run("keys", "set", key_id(secret), "--money-per-month", "5").returncode == 0
    assert asked(running, "contacts", secret) == 0
    assert running.run("tenants", "set", "payer", "--weight", "2", "--no-cut-streams").returncode == 0
    rows = [line for line in running.run("limits").stdout.splitlines() if line.startswith("tenant payer")]
    assert re.fullmatch(r"tenant payer +0\.0000\d+ of 25\.50 EUR +0", rows[0])
    assert running.run("tenants", "set", "payer", "--money-per-month", "none").returncode == 0
    assert json.loads(running.run("tenants", "show", "payer", "--json").stdout)["limits"] == {}
    code, error, _ = refusal(running, "tenants", "set", "payer", "--money-per-month", "5 USD")
    assert (code, error) == (2, "prices are in EUR here, not in USD")
    assert refusal(running, "tenants", "set", "payer", "--cut-streams")[0] == 2
    assert refusal(running, "tenants", "set", "payer", "--weight", "0")[0] == 2


def test_records_are_required_of_a_tenant(running: CommandLine) -> None:
    """A tenant whose records are required is listed as such and is answered, until they are not required again."""
    assert running.run("tenants", "create", "strict", "--records", "required").returncode == 0
    secret = made(running, "--tenant", "strict")
    assert asked(running, "contacts", secret) == 0
    rows = [line.split() for line in running.run("tenants", "list").stdout.splitlines() if line.startswith("strict")]
    assert "required" in rows[0]
    shown = running.run("tenants", "show", "strict").stdout
    assert re.search(r"^records +required, before a request goes anywhere$", shown, re.MULTILINE)
    done = running.run("tenants", "set", "strict", "--records", "best-effort", "--json")
    assert json.loads(done.stdout)["recorded"] is False
    assert refusal(running, "tenants", "set", "strict", "--records", "maybe")[0] == 2


def test_wrong_limits_change_nothing(running: CommandLine) -> None:
    """A limit that is no number, and a change of nothing, are refused before anybody is asked."""
    code, error, hint = refusal(running, "tenants", "set", "default", "--concurrent", "0")
    assert (code, error) == (2, "--concurrent: '0' is not a limit")
    assert hint == "a whole number above 0, or none"
    assert refusal(running, "keys", "create", "--tenant", "default", "--tokens-per-day", "10k")[0] == 2
    assert refusal(running, "keys", "set", "nothing")[:2] == (2, "nothing was given to change")
    assert refusal(running, "keys", "set", "nothing", "--label", "x")[0] == 2
