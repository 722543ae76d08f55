"""What commands tell of requests that are over."""

from __future__ import annotations

import json
import time
from subprocess import CompletedProcess

import httpx2

from tests.support.command_line import CommandLine

PATIENCE_S = 30.0


def until(line: CommandLine, *words: str) -> CompletedProcess[str]:
    """The command's answer, when there is one."""
    end = time.monotonic() + PATIENCE_S
    while (done := line.run(*words)).returncode and time.monotonic() < end:
        time.sleep(0.2)
    return done


def ask(line: CommandLine, request_id: str, model: str = "contacts") -> int:
    """Ask under an id of the client's own; the status."""
    url = json.loads(line.run("status", "--json").stdout)["url"]
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    return httpx2.post(f"{url}/chat/completions", json=body, headers={"x-request-id": request_id}).status_code


def test_what_became_of_a_request_is_told_later(cli: CommandLine) -> None:
    """The story is there while the fleet runs and when it has ended; several with the same id are all shown."""
    assert cli.run("up", "--detach").returncode == 0
    assert (ask(cli, "mine"), ask(cli, "mine", "nothing")) == (200, 404)
    until(cli, "why", "mine")
    told = until(cli, "why", "mine").stdout
    for words in ("mine came ", "for contacts@", "it went to default-0 of the pool default", "3 of the reply"):
        assert words in told
    assert "it was complete, with status 200" in told
    unknown = cli.run("why", "yours")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no request 'yours' is kept" in unknown.stderr
    assert "about a second after its end, and is kept for 90d" in unknown.stderr
    assert cli.run("down").returncode == 0
    first, second = json.loads(cli.run("why", "mine", "--json").stdout)
    assert (first["outcome"], first["completion"], len(first["attempts"])) == ("complete", 3, 1)
    assert (second["outcome"], second["status"]) == ("rejected", 404)
    assert "it was refused, with status 404: model_not_found" in cli.run("why", "mine").stdout


def test_what_is_promised_is_compared_with_what_was_kept(cli: CommandLine) -> None:
    """Served requests keep the promise, whether the fleet runs or not; a promise that is missed is an exit code."""
    cli.write_fleet("gateway: {port: 0}\nrecords: {keep: 7d}\nslo: {availability: 99}")
    assert cli.run("up", "--detach").returncode == 0
    assert "nobody has asked for anything" in cli.run("slo", "--window", "1d").stdout
    assert [ask(cli, "one"), ask(cli, "two", "nothing")] == [200, 404]
    until(cli, "why", "one")
    assert cli.run("slo", "--window", "7d", "--check").returncode == 0
    (row,) = json.loads(cli.run("slo", "--window", "7d", "--by", "model,tenant", "--json").stdout)
    assert row["group"] == {"model": "contacts", "tenant": "default"}
    assert (row["requests"], row["availability"], row["target"], row["burn_1h"]) == (1, 100.0, 99.0, 0.0)
    wrong = cli.run("slo")
    assert (wrong.returncode, "requests are kept for 7d only" in wrong.stderr) == (2, True)
    assert cli.run("slo", "--target", "100").returncode == 2
    assert cli.run("down").returncode == 0
    late = cli.run("slo", "--window", "7d", "--target", "99.99")
    assert late.stdout.splitlines()[1].startswith("contacts ")
