"""A script for the engine's Python: write random LoRA adapters for a base, as PEFT would save them.

`PYTHON make_adapters.py BASE_DIR OUT_DIR NAME:RANK:MODULE,MODULE,… …`. The same arguments give the same weights.
A keeps the size of what goes in, B makes the change a fifth of that: large enough to change every answer, small enough
that the model stays a model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

_CHANGE = 0.1  # times alpha / rank, which is 2


def main(base: Path, out: Path, wanted: list[str]) -> None:
    """Write each wanted adapter into a directory of its own below `out`."""
    config = json.loads((base / "config.json").read_text("utf-8"))
    for text in wanted:
        name, rank, modules = text.split(":")
        _write(out / name, config, int(rank), modules.split(","))


def _write(directory: Path, config: dict[str, int], rank: int, modules: list[str]) -> None:
    shapes = _shapes(config)
    draw = torch.Generator().manual_seed(rank * len(modules))
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(config["num_hidden_layers"]):
        for module in modules:
            block, inputs, outputs = shapes[module]
            key = f"base_model.model.model.layers.{layer}.{block}.{module}"
            a = torch.randn(rank, inputs, generator=draw) / inputs**0.5
            b = torch.randn(outputs, rank, generator=draw) * _CHANGE / rank**0.5
            tensors[f"{key}.lora_A.weight"] = a.bfloat16()
            tensors[f"{key}.lora_B.weight"] = b.bfloat16()
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    (directory / "adapter_config.json").write_text(json.dumps(_settings(rank, modules), indent=1), "utf-8")


def _shapes(config: dict[str, int]) -> dict[str, tuple[str, int, int]]:
    """For each linear module of a Llama: the block it is in, how much goes in and how much comes out."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    return {
        "q_proj": ("self_attn", hidden, queries),
        "k_proj": ("self_attn", hidden, keys),
        "v_proj": ("self_attn", hidden, keys),
        "o_proj": ("self_attn", queries, hidden),
        "gate_proj": ("mlp", hidden, inner),
        "up_proj": ("mlp", hidden, inner),
        "down_proj": ("mlp", inner, hidden),
    }


def _settings(rank: int, modules: list[str]) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "inference_mode": True,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
