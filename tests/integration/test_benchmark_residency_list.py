"""The benchmark of the list of adapters runs, and refuses to give figures for wrong lists."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest

from tuneplex.testing import FakeEngine

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What it measures with, which lives outside the package."""
    monkeypatch.syspath_prepend(str(REPOSITORY))
    return importlib.import_module("benchmarks.residency_list.measure")


async def test_each_call_is_timed_under_load(benchmark: ModuleType) -> None:
    """As many calls as asked for are timed while all models are being asked for text."""
    async with FakeEngine("base", adapters=["ada", "bob"], api_key="k") as fake:
        target = benchmark.Target(fake.endpoint, "k", os.getpid())
        result = await benchmark.measure(target, benchmark.Plan(3, 10, 0, ("base", "ada", "bob")), 0)
    assert result.clients == 3
    assert result.figures["list"].count == 10
    assert 0 < result.figures["list"].p50_ms <= result.figures["list"].p99_ms <= result.figures["list"].max_ms
    assert result.figures["list"].oldest_s >= 0
    assert result.tokens_per_s > 0


@pytest.mark.parametrize("secret, words", [("k", "the list is wrong"), ("no", "base")])
async def test_a_wrong_answer_is_an_error(benchmark: ModuleType, secret: str, words: str) -> None:
    """A list that is not of the adapters that are served, and an engine that does not let us in, end the run."""
    async with FakeEngine("base", adapters=["ada"], api_key="k") as fake:
        target = benchmark.Target(fake.endpoint, secret, os.getpid())
        with pytest.raises(benchmark.BenchmarkError, match=words):
            await benchmark.measure(target, benchmark.Plan(2, 10, 0, ("base",)), 0)
