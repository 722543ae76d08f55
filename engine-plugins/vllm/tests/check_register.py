"""A script for the engine's Python: where the plugin takes over, and where it does not. Prints JSON."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import vllm
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.platforms import current_platform
from vllm.v1.worker import lora_model_runner_mixin
from vllm.v1.worker.worker_base import WorkerBase

import tuneplex_vllm
from tuneplex_vllm.manager import WorkerManager

PLATFORM = type(current_platform)
KERNELS = "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU"
ADDED = ("tuneplex_adapter", "tuneplex_state")


def stock(_platform: object) -> str:
    """What vLLM's platform answers by itself."""
    return KERNELS


def found(version: str, *, on_cpu: bool, in_child: bool = False) -> dict[str, Any]:
    """What `register`, called twice, has changed in a process, and what it has logged."""
    parent = mock.Mock() if in_child else None
    with (
        mock.patch.object(vllm, "__version__", version),
        mock.patch.object(PLATFORM, "is_cpu", return_value=on_cpu),
        mock.patch.object(PLATFORM, "get_punica_wrapper", classmethod(stock)),
        mock.patch.object(lora_model_runner_mixin, "LRUCacheWorkerLoRAManager", LRUCacheWorkerLoRAManager),
        mock.patch.object(tuneplex_vllm.multiprocessing, "parent_process", return_value=parent),
        mock.patch.object(tuneplex_vllm, "_log") as log,
    ):
        tuneplex_vllm.register()
        tuneplex_vllm.register()
        changed = {
            "kernels": current_platform.get_punica_wrapper() != KERNELS,
            "manager": lora_model_runner_mixin.LRUCacheWorkerLoRAManager is WorkerManager,
            "worker": all(hasattr(WorkerBase, name) for name in ADDED),
        }
    for name in ADDED:
        if hasattr(WorkerBase, name):
            delattr(WorkerBase, name)
    lines = {call.args[0] % call.args[1:] for call in log.method_calls}
    return changed | {"lines": sorted(lines), "levels": sorted({call[0] for call in log.method_calls})}


if __name__ == "__main__":
    cases = {
        "known": found("0.32.0", on_cpu=True),
        "another build": found("0.32.0+cu129", on_cpu=True),
        "gpu": found("0.32.0", on_cpu=False),
        "unknown": found("9.9.9", on_cpu=True),
        "unknown gpu": found("9.9.9", on_cpu=False),
        "unknown worker": found("9.9.9", on_cpu=True, in_child=True),
    }
    print("RESULT " + json.dumps(cases))
