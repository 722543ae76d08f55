"""How fleets end, and what keeps one from starting."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path

import msgspec

from tests.support.fleets import Fleet, MakeFleet, one_pool
from tuneplex.types import Listen


def test_sigterm_ends_everything_in_order(make_fleet: MakeFleet) -> None:
    """SIGTERM ends all processes, removes the sockets and the run directory, and the exit code is 0."""
    fleet = make_fleet()
    fleet.ready()
    assert fleet.process is not None
    run = fleet.state.run_directory
    fleet.process.terminate()
    assert fleet.wait() == 0
    assert fleet.processes() == {}
    assert not run.exists()
    assert not fleet.state.run.is_symlink()
    assert not fleet.state.supervisor_file.exists()


def test_streams_may_finish(make_fleet: MakeFleet) -> None:
    """A stream that is under way at SIGTERM comes to its end, while new connections are refused."""
    fleet = make_fleet(env={"TUNEPLEX_FAKE_SCRIPT": '{"between_chunks_s": 0.02}'})
    fleet.ready()
    assert fleet.process is not None
    info = fleet.state.supervisor()
    assert info is not None
    port = int(info.url.rsplit(":", 1)[1].split("/")[0])
    with fleet.stream(max_tokens=60) as chunks:
        list(islice(chunks, 3))
        fleet.process.terminate()
        fleet.wait_for(lambda: _refused(port))
        rest = list(chunks)
    assert rest[-1] == {"done": True}
    assert rest[-2]["choices"][0]["finish_reason"] == "length"
    assert fleet.wait() == 0
    assert fleet.processes() == {}


def test_the_lifeline_ends_a_foreground_fleet(make_fleet: MakeFleet) -> None:
    """When the process that started the fleet is gone, however it ended, the fleet ends in order."""
    fleet = make_fleet()
    fleet.ready()
    fleet.close_lifeline()
    assert fleet.wait() == 0
    assert fleet.processes() == {}


def test_a_second_signal_ends_everything_at_once(make_fleet: MakeFleet) -> None:
    """Whoever asks twice does not wait for streams or for an engine that ignores SIGTERM."""
    fleet = make_fleet(env={"TUNEPLEX_FAKE_HANG_ON_TERM": "1"})
    fleet.ready()
    assert fleet.process is not None
    gateway = fleet.pid("gateway_process")
    fleet.process.send_signal(signal.SIGINT)
    fleet.gone(gateway)
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait() == 130
    assert fleet.processes() == {}


def test_a_fleet_ends_while_its_engine_starts(make_fleet: MakeFleet) -> None:
    """An engine that is still loading its model is ended, too."""
    fleet = make_fleet(env={"TUNEPLEX_FAKE_START_DELAY_S": "60"})
    status = fleet.until(lambda status: status.replicas and status.replicas[0].pid and status.replicas[0].phase)
    assert status.replicas[0].state == "starting"
    assert fleet.process is not None
    fleet.process.terminate()
    assert fleet.wait() == 0
    assert fleet.processes() == {}


def test_a_port_in_use(tmp_path: Path, fake_python: str) -> None:
    """The supervisor says so and ends with code 2 before it has started anything."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spec = msgspec.structs.replace(one_pool(fake_python), listen=Listen(port=port))
        fleet = Fleet(tmp_path / "second", spec)
        fleet.start()
        try:
            assert fleet.process is not None
            assert fleet.process.stderr is not None
            assert f"127.0.0.1:{port}: something else listens there already" in fleet.process.stderr.read()
            assert fleet.wait() == 2
            assert fleet.processes() == {}
        finally:
            fleet.end()


def test_two_supervisors_for_one_directory(make_fleet: MakeFleet) -> None:
    """The second one says that a fleet runs there and ends with code 2; the first goes on."""
    fleet = make_fleet()
    fleet.ready()
    command = [sys.executable, "-m", "tuneplex.app.supervisor", "--state-dir", str(fleet.state.path)]
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert second.returncode == 2
    assert "a fleet runs in" in second.stderr
    assert fleet.ask()


def test_a_supervisor_without_a_fleet(tmp_path: Path) -> None:
    """Without a fleet to run, the exit code is 2 and the message says what is missing."""
    command = [sys.executable, "-m", "tuneplex.app.supervisor", "--state-dir", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 2
    assert "fleet.json does not exist" in done.stderr


def test_several_gateways_share_the_socket(make_fleet: MakeFleet) -> None:
    """Two gateways serve one port, and each can be killed without closing it."""
    fleet = make_fleet(gateways=2)
    status = fleet.until(lambda status: status.ready and all(gateway.connected for gateway in status.gateways))
    assert len({gateway.pid for gateway in status.gateways}) == 2
    for gateway in status.gateways:
        assert gateway.pid is not None
        os.kill(gateway.pid, signal.SIGKILL)
        fleet.gone(gateway.pid)
        assert fleet.ask()


def _refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False
