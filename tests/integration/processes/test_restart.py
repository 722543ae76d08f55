"""Gateways and control are replaced while the fleet serves: nobody notices, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest

from tests.support.fleets import Fleet, MakeFleet, one_pool
from tuneplex.launchers.spawner import PROTOCOL, Answer, greeted
from tuneplex.types import Listen, Stage

MakeListening = Callable[[Listen], Fleet]
SLOW = {"TUNEPLEX_FAKE_SCRIPT": '{"between_chunks_s": 0.02}'}
QUESTION = {"model": "base", "prompt": "hello", "max_tokens": 4, "ignore_eos": True}


def command(fleet: Fleet, part: str, *options: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "tuneplex.cli", "restart", part, "--state-dir", str(fleet.state.path), *options]


def restart(fleet: Fleet, part: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(command(fleet, part, *options), capture_output=True, text=True, check=False, timeout=120)


def pids(fleet: Fleet) -> list[int | None]:
    """The gateways that serve, by name."""
    status = fleet.until(lambda status: all(one.connected for one in status.gateways))
    serving = (one for one in status.gateways if one.stage is Stage.SERVING)
    return [one.pid for one in sorted(serving, key=lambda one: one.name)]


def whole(fleet: Fleet, chunks: list[dict[str, Any]], tokens: int) -> bool:
    """Whether a stream came to its end, and says what the same request does without a stream."""
    request = {"model": "base", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
    with fleet.client() as client:
        expected = client.post("/completions", json=request).json()["choices"][0]["text"]
    said = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk.get("choices"))
    return chunks[-1] == {"done": True} and said == expected


@pytest.fixture
def make_listening(tmp_path: Path, fake_python: str) -> Iterator[MakeListening]:
    """Make a fleet that listens as is said, and start it; at the end of the test all of it is gone."""
    made: list[Fleet] = []

    def make(listen: Listen) -> Fleet:
        spec = msgspec.structs.replace(one_pool(fake_python, env=SLOW), listen=listen)
        made.append(Fleet(tmp_path / "fleet", spec))
        made[-1].start()
        return made[-1]

    yield make
    for fleet in made:
        fleet.end()


@pytest.mark.parametrize("gateways", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_restart_of_gateways_breaks_no_stream(make_fleet: MakeFleet, gateways: int) -> None:
    """Streams finish in the old processes without a gap, others serve meanwhile, and at last only these are there."""
    fleet = make_fleet(gateways=gateways, env=SLOW)
    fleet.ready()
    before = pids(fleet)
    with fleet.stream(max_tokens=500) as one, fleet.stream(max_tokens=500) as other:
        begun = list(islice(one, 3)), list(islice(other, 3))
        done = restart(fleet, "gateways")
        assert done.returncode == 0, done.stderr
        assert "gateway-0: serves; the old one finishes what it has" in done.stderr
        drains = fleet.until(lambda status: any(one.stage is Stage.DRAINING for one in status.gateways))
        assert {one.pid for one in drains.gateways if one.stage is Stage.DRAINING} <= set(before)
        assert fleet.ask()
        assert whole(fleet, begun[0] + list(one), 500)
        assert whole(fleet, begun[1] + list(other), 500)
    fleet.until(lambda status: len(status.gateways) == gateways)
    assert set(pids(fleet)).isdisjoint(before)
    assert len(pids(fleet)) == gateways


async def load(base: str, lasts: asyncio.Event) -> list[int | str]:
    """Short requests one after the other until the event is set: on one connection, and each on a new one."""
    seen: list[int | str] = []

    async def ask(client: httpx2.AsyncClient) -> None:
        try:
            seen.append((await client.post(f"{base}/completions", json=QUESTION)).status_code)
        except httpx2.HTTPError as error:
            seen.append(repr(error))

    async def kept() -> None:
        async with httpx2.AsyncClient(timeout=30, verify=False) as client:
            while not lasts.is_set():
                await ask(client)

    async def anew() -> None:
        while not lasts.is_set():
            async with httpx2.AsyncClient(timeout=30, verify=False) as client:
                await ask(client)

    await asyncio.gather(*(kept() for _ in range(6)), *(anew() for _ in range(2)))
    return seen


@pytest.mark.parametrize("gateways", [pytest.param(1, marks=pytest.mark.full), 2])
async def test_no_request_fails_while_all_is_restarted(make_fleet: MakeFleet, gateways: int) -> None:
    """Of a steady load of short requests, on connections that stay and on new ones, none gets an error."""
    fleet = make_fleet(gateways=gateways)
    fleet.ready()
    info, lasts = fleet.state.supervisor(), asyncio.Event()
    assert info is not None
    loading = asyncio.create_task(load(info.url, lasts))
    done = await asyncio.to_thread(restart, fleet, "all", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["restarted"] == "all"
    await asyncio.sleep(1)
    lasts.set()
    seen = await loading
    assert len(seen) > 500
    assert [one for one in seen if one != 200] == []


def test_control_is_restarted(make_fleet: MakeFleet) -> None:
    """Streams go on, the new control adopts the engine with its process, and gateways stay."""
    fleet = make_fleet(env=SLOW)
    before, gateways, control = fleet.ready(), pids(fleet), fleet.pid("control_process")
    with fleet.stream(max_tokens=300) as chunks:
        first = list(islice(chunks, 3))
        done = restart(fleet, "control")
        assert done.returncode == 0, done.stderr
        assert whole(fleet, first + list(chunks), 300)
    after = fleet.ready()
    assert fleet.pid("control_process") != control
    assert after.replicas[0].pid == before.replicas[0].pid
    assert pids(fleet) == gateways


def certify(folder: Path) -> bytes:
    """Write a new certificate for this machine that signs itself, and its key; the certificate, as a peer shows it."""
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    command = ["openssl", *options.split(), *files]
    subprocess.run(command, check=True, capture_output=True)
    return ssl.PEM_cert_to_DER_cert((folder / "cert.pem").read_text())


def shown(fleet: Fleet) -> bytes:
    """The certificate that the fleet shows now."""
    info = fleet.state.supervisor()
    assert info is not None
    port = urlsplit(info.url).port
    assert port is not None
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=20))


def test_certificates_are_renewed(make_listening: MakeListening, tmp_path: Path) -> None:
    """A restart reads them anew; with files that are none the command says why, and the old gateway goes on."""
    first = certify(tmp_path)
    fleet = make_listening(Listen(port=0, tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem")))
    fleet.ready()
    before = pids(fleet)
    assert shown(fleet) == first
    (tmp_path / "cert.pem").write_text("nonsense")
    failed = restart(fleet, "gateways")
    assert failed.returncode == 1
    assert "the new gateway-0 ended before it was ready" in failed.stderr
    assert "SSLError" in failed.stderr
    assert pids(fleet) == before
    assert fleet.ask()
    second = certify(tmp_path)
    with fleet.stream(max_tokens=300) as chunks:
        begun = list(islice(chunks, 3))
        assert restart(fleet, "gateways").returncode == 0
        assert shown(fleet) == second != first
        assert whole(fleet, begun + list(chunks), 300)


def test_a_new_gateway_that_hears_nothing(make_fleet: MakeFleet) -> None:
    """Without control a new gateway knows nothing, so the old one goes on; and one restart at a time is enough."""
    fleet = make_fleet()
    fleet.ready()
    before, control = pids(fleet), fleet.pid("control_process")
    os.kill(control, signal.SIGSTOP)
    try:
        first = subprocess.Popen(command(fleet, "gateways", "--timeout", "6s"), stderr=subprocess.PIPE, text=True)
        fleet.wait_for(lambda: len([one for one in fleet.processes().values() if "gateway_process" in one]) == 2)
        second = restart(fleet, "gateways")
        assert (second.returncode, "another restart is under way" in second.stderr) == (1, True)
        told = first.communicate(timeout=60)[1]
    finally:
        os.kill(control, signal.SIGCONT)
    assert first.returncode == 1
    assert "the new gateway-0 was not ready within 6 s" in told
    assert "waits for control to tell the fleet" in told
    assert fleet.ask()
    assert pids(fleet) == before


def test_who_changes_their_mind(make_fleet: MakeFleet) -> None:
    """Ctrl-C during a restart leaves the old gateway, and nothing of the new one; the next restart works."""
    fleet = make_fleet()
    fleet.ready()
    before, control = pids(fleet), fleet.pid("control_process")
    os.kill(control, signal.SIGSTOP)
    try:
        waits = subprocess.Popen(command(fleet, "gateways"), stderr=subprocess.PIPE, text=True)
        new = fleet.wait_for(
            lambda: next((pid for pid, words in fleet.processes().items() if "--ready" in words), None)
        )
        waits.send_signal(signal.SIGINT)
        waits.communicate(timeout=120)
        assert waits.returncode == 130
        fleet.gone(new)
    finally:
        os.kill(control, signal.SIGCONT)
    assert pids(fleet) == before
    assert restart(fleet, "gateways").returncode == 0
    fleet.wait_for(lambda: len(pids(fleet)) == 1 and pids(fleet) != before)


def test_control_that_cannot_start(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """A new control is tried before the old one ends: it says why it cannot start, and the old one goes on."""
    fleet = make_fleet()
    fleet.ready()
    control = fleet.pid("control_process")
    fleet.state.fleet_file.rename(tmp_path / "away")
    failed = restart(fleet, "control")
    (tmp_path / "away").rename(fleet.state.fleet_file)
    assert failed.returncode == 1
    assert "the new control ended before it was prepared" in failed.stderr
    assert "fleet.json does not exist" in failed.stderr
    assert fleet.pid("control_process") == control
    assert fleet.status()


def test_limits_and_counters_are_kept(make_fleet: MakeFleet) -> None:
    """A minute's tokens are not there again after restarts of everything, and each request is counted once."""
    fleet = make_fleet()
    fleet.ready()
    with fleet.admin() as admin:
        assert admin.patch("/tenants/default", json={"limits": {"tokens_per_minute": 120}}).status_code == 200
    began, let_in = time.monotonic(), 0
    while asked(fleet) == 200:
        let_in += 1
    fleet.wait_for(lambda: replies(fleet) == let_in > 0)
    assert restart(fleet, "all").returncode == 0
    assert restart(fleet, "control").returncode == 0
    again = sum(asked(fleet) == 200 for _ in range(20))
    assert again == 0 or time.monotonic() - began > 60
    fleet.wait_for(lambda: replies(fleet) == let_in + again)


def asked(fleet: Fleet) -> int:
    """The status of the answer to a question on a new connection."""
    with fleet.client() as client:
        return client.post("/completions", json=QUESTION).status_code


def replies(fleet: Fleet) -> float:
    """How many questions were answered, over the whole fleet."""
    with fleet.admin() as admin:
        page = admin.get("/metrics").text
    lines = (line for line in page.splitlines() if line.startswith("tuneplex_requests_total"))
    return sum(float(line.rpartition(" ")[2]) for line in lines if '"2xx"' in line and "completions" in line)


def test_a_fleet_ends_while_an_old_gateway_finishes(make_fleet: MakeFleet) -> None:
    """SIGTERM ends the old one, too, in time; and SIGHUP has replaced it as the command does."""
    fleet = make_fleet(env=SLOW)
    fleet.ready()
    before = pids(fleet)
    assert fleet.process is not None
    with fleet.stream(max_tokens=1800) as chunks:
        list(islice(chunks, 3))
        fleet.process.send_signal(signal.SIGHUP)
        fleet.until(lambda status: [one.stage for one in status.gateways] == [Stage.DRAINING, Stage.SERVING])
        assert set(pids(fleet)).isdisjoint(before)
        fleet.process.terminate()
        assert fleet.wait() == 0
    assert fleet.processes() == {}


def test_streams_that_last_too_long(make_fleet: MakeFleet) -> None:
    """After its time an old gateway ends, whatever it still has."""
    fleet = make_fleet(env=SLOW)
    fleet.ready()
    old = fleet.pid("gateway_process")
    with fleet.stream(max_tokens=1800) as chunks:
        list(islice(chunks, 3))
        assert restart(fleet, "gateways", "--drain", "0.1s").returncode == 0
        fleet.gone(old)
    assert fleet.ask()


def test_a_wish_of_another_version(make_fleet: MakeFleet) -> None:
    """A supervisor refuses in words what it does not know, says what it speaks, and goes on."""
    fleet = make_fleet()
    fleet.ready()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(fleet.state.supervisor_socket))
        lines = connection.makefile("rb")
        assert greeted(lines.readline()).gateways == (0,)
        connection.sendall(b'{"number": 7, "wish": {"type": "Sing", "song": "la"}}\n')
        answer = next(one for line in lines if (one := msgspec.json.decode(line, type=Answer)).number == 7)
        lines.close()
    assert "does not know this wish" in answer.error
    assert answer.protocol == PROTOCOL
    assert fleet.status()
