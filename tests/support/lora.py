"""Small random LoRA adapters for SmolLM2-135M, as PEFT would save them."""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path

LAYERS = 30
HIDDEN = 576
VALUE = 192


def write_adapter(directory: Path, *, rank: int = 8, seed: int = 0) -> Path:
    """Write an adapter of the value projections whose effect is large enough to show."""
    directory.mkdir(parents=True)
    chance = random.Random(seed)  # noqa: S311 - weights are no secret
    header: dict[str, object] = {}
    data = bytearray()
    for layer in range(LAYERS):
        for part, shape in (("lora_A", (rank, HIDDEN)), ("lora_B", (VALUE, rank))):
            begin = len(data)
            data += array("f", (chance.uniform(-0.1, 0.1) for _ in range(shape[0] * shape[1]))).tobytes()
            name = f"base_model.model.model.layers.{layer}.self_attn.v_proj.{part}.weight"
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    head = json.dumps(header).encode()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank}
    config |= {"target_modules": ["v_proj"], "bias": "none", "base_model_name_or_path": "base"}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory
