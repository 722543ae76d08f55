"""A script for the engine's Python: a tiny base and adapters of many kinds, saved by PEFT itself.

`PYTHON -P peft_exports.py DIR` writes `DIR/base` and a directory for each of `KINDS`, trained by one step, which is
enough for B not to be zero.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

QV = ["q_proj", "v_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all-linear": {"target_modules": "all-linear"},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"v_proj": 8}, "alpha_pattern": {"layers.1.self_attn.q_proj": 3}},
    "one-layer": {"layers_to_transform": [1]},
    "expression": {"target_modules": r".*\.(q|v)_proj"},
    "excluding": {"exclude_modules": ["layers.0.self_attn.q_proj"]},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "head": {"target_modules": [*QV, "lm_head"]},
    "embedding": {"target_modules": [*QV, "embed_tokens"]},
    "dora": {"use_dora": True},
    "bias": {"bias": "all"},
    "lora-bias": {"lora_bias": True},
    "whole-head": {"modules_to_save": ["lm_head"]},
    "tokens": {"trainable_token_indices": [3, 4]},
    "pissa": {"init_lora_weights": "pissa"},
    "untrained": {},
    "more-tokens": {},
}


def main(root: Path) -> None:
    """Write all of it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    LlamaForCausalLM(config).save_pretrained(root / "base")
    for kind, more in KINDS.items():
        save(root, kind, more)


def save(root: Path, kind: str, more: dict[str, Any]) -> None:
    """Train one step of one kind, and save it."""
    base = AutoModelForCausalLM.from_pretrained(root / "base")
    if kind == "more-tokens":
        base.resize_token_embeddings(70)
    config = LoraConfig(**({"r": 4, "lora_alpha": 8, "target_modules": QV, "task_type": "CAUSAL_LM"} | more))
    model = get_peft_model(base, config)
    if kind != "untrained":
        optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
        tokens = torch.arange(16).reshape(1, 16)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    model.save_pretrained(root / kind)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
