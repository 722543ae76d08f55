"""Sixty adapters on a real vLLM with four slots and sixteen places in host memory: all are answered, none starves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.fleets import Fleet, one_pool
from tests.support.lora import write_adapter
from tests.support.patient import Patient, keeping_busy
from tuneplex.types import AdapterVersion, GatewaySettings, Residency, Tier, Waiting

pytestmark = pytest.mark.engine

SLOTS, HOST, COUNT = 4, 16, 60
NAMES = [f"tune-{number:02}" for number in range(COUNT)]
HOT, COLD = NAMES[:SLOTS], NAMES[SLOTS:]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, engine_python: Path, base_model: Path) -> Iterator[Fleet]:
    """One engine, all adapters loaded; the first one is to keep its slot."""
    directory = tmp_path_factory.mktemp("adapters")
    ranks = [16 if number % 4 == 3 else 8 for number in range(COUNT)]
    paths = [write_adapter(directory / name, rank=ranks[seed], seed=seed) for seed, name in enumerate(NAMES)]
    versions = [
        AdapterVersion(name, f"{seed:064}"[::-1], str(paths[seed]), ranks[seed], "default")
        for seed, name in enumerate(NAMES)
    ]
    settings = {"max_loras": SLOTS, "max_cpu_loras": HOST, "max_lora_rank": 16, "max_model_len": 512, "concurrent": 8}
    spec = one_pool(str(engine_python), *versions, base=str(base_model), kv_cache_bytes=256 * 1024**2, **settings)
    patient = GatewaySettings(waiting=Waiting(longest_s=250, comment_s=1))
    fleet = Fleet(
        tmp_path_factory.mktemp("many") / "state", replace(spec, gateway=patient, pins=tuple(HOT[:1])), patience_s=300
    )
    fleet.start()
    yield fleet
    fleet.end()


def told(fleet: Fleet) -> Residency:
    """What the ledger says of the only replica."""
    (replica,) = fleet.ready().replicas
    assert replica.residency is not None
    return replica.residency


def test_none_starves_beside_hot_ones(fleet: Fleet) -> None:
    """While four adapters are asked for without a pause, each of the 56 others is answered within the longest wait."""
    fleet.ready()
    with ExitStack() as stack:
        wrong = [stack.enter_context(keeping_busy(fleet, name, 2)) for name in HOT]
        asking = [Patient(fleet, name, max_tokens=2) for name in COLD]
        answered = {name: one.answered for name, one in zip(COLD, asking, strict=True)}
        assert all(answered.values()), [one.error for one in asking if not one.answered]
    assert wrong == [[]] * SLOTS


def test_the_ledger_tells_what_the_engine_has(fleet: Fleet) -> None:
    """Slots and host memory are full and no fuller, the pin is kept, nothing has drifted, and switches are counted."""
    fleet.until(lambda status: any(one.pinned for one in status.replicas[0].residency.adapters))  # type: ignore[union-attr]
    residency = told(fleet)
    tiers = [one.tier for one in residency.adapters]
    assert (len(tiers), residency.slots, residency.host_capacity, residency.guess) == (COUNT, SLOTS, HOST, False)
    assert tiers.count(Tier.DEVICE) == SLOTS
    assert tiers.count(Tier.HOST) == HOST - SLOTS
    pinned = {one.name.partition("@")[0] for one in residency.adapters if one.pinned}
    assert HOT[0] in pinned
    assert len(pinned) < SLOTS
    assert fleet.ready().replicas[0].drift == {}
    assert fleet.counted("tuneplex_replica_adapter_switches") >= COUNT + len(COLD)
