"""One fleet on the real vLLM: it comes up, it calls nobody, and whoever is killed, what should survive survives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.fleets import Fleet, one_pool, session
from tests.support.lora import write_adapter
from tests.support.outside import Sentry, strace_command, traced_addresses
from tuneplex.types import AdapterVersion, ReplicaState, Status, Tier

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where strace writes, if it is there."""
    return tmp_path_factory.mktemp("trace") / "connect.txt"


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, engine_python: Path, base_model: Path, trace: Path
) -> Iterator[Fleet]:
    """One fleet for all tests of this module, which run in their order; the last one ends it."""
    directory = tmp_path_factory.mktemp("processes")
    write_adapter(directory / "ada", rank=8, seed=1)
    version = AdapterVersion("ada", "a" * 64, str(directory / "ada"), 8, "default")
    settings = {"max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": 8, "max_model_len": 512}
    spec = one_pool(str(engine_python), version, base=str(base_model), kv_cache_bytes=256 * 1024**2, **settings)
    fleet = Fleet(directory / "state", spec, patience_s=300)
    fleet.start(strace_command(trace))
    yield fleet
    fleet.end()


def engine_processes(fleet: Fleet) -> dict[int, str]:
    """The processes of the engine with their names: the keeper is not one of them."""
    keeper = fleet.pid("launchers.keeper")
    return {pid: name for pid, name in fleet.processes().items() if pid != keeper and session(pid) == keeper}


def test_the_fleet_comes_up_and_calls_nobody(fleet: Fleet, trace: Path) -> None:
    """The status shows the phases of the start, base and adapter answer, and no process connects to another machine."""
    phases: list[str] = []

    def note(status: object) -> bool:
        replica = next(iter(getattr(status, "replicas", ())), None)
        if replica is not None and replica.phase and replica.phase not in phases:
            phases.append(replica.phase)
        return replica is not None and replica.state is ReplicaState.READY

    with Sentry(fleet.processes).watching() as sentry:
        fleet.until(note)
        status = fleet.ready()
        assert fleet.ask() != fleet.ask("ada")
    assert phases[0] == "starting Python"
    assert len(phases) >= 3
    assert status.replicas[0].kv_use >= 0
    assert len(engine_processes(fleet)) >= 3
    assert sentry.looks > 20
    assert sentry.seen == set()
    assert not trace.exists() or traced_addresses(trace) == set()


def test_an_adapter_that_leaves_the_fleet_leaves_the_engine(fleet: Fleet) -> None:
    """The status tells in which slot the adapter is; taken out of the fleet, it is in no slot and in no memory."""
    spec = fleet.spec
    (replica,) = fleet.until(lambda status: status.replicas[0].residency).replicas
    assert replica.residency is not None
    assert [(one.tier, one.slot, one.rank) for one in replica.residency.adapters] == [(Tier.DEVICE, 0, 8)]
    assert replica.notice == ""
    fleet.apply(replace(spec, adapters=()))
    status = fleet.until(lambda status: not _resident(status))
    told = status.replicas[0].residency
    assert told is not None
    assert (told.slots, told.slots_used, told.host_used) == (1, 0, 0)
    fleet.apply(spec)
    fleet.ready()
    assert fleet.ask() != fleet.ask("ada")


def _resident(status: Status) -> bool:
    told = status.replicas[0].residency
    return told is None or bool(told.adapters)


def test_control_is_killed(fleet: Fleet) -> None:
    """A stream goes on, the engine keeps its processes, and a new control finds it with its adapter."""
    before = fleet.ready()
    engine = engine_processes(fleet)
    control = fleet.pid("control_process")
    with fleet.stream("ada", max_tokens=100) as chunks:
        list(islice(chunks, 3))
        fleet.kill(control)
        fleet.gone(control)
        rest = list(chunks)
    assert rest[-1] == {"done": True}
    after = fleet.ready()
    assert engine_processes(fleet).keys() == engine.keys()
    assert after.replicas[0].restarts == before.replicas[0].restarts


@pytest.mark.full
def test_the_api_server_is_killed(fleet: Fleet) -> None:
    """EngineCore and Worker end with it, and a new engine comes up with the adapter."""
    before = fleet.ready().replicas[0]
    engine = engine_processes(fleet)
    assert before.pid is not None
    fleet.kill(before.pid)
    fleet.gone(*engine)
    fleet.ready(restarts=before.restarts + 1)
    assert engine.keys().isdisjoint(engine_processes(fleet))
    assert fleet.ask("ada") != fleet.ask()


def test_the_engine_core_is_killed(fleet: Fleet) -> None:
    """The engine ends as a whole, and a new one comes up with the adapter."""
    before = fleet.ready().replicas[0].restarts
    engine = engine_processes(fleet)
    fleet.kill(next(pid for pid, name in engine.items() if "EngineCore" in name))
    fleet.gone(*engine)
    fleet.ready(restarts=before + 1)
    assert fleet.ask("ada") != fleet.ask()


def test_the_supervisor_is_killed(fleet: Fleet, trace: Path) -> None:
    """Everything ends, nothing is orphaned; and in all this time nobody has called another machine."""
    fleet.ready()
    info = fleet.state.supervisor()
    assert info is not None
    everything = fleet.processes()
    fleet.kill(info.pid)
    fleet.gone(*everything)
    assert not fleet.state.is_locked()
    assert not trace.exists() or traced_addresses(trace) == set()
