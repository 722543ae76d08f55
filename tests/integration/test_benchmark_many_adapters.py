"""The benchmark of many adapters asks what it says, counts what it should, and tells what was not answered."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.many_adapters.measure import Met, figures, play
from benchmarks.many_adapters.targets import Target
from benchmarks.many_adapters.traffic import Kind, names, traffic
from tests.support.real_engine import RealEngine
from tuneplex.testing import FakeEngine, Script

STEADY, RUSH = Kind("steady", rate=50), Kind("rush", clients=4)
MANY = names(6)


def target(socket: Path) -> Target:
    """An engine that is asked directly."""
    engine = RealEngine("base", Path(), socket, "none", Path(), Path(), os.getpid())
    return Target("plain", "http://engine", str(socket), "", engine)


def test_traffic_is_the_same_for_all_and_follows_the_law() -> None:
    """A seed gives one traffic, at its rate; the first adapter is asked for twice as often as the next."""
    asks = traffic(STEADY, MANY, 6000, 1.0, 1)
    assert asks == traffic(STEADY, MANY, 6000, 1.0, 1)
    assert asks != traffic(STEADY, MANY, 6000, 1.0, 2)
    counts = Counter(ask.adapter for ask in asks)
    assert counts[MANY[0]] / counts[MANY[1]] == pytest.approx(2, rel=0.15)
    assert asks[-1].at == pytest.approx(6000 / 50, rel=0.1)
    assert {ask.at for ask in traffic(RUSH, MANY, 10, 1.0, 1)} == {0.0}


@pytest.mark.parametrize("kind", [STEADY, RUSH], ids=lambda kind: kind.name)
async def test_a_round_is_played_and_counted(kind: Kind, tmp_path: Path) -> None:
    """Every request is a stream that is read to its end, and switches are those that the engine has counted."""
    socket = tmp_path / "engine.sock"
    asks = traffic(kind, MANY, 24, 1.0, 3)
    async with FakeEngine(adapters=MANY, max_loras=2, uds=str(socket)) as fake:
        before = await asyncio.to_thread(target(socket).switches)
        found, met = await play(target(socket), kind, asks, 3)
        switched = await asyncio.to_thread(target(socket).switches) - before
        asked = [record.json for record in fake.requests if record.path == "/v1/completions"]
    assert (found.asked, found.answered) == (24, 24)
    assert sorted(one.adapter for one in met) == sorted(ask.adapter for ask in asks)
    assert {(body["stream"], body["max_tokens"]) for body in asked} == {(True, 3)}
    assert switched > 0
    assert found.switches == pytest.approx(1000 * switched / 24)
    assert 0 < found.first_p50 <= found.first_p95 <= found.first_p99 <= found.longest <= found.seconds


async def test_what_is_not_answered_is_told(tmp_path: Path) -> None:
    """A refusal, and a stream without an end, are no answers."""
    socket = tmp_path / "engine.sock"
    async with FakeEngine(adapters=MANY, uds=str(socket)) as fake:
        fake.script(Script(status=503), Script(close_after_chunks=1))
        found, met = await play(target(socket), Kind("one", clients=1), traffic(RUSH, MANY, 3, 1.0, 1), 3)
    assert (found.asked, found.answered) == (3, 1)
    assert [bool(one.error) for one in met] == [True, True, False]


async def test_an_engine_that_does_not_count_is_refused(tmp_path: Path) -> None:
    """Without the plugin's list there are no switches to tell."""
    socket = tmp_path / "engine.sock"
    async with FakeEngine(adapters=MANY, plugin=False, uds=str(socket)):
        with pytest.raises(BenchmarkError, match="does not count"):
            await play(target(socket), RUSH, traffic(RUSH, MANY, 3, 1.0, 1), 3)


def test_figures() -> None:
    """Waits are of those that were answered, and the longest one has its adapter's name."""
    met = [Met("a", 0.1 * number, 1.0) for number in range(1, 100)] + [Met("b", 20.0, 21.0), Met("c", None, 9.0, "503")]
    found = figures(met, 60.0, 202, 0.25)
    assert (found.asked, found.answered, found.adapters, found.switches) == (101, 100, 2, 2000)
    assert (found.first_p50, found.first_p95) == pytest.approx((5.05, 9.5))
    assert (found.longest, found.longest_adapter) == (20.0, "b")
    assert math.isnan(figures([], 1.0, 0, 0.0).longest)
