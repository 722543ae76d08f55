"""Small failures in a whole fleet: what hangs, lags or has no room, while requests go on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.fleets import Fleet, MakeFleet, one_pool
from tuneplex.types import AdapterVersion

Adapters = dict[str, AdapterVersion]
replace = msgspec.structs.replace


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Processes that hang for as long as the block runs."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def memory(pid: int) -> int:
    """What a process has in memory, bytes."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def command(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    """Run tuneplex against a fleet."""
    line = [sys.executable, "-m", "tuneplex.cli", *words, "--state-dir", str(fleet.state.path)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_control_hangs(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """Requests go on, limits hold, commands and the admin API give up with a clear message, and then it goes on."""
    fleet = make_fleet(adapters["ada"])
    before = fleet.ready()
    with fleet.admin() as admin:
        assert admin.patch("/tenants/default", json={"limits": {"requests_per_minute": 6}}).status_code == 200
    with fleet.client() as client:
        question = {"model": "ada", "prompt": "hello", "max_tokens": 2}
        fleet.wait_for(lambda: "x-ratelimit-limit-requests" in client.post("/completions", json=question).headers)
        with stopped(fleet.pid("control_process")):
            codes = [client.post("/completions", json=question).status_code for _request in range(8)]
            assert codes[0] == 200
            assert codes[-1] == 429
            told = command(fleet, "status")
            assert told.returncode == 2
            assert "control process does not answer within 10 s" in told.stderr
            assert "it hangs" in told.stderr
            page = client.get(str(client.base_url).removesuffix("/v1/") + "/metrics", timeout=10)
            assert page.status_code in {200, 502, 503, 504}
    after = fleet.ready()
    assert [one.pid for one in after.replicas] == [one.pid for one in before.replicas]
    assert after.replicas[0].restarts == 0


def test_a_fleet_ends_although_control_hangs(make_fleet: MakeFleet) -> None:
    """What does not end in order is killed, and nothing is left."""
    fleet = make_fleet()
    fleet.ready()
    assert fleet.process is not None
    with stopped(fleet.pid("control_process")):
        fleet.process.terminate()
        fleet.wait()
        fleet.gone()


def test_control_is_away_for_long(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """A control that cannot start again for some time: base and adapters answer, then everything is adopted."""
    fleet = make_fleet(adapters["ada"])
    before = fleet.ready()
    spec = fleet.state.fleet_file.read_bytes()
    fleet.state.fleet_file.write_text("{")  # what control needs to start
    control = fleet.pid("control_process")
    fleet.kill(control)
    fleet.gone(control)
    end = time.monotonic() + 4
    while time.monotonic() < end:
        assert fleet.ask("ada")
        assert fleet.ask()
    fleet.state.fleet_file.write_bytes(spec)
    after = fleet.ready()
    assert [one.pid for one in after.replicas] == [one.pid for one in before.replicas]


def test_a_gateway_hangs_while_the_fleet_changes(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """Control keeps the latest view for it and no others, and when it goes on it knows the latest."""
    fleet = make_fleet(adapters["ada"], gateways=2)
    status = fleet.ready()
    hanging = status.gateways[0].pid
    assert hanging is not None
    control = fleet.pid("control_process")
    aliases = {f"name-{number}": "ada" for number in range(3000)}
    before = memory(control)
    with stopped(hanging):
        for turn in range(60):
            fleet.apply(replace(fleet.spec, aliases={**aliases, f"turn-{turn}": "ada"}))
            time.sleep(0.05)
        assert memory(control) - before < 64 * 2**20
        with fleet.client() as client:  # the other one takes it, sooner or later
            assert client.get("/models").status_code == 200
    seen = 0
    for _try in range(200):
        with fleet.client() as client:
            names = {one["id"] for one in client.get("/models").json()["data"]}
        seen += "turn-59" in names and "turn-58" not in names
        time.sleep(0.02)
    assert seen > 150


@pytest.mark.full
def test_an_engine_hangs_for_good(make_fleet: MakeFleet) -> None:
    """All of a stopped engine is killed after a minute of silence, and a new one serves."""
    fleet = make_fleet()
    fleet._patience_s = 120.0
    before = fleet.ready()
    engine = [pid for pid, line in fleet.processes().items() if "fake_engine" in line and "keeper" not in line]
    with stopped(*engine):
        shown = fleet.until(lambda status: status.replicas[0].detail)
        assert "no answer to a health check" in shown.replicas[0].detail
        after = fleet.ready(restarts=1)
    assert after.replicas[0].pid != before.replicas[0].pid
    fleet.gone(*engine)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]
    made = subprocess.run(mount, capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield directory
    finally:
        umount = ["umount", "-l", str(directory)]
        subprocess.run(umount, check=True)


def test_the_disk_is_full(small_disk: Path, fake_python: str, adapters: Adapters) -> None:
    """Requests go on, changes are refused and leave nothing half, and with room again all of them work."""
    fleet = Fleet(small_disk / "state", one_pool(fake_python, adapters["ada"], replicas=2))
    fleet.start()
    try:
        fleet.ready()
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        kept = fleet.state.fleet_file.read_bytes()
        assert fleet.ask("ada")
        with fleet.admin() as admin:
            applied = admin.post("/apply", content=msgspec.json.encode(replace(fleet.spec, aliases={"x": "ada"})))
            drained = admin.post("/replicas/default-0/drain")
            made = admin.post("/tenants", json={"name": "acme"})
        for reply, code in ((applied, "not_kept"), (drained, "not_kept"), (made, "store_down")):
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, code), reply.text
            assert "nothing was changed" in reply.json()["error"]["message"]
        assert fleet.state.fleet_file.read_bytes() == kept
        for role in ("control_process", "gateway_process"):
            pid = fleet.pid(role)
            fleet.kill(pid)
            fleet.gone(pid)
        fleet.ready()
        assert fleet.ask("ada")
        fleet.kill(fleet.until(bool).replicas[0].pid or 0)
        fleet.until(lambda status: status.replicas[0].restarts == 1 and status.replicas[0].state == "ready")
        ballast.unlink()
        fleet.apply(replace(fleet.spec, aliases={"x": "ada"}))
        with fleet.admin() as admin:
            assert admin.post("/tenants", json={"name": "acme"}).status_code == 201
            assert admin.post("/replicas/default-0/drain").status_code == 200
        fleet.wait_for(lambda: fleet.ask("x"))
    finally:
        fleet.end()
