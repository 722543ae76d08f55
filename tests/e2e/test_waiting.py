"""Requests wait for the real vLLM: for an adapter that it loads, for its next start, and for its only slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.fleets import Fleet, one_pool
from tests.support.lora import write_adapter
from tests.support.patient import Patient, keeping_busy, statuses_until
from tuneplex.types import AdapterVersion, GatewaySettings, Waiting

pytestmark = pytest.mark.engine

ADAPTERS = ("ada", "bob")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AdapterVersion]:
    """Two adapters."""
    directory = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(ADAPTERS):
        write_adapter(directory / name, rank=8, seed=seed)
    return {name: AdapterVersion(name, name[0] * 64, str(directory / name), 8, "default") for name in ADAPTERS}


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, engine_python: Path, base_model: Path, versions: dict[str, AdapterVersion]
) -> Iterator[Fleet]:
    """One engine with one slot and four places; the tests run in their order, and the first one adds `ada`."""
    settings = {"max_loras": 1, "max_cpu_loras": 2, "max_lora_rank": 8, "max_model_len": 512, "concurrent": 4}
    spec = one_pool(str(engine_python), versions["bob"], base=str(base_model), kv_cache_bytes=256 * 1024**2, **settings)
    patient = GatewaySettings(waiting=Waiting(longest_s=250, comment_s=1))
    fleet = Fleet(tmp_path_factory.mktemp("waiting") / "state", replace(spec, gateway=patient), patience_s=300)
    fleet.start()
    yield fleet
    fleet.end()


def test_an_adapter_that_is_being_added(fleet: Fleet, versions: dict[str, AdapterVersion]) -> None:
    """From the moment that the fleet knows it, its requests wait until the engine has it, and are answered."""
    fleet.ready()
    both = replace(fleet.spec, adapters=(versions["bob"], versions["ada"]))
    statuses = statuses_until(fleet, "ada", lambda: fleet.apply(both))
    assert {status for status, _ in statuses} == {404, 200}
    assert fleet.ask("ada") != fleet.ask("bob")


def test_a_cold_adapter_beside_a_hot_one(fleet: Fleet) -> None:
    """The engine has one slot, and more requests for one adapter than it has places; the other one has its turns."""
    fleet.ready()
    with keeping_busy(fleet, "ada", 6) as wrong:
        asking = [Patient(fleet, "bob") for _ in range(3)]
        assert [one.answered for one in asking] == [True] * 3, [one.error for one in asking]
    assert wrong == []


@pytest.mark.full
def test_a_replica_that_was_killed(fleet: Fleet) -> None:
    """What it worked on, what waited for a place, and what came while it starts again, is all answered in the end."""
    pid = fleet.ready().replicas[0].pid
    assert pid is not None
    working = [Patient(fleet, "ada", max_tokens=400, ignore_eos=True) for _ in range(4)]
    fleet.wait_for(lambda: all(one.events for one in working))
    waited = [Patient(fleet, "ada") for _ in range(2)]
    fleet.wait_for(
        lambda: all(one.comments for one in waited) or any(one.status == 200 and one.events for one in waited)
    )
    fleet.kill(pid)
    fleet.until(lambda status: status.replicas and status.replicas[0].state != "ready")
    came = [Patient(fleet, model) for model in ("base", "ada", "bob")]
    assert [one.answered for one in (*waited, *came)] == [True] * 5, [one.error for one in (*waited, *came)]
    assert all(one.comments for one in came)
    assert [one.answered for one in working] == [True] * 4, [one.error for one in working]
    fleet.ready(restarts=1)
