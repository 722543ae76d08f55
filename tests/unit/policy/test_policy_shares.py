"""Who gets how much, in simulations of gateways before replicas."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.simulation import Simulation, Source
from tuneplex.types import Replica

Sizes = Callable[[random.Random], tuple[float, float]]


def replica(name: str = "r", *, concurrent: int = 8, slots: int | None = None) -> Replica:
    """A replica with so many places."""
    return Replica(name, "default", "vllm", f"unix:/{name}", concurrent=concurrent, slots=slots)


def around(mean: float, *, wrong: float = 1.0) -> Sizes:
    """Sizes from a tenth of the mean to about twice it; what is expected of them is wrong by up to this factor."""

    def size(chance: random.Random) -> tuple[float, float]:
        real = mean * chance.uniform(0.1, 1.9)
        return real * wrong ** chance.uniform(-1, 1), real

    return size


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_as_the_weights(seed: int) -> None:
    """Within 5 %, however large each tenant's requests are, however many it has, and however wrong the estimates."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    tenants = chance.randint(3, 20)
    sources = [
        Source(
            f"t{number}",
            around(10 ** chance.uniform(-1.5, -0.3), wrong=chance.choice([1.0, 2.0, 4.0])),
            depth=chance.randint(16, 60),
            weight=chance.randint(1, 10),
        )
        for number in range(tenants)
    ]
    simulation = Simulation([replica()], sources, seed=seed)
    simulation.run(20)
    simulation.forget()
    simulation.run(170)
    total, weights = sum(simulation.served.values()), sum(source.weight for source in sources)
    assert total == pytest.approx(8 * 150)
    shares = {tenant: work / total for tenant, work in simulation.served.items()}
    for source in sources:
        assert shares[source.tenant] == pytest.approx(source.weight / weights, rel=0.05)


@pytest.mark.parametrize("factor", [0.01, 0.1, 10.0])
@pytest.mark.parametrize("flows", [1, 4])
def test_estimates_that_are_always_too_small_or_too_large_gain_nothing(factor: float, flows: int) -> None:
    """Within 5 %, a tenant of whose requests the wrong is expected gets what one gets that tells right."""

    def wrong(chance: random.Random) -> tuple[float, float]:
        real = 0.3 * chance.uniform(0.1, 1.9)
        return real * factor, real

    right = [Source("right", around(0.3), depth=20, version=f"m{number}@1") for number in range(flows)]
    other = [Source("wrong", wrong, depth=20, version=f"m{number}@1") for number in range(flows)]
    simulation = Simulation([replica()], [*right, *other])
    simulation.run(10)
    simulation.forget()
    simulation.run(130)
    served = simulation.served
    assert served["right"] / sum(served.values()) == pytest.approx(0.5, rel=0.05)


def thirds(**shares: float) -> list[Source]:
    """Three tenants of the same weight; `a` sends by flows of these shares."""
    size = around(0.2, wrong=2.0)
    flows = [Source("a", size, depth=20, share=share, version=f"{name}@1") for name, share in shares.items()]
    return [*flows, Source("b", size, depth=20), Source("c", size, depth=20)]


@pytest.mark.parametrize("seed", range(2))
def test_priorities_divide_only_what_their_tenant_gets(seed: int) -> None:
    """A tenant with high, normal and low priority gets no more than before, and divides it 16:4:1."""
    simulation = Simulation([replica()], thirds(high=16, normal=4, low=1), seed=seed)
    simulation.run(20)
    simulation.forget()
    simulation.run(320)
    total = sum(simulation.served.values())
    for work in simulation.served.values():
        assert work / total == pytest.approx(1 / 3, rel=0.05)
    parts = {
        flow[0]: work / simulation.served["a"] for (tenant, flow), work in simulation.by_flow.items() if tenant == "a"
    }
    for name, share in (("high@1", 16), ("normal@1", 4), ("low@1", 1)):
        assert parts[name] == pytest.approx(share / 21, rel=0.1)


@pytest.mark.parametrize("away_s", [20.0, 150.0])
def test_who_was_away_is_owed_nothing(away_s: float) -> None:
    """A tenant that comes back gets its share from then on, and not a bit for the time without it."""
    size = around(0.1)
    back = Source("back", size, depth=30, starts=10 + away_s)
    simulation = Simulation(
        [replica()], [Source("back", size, depth=30, ends=10), Source("stays", size, depth=30), back]
    )
    simulation.run(10 + away_s)
    simulation.forget()
    simulation.run(20 + away_s)
    assert simulation.served["back"] / sum(simulation.served.values()) == pytest.approx(0.5, abs=0.03)


def test_nobody_starves_behind_tenants_that_other_replicas_serve() -> None:
    """One that came late, and one that gets much from a fast replica, have their turns at a slow one as well."""
    sources = [
        Source("fast", around(0.2), depth=40, only="a"),
        Source("both", around(0.2), depth=40, only="a", version="m@1"),
        Source("slow", around(1.0), depth=6, only="b"),
        Source("both", around(1.0), depth=6, only="b", version="n@1"),
        Source("late", around(1.0), depth=6, only="b", starts=30),
    ]
    simulation = Simulation([replica("a", concurrent=16), replica("b", concurrent=2)], sources)
    simulation.run(50)
    simulation.forget()
    simulation.run(200)
    found = simulation.by_flow
    for flow in (("slow", ("base", 1)), ("both", ("n@1", 1)), ("late", ("base", 1))):
        assert found[flow] > 300 / 3 / 2
    for flow in (("fast", ("base", 1)), ("both", ("m@1", 1))):
        assert found[flow] == pytest.approx(1200, rel=0.05)


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(2))
def test_a_cold_adapter_gets_a_slot_and_hot_ones_fill_the_places_otherwise(slots: int, seed: int) -> None:
    """It waits at most for one quantum and the longest request, while 9 of 10 places are in use."""
    longest, quantum_s = 0.19, 1.0
    hot = [Source(f"hot{n}", around(0.1), depth=20, version=f"hot{n}@1") for n in range(slots)]
    simulation = Simulation([replica(slots=slots)], hot, seed=seed, quantum_s=quantum_s)
    colds = 15
    for number in range(colds):
        cold = Source("cold", around(0.1), depth=1, version=f"cold{number}@1", ends=20 + 5 * number + 0.001)
        simulation.at(20 + 5 * number, lambda cold=cold: simulation.send(cold))  # type: ignore[misc]
    simulation.run(10)
    simulation.forget()
    simulation.run(20 + 5 * colds)
    waits = [job.began - job.arrived for job in simulation.jobs if job.source.tenant == "cold"]
    assert len(waits) == colds
    assert max(waits) <= quantum_s + longest
    assert sum(simulation.served.values()) >= 0.9 * 8 * (10 + 5 * colds)


@pytest.mark.parametrize("gateways", [2, 4])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_cold_adapter_gets_a_slot_from_adapters_that_are_hot_at_other_gateways(slots: int, gateways: int) -> None:
    """It waits longer only by the time in which gateways hear of each other, and only its slot stands idle then."""
    longest, quantum_s, heard_s = 0.19, 1.0, 1.3
    hot = [
        Source(f"hot{n}", around(0.1), depth=20, version=f"hot{n}@1", gateway=gateway)
        for n in range(slots)
        for gateway in range(gateways)
    ]
    simulation = Simulation([replica(concurrent=16, slots=slots)], hot, gateways=gateways, quantum_s=quantum_s)
    for number in range(8):
        starts = 20.3 + 8.1 * number
        ends, gateway = starts + 0.001, number % gateways
        cold = Source("cold", around(0.1), depth=1, version=f"cold{number}@1", ends=ends, gateway=gateway)
        simulation.at(starts, lambda cold=cold: simulation.send(cold))  # type: ignore[misc]
    simulation.run(10)
    simulation.forget()
    simulation.run(90)
    waits = [job.began - job.arrived for job in simulation.jobs if job.source.tenant == "cold"]
    assert len(waits) == 8
    assert max(waits) <= quantum_s + longest + 2 * heard_s
    assert sum(simulation.served.values()) >= (0.7 if slots == 1 else 0.9) * 16 * 80


def test_more_hot_adapters_than_slots_share_them() -> None:
    """Each has its turns; none waits for all the others to pause."""
    hot = [Source(f"hot{n}", around(0.1), depth=20, version=f"hot{n}@1") for n in range(6)]
    simulation = Simulation([replica(slots=2)], hot)
    simulation.run(20)
    simulation.forget()
    simulation.run(140)
    total = sum(simulation.served.values())
    assert total >= 0.9 * 8 * 120
    for work in simulation.served.values():
        assert work / total == pytest.approx(1 / 6, rel=0.2)


@pytest.mark.parametrize("gateways", [2, 4])
@pytest.mark.parametrize("seed", range(2))
def test_several_gateways_share_as_one(gateways: int, seed: int) -> None:
    """Within 10 % over all of them, though one tenant is at one gateway only and the others are spread unevenly."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    weights = {"here": 3.0, "there": 1.0, "everywhere": 2.0, "uneven": 4.0}
    depths = {
        "here": [60] + [0] * (gateways - 1),
        "there": [0] * (gateways - 1) + [60],
        "everywhere": [30] * gateways,
        "uneven": [chance.randint(8, 60) for _ in range(gateways)],
    }
    sources = [
        Source(name, around(chance.uniform(0.1, 0.5), wrong=2.0), depth=depth, gateway=gateway, weight=weights[name])
        for name in weights
        for gateway, depth in enumerate(depths[name])
        if depth
    ]
    simulation = Simulation([replica(concurrent=32)], sources, gateways=gateways, seed=seed)
    simulation.run(20)
    simulation.forget()
    simulation.run(140)
    total = sum(simulation.served.values())
    assert total >= 0.95 * 32 * 120
    for name, weight in weights.items():
        assert simulation.served[name] / total == pytest.approx(weight / 10, rel=0.1)


@pytest.mark.parametrize("gateways", [2, 4])
def test_several_gateways_share_as_one_while_demand_moves(gateways: int) -> None:
    """A tenant whose requests come to another gateway every few seconds gets what one gets that stays."""
    size = around(0.1)
    moving = [
        Source("moves", size, depth=80, gateway=turn % gateways, starts=8.0 * turn, ends=8.0 * (turn + 1))
        for turn in range(20)
    ]
    stays = [Source("stays", size, depth=80 // gateways, gateway=gateway) for gateway in range(gateways)]
    simulation = Simulation([replica(concurrent=16)], [*moving, *stays], gateways=gateways)
    simulation.run(16)
    simulation.forget()
    simulation.run(160)
    total = sum(simulation.served.values())
    assert total >= 0.9 * 16 * 144
    assert simulation.served["moves"] / total == pytest.approx(0.5, rel=0.1)
