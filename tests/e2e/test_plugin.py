"""The engine plugin, checked in the engine's own environment: scripts there compute, the tests here judge."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "engine-plugins" / "vllm"
ADAPTERS = ROOT / "examples" / "adapters"
TOLERANCE = 1e-4
LEAVES_ALONE = "tuneplex-vllm leaves the LoRA kernels alone"

pytestmark = pytest.mark.engine


def run_script(python: Path, name: str, *arguments: str | Path) -> dict[str, Any]:
    """Run one of the plugin's scripts on the plugin that `make engine` installed, and return what it found."""
    finished = subprocess.run(
        [python, PLUGIN / "tests" / name, *arguments],
        env=os.environ | {"VLLM_PLUGINS": "tuneplex"},
        capture_output=True,
        text=True,
        check=False,
    )
    result = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
    assert result, finished.stdout[-20000:] + finished.stderr[-20000:]
    found: dict[str, Any] = json.loads(result[-1].removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("kernel", [[], ["--plain"]], ids=["native", "pytorch"])
def test_products_equal_the_plain_reference(engine_python: Path, kernel: list[str]) -> None:
    """Random batches, ranks, modules and slot changes give what a row-by-row float64 product gives, on both kernels."""
    found = run_script(engine_python, "check_products.py", "15", *kernel)
    assert found["steps"] > 15
    assert found["worst"] <= 1


@pytest.mark.full
@pytest.mark.parametrize("kernel", [[], ["--plain"]], ids=["native", "pytorch"])
def test_products_equal_the_plain_reference_in_many_examples(engine_python: Path, kernel: list[str]) -> None:
    """The same for hundreds of examples that are others in every run."""
    assert run_script(engine_python, "check_products.py", "300", "--random", *kernel)["worst"] <= 1


def test_model_agrees_with_peft(engine_python: Path, base_model: Path) -> None:
    """In float32, base, example and random adapters, mixed, cached and reloaded, predict what PEFT predicts."""
    examples = sorted(path.parent for path in ADAPTERS.glob("*/adapter_config.json"))
    found = run_script(engine_python, "check_model.py", base_model, *examples)
    assert {path.name for path in examples} | {"base", "reloaded"} < found["worst"].keys()
    assert {name: error for name, error in found["worst"].items() if error > TOLERANCE} == {}
    assert found["still"] == []
    assert found["cached"] > 0


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("profile,shown_by", [("chunked", "cached"), ("scarce", "preempted"), ("wide", "adapters")])
def test_any_adapters_agree_with_peft(engine_python: Path, base_model: Path, profile: str, shown_by: str) -> None:
    """Adapters and batches made up anew predict what PEFT predicts, in pieces, from the cache, preempted, replaced."""
    found = run_script(engine_python, "check_many.py", base_model, profile, "30", "--random")
    assert found["worst"]["all"] <= TOLERANCE
    assert found[shown_by] > 0
    assert len(found["still"]) <= found["adapters"] / 10


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_every_rank_agrees_with_peft(engine_python: Path, base_model: Path) -> None:
    """An adapter of each rank from 1 to 128, eight of them in a batch, predicts what PEFT predicts."""
    found = run_script(engine_python, "check_many.py", base_model, "ranks", "128")
    assert found["adapters"] == 128
    assert found["worst"]["all"] <= TOLERANCE
    assert found["still"] == []


def test_only_known_versions_and_the_cpu_are_changed(engine_python: Path) -> None:
    """A known vLLM gets the manager, on the CPU also the kernels; an unknown one is left alone, says one line why."""
    found = run_script(engine_python, "check_register.py")
    everything = {"kernels": True, "manager": True, "worker": True, "lines": [], "levels": []}
    assert found["known"] == found["another build"] == everything
    gpu = found["gpu"]
    assert not gpu["kernels"]
    assert gpu["manager"]
    assert gpu["worker"]
    for case in ("unknown", "unknown gpu"):
        assert not any(found[case][part] for part in ("kernels", "manager", "worker"))
        assert len(found[case]["lines"]) == 1
        assert "9.9.9" in found[case]["lines"][0]
        assert found[case]["lines"][0].startswith(LEAVES_ALONE)
    assert found["unknown worker"]["lines"] == []
