"""What a running fleet writes to its logs, and what never gets there."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from tests.support.fleets import Fleet, one_pool
from tuneplex.types import AdapterVersion, FleetSpec, Logs

Running = Callable[[FleetSpec], Fleet]
DIARY = "zanzibarquokka"  # what clients say; it is in no source file that a traceback could quote
PASSWORD = "xyzzy-plugh-42"
OURS = {"supervisor", "control", "gateway-0"}
TEXT = re.compile(r"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warning|error|critical) +[\w-]+ [\w.]+: |    ).*")
replace = msgspec.structs.replace


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Start a fleet; at the end of the test it is gone."""
    made: list[Fleet] = []

    def start(spec: FleetSpec) -> Fleet:
        made.append(Fleet(tmp_path / f"fleet-{len(made)}", spec))
        made[-1].start()
        return made[-1]

    yield start
    for fleet in made:
        fleet.end()


def logs(fleet: Fleet) -> dict[str, str]:
    """All log files by the names of their processes, the engines' too."""
    return {path.stem: path.read_text() for path in fleet.state.logs.glob("*.log")}


def ask(fleet: Fleet, secret: str, model: str = "ada", **fields: object) -> httpx2.Response:
    """Ask with this key for something that nobody else may read."""
    body = {"model": model, "prompt": f"dear {DIARY}", "max_tokens": 4, **fields}
    with fleet.client() as client:
        return client.post("/completions", json=body, headers={"authorization": f"Bearer {secret}"})


def fail_in_many_ways(fleet: Fleet, secret: str) -> None:
    """Requests that are refused by us and by the engine, for what is in them and for who sends them."""
    assert ask(fleet, f"{secret[:-9]}wrong").status_code == 401
    assert ask(fleet, secret, model=DIARY).status_code == 404
    assert ask(fleet, secret, max_tokens=f"no number {DIARY}").status_code == 400
    with fleet.client() as client:
        headers = {"authorization": f"Bearer {secret}", "x-request-id": f"{DIARY}\tx"}
        assert client.post("/completions", content=f'{{"{DIARY}', headers=headers).status_code == 400
        assert client.post(f"/{DIARY}?key={secret}", content=DIARY, headers=headers).status_code == 404


def lose_an_engine(fleet: Fleet, secret: str) -> None:
    """A stream whose engine is killed, which the gateway's log tells of."""
    body = {"model": "ada", "prompt": DIARY, "max_tokens": 4000, "stream": True, "ignore_eos": True}
    status = fleet.ready()
    (replica,) = status.replicas
    assert replica.pid is not None
    headers = {"authorization": f"Bearer {secret}"}
    with fleet.client() as client, client.stream("POST", "/completions", json=body, headers=headers) as reply:
        assert reply.status_code == 200
        pieces = reply.iter_bytes()
        next(pieces)
        fleet.kill(replica.pid)
        with contextlib.suppress(httpx2.HTTPError):
            list(pieces)
    fleet.ready(restarts=1)


@pytest.mark.parametrize("form", ["text", "json"])
def test_requests_leave_nothing_of_themselves(
    running: Running, fake_python: str, adapters: dict[str, AdapterVersion], form: str
) -> None:
    """Whether they succeed or fail, no key and nothing that clients say is in any log, and each line is whole."""
    spec = one_pool(fake_python, adapters["ada"])
    fleet = running(replace(spec, logs=Logs(form, "debug"), gateway=replace(spec.gateway, require_key=True)))
    fleet.ready()
    with fleet.admin() as admin:
        secret = admin.post("/keys", json={"tenant": "default"}).json()["secret"]
    fleet.wait_for(lambda: ask(fleet, secret).status_code == 200)
    fail_in_many_ways(fleet, secret)
    lose_an_engine(fleet, secret)
    written = logs(fleet)
    assert written.keys() == {*OURS, "default-0"}
    assert "an engine fails a request" in written["gateway-0"]
    for text in written.values():
        assert DIARY not in text
        assert secret.rpartition("-")[2] not in text
    for process in OURS:
        lines = written[process].splitlines()
        assert lines
        if form == "text":
            assert all(TEXT.fullmatch(line) for line in lines)
            continue
        told = [json.loads(line) for line in lines]
        assert {one["process"] for one in told} == {process}
        assert all({"time", "level", "logger", "event"} <= one.keys() for one in told)


def test_a_database_that_is_away_keeps_its_password(running: Running, fake_python: str) -> None:
    """Its URL is in the fleet's description, and its errors are in control's log."""
    url = f"postgresql://fleet:{PASSWORD}@127.0.0.1:1/tenants"
    fleet = running(replace(one_pool(fake_python), store=url, logs=Logs("json", "debug")))
    fleet.wait_for(lambda: "snapshot" in logs(fleet).get("control", ""))
    assert all(PASSWORD not in text for text in logs(fleet).values())
    assert not [line for line in logs(fleet)["control"].splitlines() if "event" not in json.loads(line)]


def test_a_process_that_cannot_go_on_says_so_in_a_line(running: Running, fake_python: str) -> None:
    """A control that finds no description is heard all the same, in the way that needs none."""
    fleet = running(replace(one_pool(fake_python), logs=Logs("json")))
    fleet.ready()
    fleet.state.fleet_file.write_text("{}")
    fleet.kill(fleet.pid("control_process"))
    fleet.wait_for(lambda: "control ends" in logs(fleet)["control"])
    assert all(line.startswith("{") or TEXT.fullmatch(line) for line in logs(fleet)["control"].splitlines())
