"""The engine plugin, checked in the engine's own environment: scripts there compute, the tests here judge."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.lora import write_adapter
from tests.support.real_engine import FLAGS, RealEngine, real_engine

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "engine-plugins" / "vllm"
ADAPTERS = ROOT / "examples" / "adapters"
TOLERANCE = 1e-4
LEAVES_ALONE = "tuneplex-vllm leaves the LoRA kernels alone"
# Python runs it in each of the engine's processes before anything else.
OTHER_VERSION = """
import sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "vllm.version":
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            module.__version__ = "9.9.9"
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder)
"""

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


def units_of_this_cpu() -> set[str]:
    """What the native kernel should find here, by Linux's own list."""
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    vectors = {"AVX-512 vectors"} if "avx512_bf16" in flags else set()
    return vectors | ({"AMX tiles"} if {"amx_tile", "amx_bf16"} <= flags and vectors else set())


def test_products_equal_the_plain_reference(engine_python: Path) -> None:
    """Random batches, ranks, modules and slot changes give what a row-by-row float64 product gives, on every unit."""
    found = run_script(engine_python, "check_products.py", "15")
    assert found.keys() == {"PyTorch", *units_of_this_cpu()}
    assert {part["steps"] for part in found.values()} == {found["PyTorch"]["steps"]}
    assert found["PyTorch"]["steps"] > 15
    assert max(part["worst"] for part in found.values()) <= 1


@pytest.mark.full
def test_products_equal_the_plain_reference_in_many_examples(engine_python: Path) -> None:
    """The same for hundreds of examples that are others in every run."""
    found = run_script(engine_python, "check_products.py", "200", "--random")
    assert max(part["worst"] for part in found.values()) <= 1


@pytest.mark.full
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
def test_any_adapters_agree_roughly_in_bfloat16(engine_python: Path, base_model: Path) -> None:
    """In the native kernel's dtype each row gets its own adapter: logits stay near PEFT's, and adapters move them."""
    found = run_script(engine_python, "check_many.py", base_model, "bfloat16", "20", "--random")
    assert found["worst"]["all"] <= 0.03
    assert len(found["still"]) <= found["adapters"] / 2


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
        assert found[case]["levels"] == ["warning"]  # less is lost: vLLM sets its log up after it has loaded plugins
    assert found["unknown worker"]["lines"] == []


def complete(engine: RealEngine, model: str) -> list[float]:
    """The log-probabilities of a short answer."""
    with engine.client() as client:
        body = {"model": model, "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0, "logprobs": 1}
        reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    found: list[float] = reply.json()["choices"][0]["logprobs"]["token_logprobs"]
    return found


@pytest.mark.full
def test_an_unknown_version_still_serves_adapters(engine_python: Path, base_model: Path, tmp_path: Path) -> None:
    """On a vLLM it does not know, the plugin says so in one line, and vLLM answers for adapters by its own means."""
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    env = {"PYTHONPATH": str(tmp_path), "VLLM_PLUGINS": "tuneplex"}
    with real_engine(engine_python, base_model, flags=f"{FLAGS} --enforce-eager", env=env) as engine:
        path = write_adapter(engine.adapters / "ada", rank=4)
        with engine.client() as client:
            assert client.get("/version").json() == {"version": "9.9.9"}
            loaded = client.post("/v1/load_lora_adapter", json={"lora_name": "ada", "lora_path": str(path)})
            assert loaded.status_code == 200, loaded.text
            listed = client.get("/v1/tuneplex/adapters").json()
            refused = client.post("/v1/tuneplex/load", json={"name": "bob", "path": str(path)})
        assert complete(engine, "ada") != complete(engine, "base")
        log = engine.log.read_text()
    assert [(adapter["name"], adapter["tier"]) for adapter in listed["adapters"]] == [("ada", None)]
    assert refused.status_code == 501
    assert "9.9.9" in refused.json()["error"]["message"]
    assert log.count(LEAVES_ALONE) == 1
    assert "tuneplex-vllm is active" not in log
