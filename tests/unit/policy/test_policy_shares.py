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


@pytest.mark.parametrize("seed", range(6))
def test_shares_are_as_the_weights(seed: int) -> None:
    """Within 5 %, however large each tenant's requests are, however many it has, and however wrong the estimates."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    tenants = chance.randint(3, 20)
    sources = [
        Source(
            f"t{number}",
            around(10 ** chance.uniform(-2, -0.3), wrong=chance.choice([1.0, 2.0, 4.0])),
            depth=chance.randint(16, 60),
            weight=chance.randint(1, 10),
        )
        for number in range(tenants)
    ]
    simulation = Simulation([replica()], sources, seed=seed)
    simulation.run(20)
    simulation.forget()
    simulation.run(220)
    total, weights = sum(simulation.served.values()), sum(source.weight for source in sources)
    assert total == pytest.approx(8 * 200)
    shares = {tenant: work / total for tenant, work in simulation.served.items()}
    for source in sources:
        assert shares[source.tenant] == pytest.approx(source.weight / weights, rel=0.05)
