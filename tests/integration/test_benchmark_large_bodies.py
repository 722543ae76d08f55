"""Large prompts do not delay other streams: the benchmark of it, in a small form."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import uvloop

from tests.support.tokenizers import make

REPOSITORY = Path(__file__).parents[2]
# A chunk on a busy machine may wait some milliseconds for a core. Counted on the event loop, each of the prompts would
# stop every stream for several hundred.
LATE_MS = 100.0


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What it measures with, which lives outside the package."""
    monkeypatch.syspath_prepend(str(REPOSITORY))
    return importlib.import_module("benchmarks.large_bodies.measure")


@pytest.fixture
def plan(benchmark: ModuleType, tmp_path: Path) -> Any:  # noqa: ANN401 - a Plan, of a module that is found at run time
    """64 streams, four chunks a second each, beside two clients with prompts of 1 MiB."""
    make("byte level").save(str(tmp_path / "tokenizer.json"))
    return benchmark.Plan(
        tokenizer=str(tmp_path / "tokenizer.json"),
        streams=64,
        pace_s=0.25,
        clients=2,
        size=1024 * 1024,
        rounds=1,
        seconds=3.0,
    )


def test_large_prompts_do_not_delay_other_streams(benchmark: ModuleType, plan: Any) -> None:  # noqa: ANN401 - see there
    """While prompts of 1 MB are counted, the chunks of other streams come through as they are sent."""
    result = uvloop.run(benchmark.measure(plan))
    (crowded,) = result.crowded
    assert crowded.large >= 2
    assert crowded.chunks > 64
    assert 0 < crowded.p50_ms <= crowded.p99_ms < LATE_MS


def test_a_wrong_reply_is_an_error(benchmark: ModuleType, plan: Any) -> None:  # noqa: ANN401 - see there
    """Prompts that are refused, because they are larger than the gateway takes, give no figures."""
    too_large = msgspec.structs.replace(plan, size=17 * 1024 * 1024, streams=1, seconds=1.0)
    with pytest.raises(benchmark.BenchmarkError, match="413"):
        uvloop.run(benchmark.measure(too_large))
