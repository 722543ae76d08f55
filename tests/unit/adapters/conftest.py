"""Makes small adapters and bases: real safetensors headers, numbers all zero."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does; see `app.judging`

Shapes = Mapping[str, tuple[int, ...]]


def write_tensors(file: Path, shapes: Shapes, dtype: str = "F32", width: int = 4) -> None:
    """Write a safetensors file with tensors of these shapes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * width
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


class MakeAdapter(Protocol):
    """Makes an adapter's directory and returns it."""

    def __call__(
        self,
        name: str = ...,
        *,
        rank: int = ...,
        hidden: int = ...,
        layer: int = ...,
        config: Mapping[str, object] = ...,
    ) -> Path:
        """Change the query projection of one layer of a model of this width."""


@pytest.fixture
def make_adapter(tmp_path: Path) -> MakeAdapter:
    """A function that makes adapters."""

    def make(
        name: str = "one",
        *,
        rank: int = 8,
        hidden: int = 32,
        layer: int = 0,
        config: Mapping[str, object] | None = None,
    ) -> Path:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        shapes = {f"{module}.lora_A.weight": (rank, hidden), f"{module}.lora_B.weight": (hidden, rank)}
        write_tensors(directory / "adapter_model.safetensors", shapes)
        values = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": 2 * rank,
            "target_modules": ["q_proj"],
            "base_model_name_or_path": "acme/tiny",
            "bias": "none",
        }
        (directory / "adapter_config.json").write_text(json.dumps(values | dict(config or {})))
        return directory

    return make


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base of width 32 with two layers, its head tied to the embedding."""
    directory = tmp_path / "base"
    directory.mkdir()
    shapes = {"model.embed_tokens.weight": (100, 32), "model.norm.weight": (32,)}
    for layer in range(2):
        shapes |= {
            f"model.layers.{layer}.self_attn.q_proj.weight": (32, 32),
            f"model.layers.{layer}.self_attn.q_proj.bias": (32,),
            f"model.layers.{layer}.mlp.up_proj.weight": (64, 32),
        }
    write_tensors(directory / "model.safetensors", shapes, "BF16", 2)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
