"""The LoRA benchmark on real vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.engine
@pytest.mark.full
def test_quick_look_finds_everything_in_order(engine_python: Path, base_model: Path, tmp_path: Path) -> None:
    """A single round on the plugin passes all of its checks."""
    file = tmp_path / "result.json"
    script = REPOSITORY / "benchmarks" / "lora_cpu" / "run.py"
    where = ["--engine-python", str(engine_python), "--base", str(base_model), "--json", str(file)]
    command = [sys.executable, str(script), "--quick", "--rounds", "1", *where]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stderr
    assert "one adapter of rank 8 : the base" in result.stdout
    pieces = {piece["cell"]["workload"]: piece for piece in json.loads(file.read_bytes())["pieces"]}
    assert sorted(pieces) == ["base", "mix4", "r8"]
    assert all(0 < piece["tokens_per_s"] < 10_000 and len(piece["ttft_ms"]) == 16 for piece in pieces.values())
    assert pieces["mix4"]["changed"] > 0.5
