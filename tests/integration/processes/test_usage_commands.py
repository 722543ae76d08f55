"""The commands about usage and traffic, on fleets that run and on fleets that have ended."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from tests.support.fleets import Fleet, MakeFleet, one_pool
from tests.support.postgres import Postgres
from tuneplex.journal import Finished
from tuneplex.records import Store

NUMBER = 40


def run(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command about this fleet."""
    command = [sys.executable, "-m", "tuneplex.cli", *words, "--state-dir", str(fleet.state.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def total(fleet: Fleet, *words: str) -> dict[str, Any]:
    """The total that `usage` tells."""
    done = run(fleet, "usage", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["total"]
    return found


def reconciled(fleet: Fleet) -> tuple[int, list[dict[str, Any]]]:
    """What `usage reconcile` tells, and its exit code."""
    done = run(fleet, "usage", "reconcile", "--json")
    assert not done.stderr
    return done.returncode, json.loads(done.stdout)


def kept(fleet: Fleet) -> list[Finished]:
    """The requests that the fleet's store has."""
    with closing(Store(fleet.state.store_url(fleet.spec))) as store:
        return list(store.each_request("fleet", 0, 2e9))


def answered(fleet: Fleet, count: int) -> None:
    """Ask so often, and wait until the store has it."""
    for _ in range(count):
        fleet.ask()
    fleet.wait_for(lambda: len(kept(fleet)) >= count or None)


def test_usage_is_told_while_a_fleet_runs_and_afterwards(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """A running fleet is asked; of one that has ended also what only its journals hold is told, traces too."""
    running = make_fleet()
    running.ready()
    answered(running, 3)
    assert total(running) | {"requests": 3, "completion_tokens": 24, "estimated_requests": 0} == total(running)
    assert total(running, "--model", "ada")["requests"] == 0
    supervisor = running.process.pid if running.process else 0
    control = running.pid("control_process")
    os.kill(supervisor, signal.SIGSTOP)  # so that it does not start control again
    running.kill(control)
    running.ask()
    running.kill(supervisor)
    running.gone()
    assert len(kept(running)) == 3
    done = run(running, "usage", "--by", "model,outcome", "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["model"], row["outcome"], row["requests"]) for row in rows] == [("base", "complete", "4")]
    assert run(running, "usage", "--by", "colour").returncode == 2
    trace = tmp_path / "trace.jsonl"
    assert run(running, "traffic", "export", "-o", str(trace)).stdout == f"4 requests are in {trace}\n"
    head, *lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert head["format"] == "tuneplex-traffic"
    assert [line["completion"] for line in lines] == [8] * 4
    assert sorted(lines, key=lambda line: line["at"]) == lines
    assert run(running, "traffic", "export", "-o", str(trace)).returncode == 2


def test_engines_and_requests_agree(make_fleet: MakeFleet) -> None:
    """To the token over a crash of control, within bounds over one of a gateway; and what is missing is found out."""
    running = make_fleet()
    running.ready()
    answered(running, 3)
    running.kill(running.pid("control_process"))
    running.ready()
    running.ask()
    running.wait_for(lambda: reconciled(running)[1][0]["completion"] == 32 or None)
    code, (line,) = reconciled(running)
    assert (code, line["verdict"], line["prompt_rest"]) == (0, "exact", 0)
    with running.stream(max_tokens=8000, fake_fault={"between_chunks_s": 0.003}) as stream:
        for _ in range(100):
            next(stream)
        code, (line,) = running.wait_for(
            lambda: found if "under_way" in (found := reconciled(running))[1][0]["shares"] else None
        )
        assert (code, line["verdict"]) == (0, "explained")
        running.kill(running.pid("gateway_process"))
    running.wait_for(lambda: "crashed" in reconciled(running)[1][0]["shares"] or None)
    running.end()
    code, (line,) = reconciled(running)
    assert (code, line["verdict"]) == (0, "explained")
    with closing(sqlite3.connect(running.state.store_file)) as database, database:
        database.execute("DELETE FROM requests")
    code, (line,) = reconciled(running)
    assert (code, line["verdict"]) == (1, "unexplained")
    assert line["completion_rest"] == line["completion"] > 100


def test_an_hour_without_the_database_loses_nothing(postgres: Postgres, tmp_path: Path, fake_python: str) -> None:
    """Requests go on through restarts of gateway and control, and all of them arrive afterwards, once each."""
    spec = one_pool(fake_python, gateways=2)
    url = postgres.database()
    with closing(Store(url)) as store:
        store.prepare()
    fleet = Fleet(tmp_path / "fleet", msgspec.structs.replace(spec, store=url))
    fleet.start()
    try:
        fleet.ready()
        fleet.ask()
        fleet.wait_for(lambda: len(kept(fleet)) == 1 or None)
        postgres.stop()
        for role in ("gateway_process", "control_process", "gateway_process"):
            for _ in range(NUMBER // 4):
                fleet.ask()
            pid = fleet.pid(role)
            fleet.kill(pid)
            fleet.gone(pid)
            fleet.ready()
        for _ in range(NUMBER // 4):
            fleet.ask()
        assert run(fleet, "usage").returncode == 1
        postgres.start()
        found = fleet.wait_for(lambda: every if len(every := kept(fleet)) > NUMBER else None)
        assert len({one.id for one in found}) == len(found)
        assert {(one.outcome, one.completion) for one in found} == {("complete", 8)}
        fleet.wait_for(lambda: len(list(fleet.state.journal.iterdir())) == 2 or None)
        assert total(fleet)["requests"] == NUMBER + 1
    finally:
        fleet.end()
        postgres.drop_databases()
