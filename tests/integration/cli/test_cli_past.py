"""What commands tell of requests that are over, and what a collector of traces is told of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.support.command_line import CommandLine
from tests.support.otlp import Receiver, receiving
from tuneplex.journal import Journal, Refused

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    """A collector of traces."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, collector: Receiver) -> Iterator[CommandLine]:
    """A fleet that was asked two things under the same id: one that it serves, and one that it does not know."""
    line = CommandLine(tmp_path_factory.mktemp("past"))
    line.env["OTEL_EXPORTER_OTLP_HEADERS"] = "x-token=abc"
    slo = "records: {keep: 7d}\nslo: {availability: 99}"
    line.write_fleet(f"gateway: {{port: 0}}\n{slo}\ntelemetry: {{traces: '{collector.url}'}}")
    try:
        started = line.run("up", "--detach")
        assert started.returncode == 0, started.stderr
        url = json.loads(line.run("status", "--json").stdout)["url"]
        assert (ask(url, "contacts"), ask(url, "nothing")) == (200, 404)
        end = time.monotonic() + PATIENCE_S
        while "it was refused" not in line.run("why", "mine").stdout and time.monotonic() < end:
            time.sleep(0.2)
        yield line
    finally:
        line.close()


def ask(url: str, model: str) -> int:
    """Ask under an id of the client's own; the status."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    return httpx2.post(f"{url}/chat/completions", json=body, headers={"x-request-id": "mine"}).status_code


def test_what_became_of_requests_is_told_later(fleet: CommandLine) -> None:
    """All requests with an id are told in words, one after the other."""
    served, refused = fleet.run("why", "mine").stdout.split("\n\n")
    for words in ("mine came ", "for contacts@", "it went to default-0 of the pool default", "3 of the reply"):
        assert words in served
    assert "it was complete, with status 200" in served
    assert "it was refused, with status 404: model_not_found" in refused


def test_an_unknown_request_has_no_story(fleet: CommandLine) -> None:
    """An id that is not known is an error that says when and for how long requests are there."""
    unknown = fleet.run("why", "yours")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no request 'yours' is kept" in unknown.stderr
    assert "about a second after its end, and is kept for 7d" in unknown.stderr


def test_what_is_promised_is_compared_with_what_was_kept(fleet: CommandLine) -> None:
    """Served requests keep the promise of the fleet file, and what a client did wrong does not count."""
    done = fleet.run("slo", "--window", "7d", "--by", "model,tenant", "--check", "--json")
    (row,) = json.loads(done.stdout)
    assert (done.returncode, row["group"]) == (0, {"model": "contacts", "tenant": "default"})
    assert (row["requests"], row["availability"], row["target"], row["burn_1h"]) == (1, 100.0, 99.0, 0.0)
    wrong = fleet.run("slo")
    assert (wrong.returncode, "requests are kept for 7d only" in wrong.stderr) == (2, True)
    assert fleet.run("slo", "--target", "100").returncode == 2


def test_traces_reach_the_collector_of_a_fleet(fleet: CommandLine, collector: Receiver) -> None:
    """A fleet whose file names a collector tells it of requests soon after, with the headers that it wants."""
    assert fleet.env["OTEL_EXPORTER_OTLP_HEADERS"] == "x-token=abc"
    end = time.monotonic() + PATIENCE_S
    while len(collector.spans) < 3 and time.monotonic() < end:
        time.sleep(0.1)
    assert [span.name for span in collector.spans] == ["chat contacts", "attempt", "chat"]
    assert collector.headers["x-token"] == "abc"


def test_it_is_all_told_when_the_fleet_has_ended(fleet: CommandLine) -> None:
    """The store has the stories and the sums also while nothing runs."""
    assert fleet.run("down").returncode == 0
    first, second = json.loads(fleet.run("why", "mine", "--json").stdout)
    assert (first["outcome"], first["completion"], len(first["attempts"])) == ("complete", 3, 1)
    assert (second["outcome"], second["status"]) == ("rejected", 404)
    later = fleet.run("slo", "--window", "7d", "--target", "99.99")
    assert later.stdout.splitlines()[1].startswith("contacts ")


def test_what_is_still_in_journals_is_told_too(fleet: CommandLine) -> None:
    """`why` takes in what a gateway had left behind when the fleet ended."""
    fleet.run("down")
    (state,) = fleet.states.iterdir()
    now, journal = time.time(), Journal(state / "journal", "left-behind")
    journal.write(Refused(now, now, "late", "default", "", "base", "base", "chat", 429, "rate"))
    journal.close()
    assert "it was refused, with status 429" in fleet.run("why", "late").stdout
