"""What the engine plugin touches of vLLM is written down, and the vLLM that is installed has it."""

from __future__ import annotations

from pathlib import Path

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


def test_vllm_has_every_symbol_and_the_list_has_all_that_is_touched(engine_python: Path) -> None:
    """Each listed symbol is there as it is used; what the source imports, replaces, overrides or reads is listed."""
    found = run_script(engine_python, "check_symbols.py", SOURCE)
    assert found["faults"] == []
    assert found["unlisted"] == []
    assert found["symbols"] > 50


@pytest.mark.parametrize("how,names", [("without", LOST), ("renamed", CHANGED)])
def test_a_change_in_vllm_is_named(engine_python: Path, how: str, names: list[str]) -> None:
    """A symbol that goes away, or whose parameters change, is reported by its name."""
    found = run_script(engine_python, "check_symbols.py", SOURCE, how, *names)
    for name in names:
        owner, _, attribute = name.replace(":", ".").rpartition(".")
        told = [fault.replace(":", ".") for fault in found[name]]
        assert any(owner in fault and attribute in fault for fault in told), found[name]
