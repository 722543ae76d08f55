"""The engine plugin, checked in the engine's own environment: scripts there compute, the tests here judge."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "engine-plugins" / "vllm"
ADAPTERS = ROOT / "examples" / "adapters"
TOLERANCE = 1e-4

pytestmark = pytest.mark.engine


def run_script(python: Path, name: str, *arguments: str | Path) -> dict[str, float]:
    """Run one of the plugin's scripts on the checkout's plugin and return what it found."""
    finished = subprocess.run(
        [python, PLUGIN / "tests" / name, *arguments],
        env=os.environ | {"PYTHONPATH": str(PLUGIN / "src"), "VLLM_PLUGINS": "tuneplex"},
        capture_output=True,
        text=True,
        check=False,
    )
    result = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
    assert result, finished.stdout + finished.stderr
    found: dict[str, float] = json.loads(result[-1].removeprefix("RESULT "))
    return found


def test_products_equal_the_plain_reference(engine_python: Path) -> None:
    """Random batches, ranks, modules and slot changes give what a row-by-row float64 product gives."""
    assert run_script(engine_python, "check_products.py")["worst"] < 1e-5


def test_model_agrees_with_peft(engine_python: Path, base_model: Path) -> None:
    """In float32, base, example and random adapters, mixed in batches and reloaded, predict what PEFT predicts."""
    examples = sorted(path.parent for path in ADAPTERS.glob("*/adapter_config.json"))
    found = run_script(engine_python, "check_model.py", base_model, *examples)
    assert {path.name for path in examples} | {"base", "reloaded"} < found.keys()
    assert {name: error for name, error in found.items() if error > TOLERANCE} == {}


def test_unknown_versions_and_platforms_are_left_alone(engine_python: Path) -> None:
    """Only a vLLM that the plugin was tested with, on the CPU, gets other kernels; else the log says why not."""
    assert run_script(engine_python, "check_register.py") == {"known": True, "unknown": False, "gpu": False}
