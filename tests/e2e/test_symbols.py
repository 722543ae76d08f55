"""What the engine plugin touches of vLLM is written down, and the vLLM that is installed has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_plugin import PLUGIN, run_script

SOURCE = PLUGIN / "src" / "tuneplex_vllm"
LOST = [
    "vllm.entrypoints.openai.models.serving:OpenAIServingModels._check_load_lora_adapter_request",
    "vllm.lora.model_manager:LRUCacheLoRAModelManager._get_lora_layer_weights",
    "vllm.lora.utils:get_adapter_absolute_path",
    "vllm.lora.worker_manager:LRUCacheWorkerLoRAManager._load_adapter",
    "vllm.utils.counter:AtomicCounter.inc",
    "vllm.v1.worker.lora_model_runner_mixin:LRUCacheWorkerLoRAManager",
]
CHANGED = [
    "vllm.lora.worker_manager:LRUCacheWorkerLoRAManager.set_active_adapters",
    "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.add_lora_linear",
    "vllm.plugins.endpoint_plugins.interface:EndpointPlugin.init_state",
]

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def found(engine_python: Path) -> dict[str, Any]:
    """What the script found, in one run."""
    return run_script(engine_python, "check_symbols.py", SOURCE, "--without", *LOST, "--renamed", *CHANGED)


def test_vllm_has_every_symbol(found: dict[str, Any]) -> None:
    """Each listed symbol is there, with the parameters and attributes that the plugin relies on."""
    assert found["symbols"] > 50
    assert found["faults"] == []


def test_the_list_has_all_that_is_touched(found: dict[str, Any]) -> None:
    """Whatever of vLLM the plugin's source imports, replaces, overrides or reads is listed."""
    assert found["unlisted"] == []


@pytest.mark.parametrize("how,name", [*(("without", name) for name in LOST), *(("renamed", name) for name in CHANGED)])
def test_a_change_in_vllm_is_named(found: dict[str, Any], how: str, name: str) -> None:
    """A symbol that goes away, or whose parameters change, is reported by its name."""
    owner, _, attribute = name.replace(":", ".").rpartition(".")
    told = [fault.replace(":", ".") for fault in found[how][name]]
    assert any(owner in fault and attribute in fault for fault in told)
