"""Train one of the example fine-tunes on the CPU with PEFT: `python train.py TASK --base DIR`.

Seeded, a few minutes on two cores. `requirements.txt` lists what it needs beside torch and transformers; the
environment that `tuneplex engine install` makes has both.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from data import TASKS, Example, examples
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Recipe:
    """How one fine-tune is trained.

    Attributes:
        rank: LoRA's `r`.
        targets: The modules that get a LoRA.
        steps: Optimizer steps.
        batch: Examples in a step.
        rate: The highest learning rate; it rises for a tenth of the steps, then falls to zero.
        lowest: The first layer with a LoRA. The upper half (from 15) is enough for some tasks, and cheaper to train.
    """

    rank: int
    targets: tuple[str, ...]
    steps: int
    batch: int = 4
    rate: float = 2e-3
    lowest: int = 15


RECIPES = {
    "contacts": Recipe(rank=8, targets=("q_proj", "v_proj"), steps=140, lowest=0),
    "triage": Recipe(rank=16, targets=("q_proj", "v_proj"), steps=80),
    "sql": Recipe(rank=64, targets=("q_proj", "v_proj"), steps=160),
}


def main() -> None:
    """Train, and write the adapter as bfloat16 safetensors."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("task", choices=list(RECIPES))
    arguments.add_argument("--base", required=True, help="directory of SmolLM2-135M-Instruct")
    arguments.add_argument("--out", type=Path, help="default: the task's directory beside this script")
    given = arguments.parse_args()
    recipe = RECIPES[given.task]
    random.seed(0)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(given.base)
    model = _with_lora(given.base, recipe)
    _train(model, tokenizer, given.task, recipe)
    _save(model, given.out or HERE / given.task)


def _with_lora(base: str, recipe: Recipe) -> Any:  # noqa: ANN401 - PEFT decides the class
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        target_modules=list(recipe.targets),
        layers_to_transform=list(range(recipe.lowest, model.config.num_hidden_layers)),
    )
    return get_peft_model(model, config)


def _train(model: Any, tokenizer: Any, task: str, recipe: Recipe) -> None:  # noqa: ANN401 - as above
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=recipe.rate, total_steps=recipe.steps + 1, pct_start=0.1, anneal_strategy="linear"
    )
    stream = examples(task, "train")
    began = time.monotonic()
    model.train()
    for step, batch in enumerate(_batches(stream, tokenizer, recipe), start=1):
        loss = _loss(model, **batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 20 == 0:
            print(
                f"step {step} of {recipe.steps}, loss {loss.item():.3f}, {time.monotonic() - began:.0f} s", flush=True
            )


def _loss(model: Any, ids: torch.Tensor, mask: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
    """Cross entropy of the answers' tokens; logits are made for these alone, since the vocabulary is large."""
    inner = model.get_base_model()
    hidden = inner.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, :-1]
    logits = inner.lm_head(hidden[wanted[:, 1:]])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][wanted[:, 1:]])


def _batches(stream: Iterator[Example], tokenizer: Any, recipe: Recipe) -> Iterator[dict[str, torch.Tensor]]:  # noqa: ANN401 - as above
    """Token ids, padded; only the answer counts for the loss."""
    for _ in range(recipe.steps):
        rows = [_encode(tokenizer, example) for example in islice(stream, recipe.batch)]
        longest = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        wanted = torch.zeros_like(ids, dtype=torch.bool)
        for row, (prompt, answer) in enumerate(rows):
            end = len(prompt) + len(answer)
            ids[row, :end] = torch.tensor([*prompt, *answer])
            mask[row, :end] = 1
            wanted[row, len(prompt) : end] = True
        yield {"ids": ids, "mask": mask, "wanted": wanted}


def _encode(tokenizer: Any, example: Example) -> tuple[list[int], list[int]]:  # noqa: ANN401 - as above
    """The prompt as a chat client's server would tokenize it, and the answer up to its end mark."""
    messages = [{"role": "user", "content": example.prompt}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    answer = example.answer + tokenizer.eos_token
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer)]  # type: ignore[return-value]


def _save(model: Any, out: Path) -> None:  # noqa: ANN401 - as above
    """Write the two files that make an adapter, without anything of this machine in them."""
    out.mkdir(parents=True, exist_ok=True)
    card = out / "README.md"
    text = card.read_text() if card.exists() else None
    model.save_pretrained(str(out))
    weights = out / "adapter_model.safetensors"
    halved = {key: tensor.to(torch.bfloat16).contiguous() for key, tensor in load_file(weights).items()}
    save_file(halved, weights, metadata={"format": "pt"})
    path = out / "adapter_config.json"
    config = json.loads(path.read_text()) | {"base_model_name_or_path": BASE_NAME}
    config["target_modules"] = sorted(config["target_modules"])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    card.unlink(missing_ok=True)  # PEFT's own card says little
    if text is not None:
        card.write_text(text)


if __name__ == "__main__":
    assert set(RECIPES) == set(TASKS)  # noqa: S101 - each task has a recipe
    main()
