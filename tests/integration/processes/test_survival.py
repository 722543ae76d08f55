"""Who survives whom: each process of a fleet is killed with SIGKILL while the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.support.fleets import Fleet, one_pool
from tuneplex.types import AdapterVersion, Status


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, fake_python: str, adapters: dict[str, AdapterVersion]
) -> Iterator[Fleet]:
    """One fleet for all tests of this module; each leaves it whole, apart from the last."""
    fleet = Fleet(tmp_path_factory.mktemp("survival"), one_pool(fake_python, adapters["ada"], adapters["bob"]))
    fleet.start()
    yield fleet
    fleet.end()


def settled(fleet: Fleet) -> Status:
    """Wait until the fleet is whole, and apply its description again, so that earlier failures delay nothing."""
    fleet.ready()
    fleet.apply(fleet.spec)
    return fleet.ready()


def engine_processes(fleet: Fleet) -> set[int]:
    """The processes of the engine: all that the fake's command line shows."""
    return {pid for pid, command in fleet.processes().items() if "fake_engine" in command and "keeper" not in command}


def engine_core(api_server: int) -> int:
    """The process that works behind the API server."""
    children = Path(f"/proc/{api_server}/task/{api_server}/children").read_text().split()
    return int(children[0])


def test_a_fleet_comes_up(fleet: Fleet) -> None:
    """Supervisor, control, gateway, keeper and the engine's processes run, and base and adapters answer differently."""
    status = fleet.ready()
    assert {adapter.version.name for adapter in status.adapters} == {"ada", "bob"}
    assert len(engine_processes(fleet)) == 3
    assert len(fleet.processes()) == 7
    assert len({fleet.ask(model) for model in ("base", "ada", "bob")}) == 3


def test_sockets_are_for_this_user_only(fleet: Fleet) -> None:
    """Nobody else can talk to control, the feed or the supervisor, and the directory around all sockets is private."""
    fleet.ready()
    for path in (fleet.state.admin_socket, fleet.state.feed_socket, fleet.state.supervisor_socket):
        assert path.stat().st_mode & 0o777 == 0o600
    assert fleet.state.run_directory.stat().st_mode & 0o777 == 0o700


def test_control_is_killed(fleet: Fleet) -> None:
    """Streams go on, the engine keeps its process and its adapters, and a new control takes over."""
    before = fleet.ready()
    control, gateway = fleet.pid("control_process"), fleet.pid("gateway_process")
    with fleet.stream(max_tokens=200) as chunks:
        first = list(islice(chunks, 3))
        fleet.kill(control)
        fleet.gone(control)
        rest = list(chunks)
    assert len(first) == 3
    assert rest[-1] == {"done": True}
    after = fleet.ready()
    assert fleet.pid("control_process") != control
    assert fleet.pid("gateway_process") == gateway
    assert [replica.pid for replica in after.replicas] == [replica.pid for replica in before.replicas]
    assert [replica.restarts for replica in after.replicas] == [replica.restarts for replica in before.replicas]


def test_a_gateway_is_killed(fleet: Fleet) -> None:
    """The socket stays open, a new gateway answers on it, and nobody else notices."""
    before = fleet.ready()
    gateway, control = fleet.pid("gateway_process"), fleet.pid("control_process")
    fleet.kill(gateway)
    fleet.gone(gateway)
    assert fleet.ask("ada")  # waits in the socket's queue until the new gateway takes it
    after = fleet.ready()
    assert after.gateways[0].pid not in {None, gateway}
    assert fleet.pid("control_process") == control
    assert after.replicas[0].pid == before.replicas[0].pid


def test_a_keeper_is_killed(fleet: Fleet) -> None:
    """All of its engine ends with it, and a new engine comes up with the adapters."""
    before = settled(fleet)
    engine = engine_processes(fleet)
    fleet.kill(fleet.pid("launchers.keeper"))
    fleet.gone(*engine)
    after = fleet.ready(restarts=before.replicas[0].restarts + 1)
    assert after.replicas[0].pid not in engine
    assert fleet.ask("ada") != fleet.ask("bob")


def test_the_api_server_is_killed(fleet: Fleet) -> None:
    """What it leaves behind is ended, and a new engine comes up with the adapters."""
    before = settled(fleet)
    engine = engine_processes(fleet)
    assert before.replicas[0].pid is not None
    fleet.kill(before.replicas[0].pid)
    fleet.gone(*engine)
    fleet.ready(restarts=before.replicas[0].restarts + 1)
    assert engine_processes(fleet).isdisjoint(engine)


def test_the_engine_core_is_killed(fleet: Fleet) -> None:
    """The engine ends as a whole, and a new one comes up with the adapters."""
    before = settled(fleet)
    engine = engine_processes(fleet)
    assert before.replicas[0].pid is not None
    fleet.kill(engine_core(before.replicas[0].pid))
    fleet.gone(*engine)
    fleet.ready(restarts=before.replicas[0].restarts + 1)


def test_an_engine_dies_while_control_is_away(fleet: Fleet) -> None:
    """The supervisor remembers what happened, and the next control acts on it."""
    before = settled(fleet)
    assert before.replicas[0].pid is not None
    engine = engine_processes(fleet)
    fleet.kill(fleet.pid("control_process"))
    fleet.kill(before.replicas[0].pid)
    fleet.gone(*engine)
    after = fleet.ready(restarts=before.replicas[0].restarts + 1)
    assert after.replicas[0].pid != before.replicas[0].pid


def test_the_supervisor_is_killed(fleet: Fleet) -> None:
    """Everything ends, nothing is orphaned."""
    fleet.ready()
    assert fleet.process is not None
    fleet.kill(fleet.process.pid)
    fleet.gone()
    assert not fleet.state.is_locked()


def test_the_next_start_cleans_up(fleet: Fleet) -> None:
    """After a SIGKILL the next supervisor starts in the same directory as if nothing had been."""
    left = fleet.state.run_directory
    fleet.end()
    fleet.start()
    fleet.ready()
    assert fleet.state.run_directory != left
    assert not left.exists()
