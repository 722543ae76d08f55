"""The engines that are compared: one vLLM, started in three ways. README.md gives the reasons for the flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ENGINES", "EngineKind"]

_FLAGS = "--max-model-len 1024 --dtype bfloat16 --enforce-eager --no-enable-prefix-caching"
_LORA = "--enable-lora --max-loras 4 --max-cpu-loras 8 --max-lora-rank 128"


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One way to start vLLM.

    Attributes:
        name: As in tables, files and `--only`.
        title: For people.
        lora: Whether it serves adapters.
        plugins: vLLM's plugins that it may load, as in `VLLM_PLUGINS`.
    """

    name: str
    title: str
    lora: bool
    plugins: str

    def command(self, python: Path, base: Path, uds: Path, adapters: Mapping[str, Path]) -> list[str]:
        """The command line.

        Args:
            python: The engine's Python.
            base: The base's directory.
            uds: The Unix socket to listen on.
            adapters: What it shall serve besides the base, by name.
        """
        words = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(base), "--uds", str(uds)]
        words += ["--served-model-name", "base", *_FLAGS.split()]
        if self.lora:
            words += [*_LORA.split(), "--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
        return words

    def environment(self, core: int) -> dict[str, str]:
        """Our own environment and what vLLM needs to know; `core` is the worker's."""
        return os.environ | {
            "VLLM_PLUGINS": self.plugins,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": str(core),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
        }


ENGINES = {
    engine.name: engine
    for engine in (
        EngineKind("none", "without --enable-lora", lora=False, plugins=""),
        EngineKind("stock", "vLLM's own LoRA", lora=True, plugins=""),
        EngineKind("plugin", "LoRA with tuneplex-vllm", lora=True, plugins="tuneplex"),
    )
}
