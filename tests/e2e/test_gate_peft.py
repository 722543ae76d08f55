"""What the gate says of adapters that PEFT itself has saved."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tuneplex.adapters import inspect
from tuneplex.shapes import read_base

pytestmark = [pytest.mark.engine, pytest.mark.full]
# Verdict, and the first finding that has it.
EXPECTED = {
    **dict.fromkeys(
        ("plain", "all-linear", "rslora", "patterns", "one-layer", "expression", "excluding", "orthogonal"),
        ("accepted", "files"),
    ),
    "head": ("warned", "embeddings"),
    "embedding": ("warned", "embeddings"),
    "untrained": ("warned", "numbers"),
    "dora": ("refused", "DoRA"),
    "bias": ("refused", "bias"),
    "lora-bias": ("refused", "LoRA bias"),
    "whole-head": ("refused", "whole modules"),
    "tokens": ("refused", "tokens"),
    "pissa": ("refused", "initialization"),
    "more-tokens": ("refused", "tensors"),
}
SCRIPT = Path(__file__).parents[1] / "support" / "peft_exports.py"


def test_exports_of_peft(engine_python: Path, tmp_path: Path) -> None:
    """Each kind of adapter that PEFT saves gets the verdict that belongs to it, for the reason that belongs to it."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    # Without -P, a helper of ours that is called like a package would be imported in its place.
    done = subprocess.run([engine_python, "-P", SCRIPT, tmp_path], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    base = read_base(tmp_path / "base")
    found = {}
    for kind in EXPECTED:
        report = inspect(tmp_path / kind, base, deep=True)
        worst = [one.check for one in report.findings if one.verdict is report.verdict]
        found[kind] = (report.verdict.value, worst[0])
    assert found == EXPECTED
