"""A script for the engine's Python: the wrapper's products against a plain float64 reference. Prints JSON.

It builds the stacks as vLLM's LoRA layers do (padded to the largest rank, merged modules as tuples), with random ranks,
slots without weights and parts that an adapter leaves out, and drives the wrapper as a step of the engine would.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
from vllm.lora.layers import LoRAMapping

from tuneplex_vllm.wrapper import RankExactWrapper

MAX_RANK = 64
SLOTS = 4
INPUTS = 48
MODULES = {"o_proj": (48,), "gate_up": (96, 96), "qkv": (48, 16, 16)}
Stacks = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]


def stacks_of(outputs: tuple[int, ...]) -> Stacks:
    """Empty stacks for a module with these merged parts."""
    a = tuple(torch.zeros(SLOTS, 1, MAX_RANK, INPUTS) for _ in outputs)
    b = tuple(torch.zeros(SLOTS, 1, size, MAX_RANK) for size in outputs)
    return a, b


def fill(stacks: Stacks, slot: int, rank: int, chance: random.Random) -> None:
    """Write an adapter of this rank into a slot in place, as vLLM does; it may leave parts out."""
    for a, b in zip(*stacks, strict=True):
        a[slot] = 0
        b[slot] = 0
        if rank and chance.random() < 0.7:
            a[slot, 0, :rank].copy_(torch.randn(rank, INPUTS))
            b[slot, 0, :, :rank].copy_(torch.randn(b.shape[2], rank))


def reference(y: torch.Tensor, x: torch.Tensor, stacks: Stacks, slots: list[int]) -> torch.Tensor:
    """What the product should be: row by row in float64."""
    result = y.double()
    for row, slot in enumerate(slots):
        offset = 0
        for a, b in zip(*stacks, strict=True):
            size = b.shape[2]
            if slot >= 0:
                change = x[row].double() @ a[slot, 0].double().t() @ b[slot, 0].double().t()
                result[row, offset : offset + size] += change
            offset += size
    return result


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((got.double() - want).abs().max() / want.abs().max())


def mapping_of(chance: random.Random, *, prefill: bool) -> tuple[LoRAMapping, list[int]]:
    """A batch of requests, each without an adapter or with one of ids 1 to SLOTS, and the slot of each row."""
    ids = [chance.randint(0, SLOTS) for _ in range(chance.randint(1, 9))]
    tokens = [i for i in ids for _ in range(chance.randint(1, 20) if prefill else 1)]
    mapping = LoRAMapping(index_mapping=tuple(tokens), prompt_mapping=tuple(ids), is_prefill=prefill)
    return mapping, [i - 1 for i in tokens]


def check(seed: int) -> float:
    """One random batch through every kind of module, then again after slots got other content under the same ids."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    wrapper = RankExactWrapper(4096, max_batches=64, device=torch.device("cpu"))
    modules = {name: stacks_of(outputs) for name, outputs in MODULES.items()}
    head: Any = stacks_of((200,))
    worst = 0.0
    for _ in range(3):
        for slot in range(SLOTS):
            rank = chance.choice([0, 1, 4, 8, 16, 37, 64])
            for stacks in (*modules.values(), head):
                fill(stacks, slot, rank, chance)
        mapping, rows = mapping_of(chance, prefill=seed % 2 == 0)
        wrapper.update_metadata(mapping, [1, 2, 3, 4], SLOTS + 1, 200)
        for name, stacks in modules.items():
            x, y = torch.randn(len(rows), INPUTS), torch.randn(len(rows), sum(MODULES[name]))
            want = reference(y, x, stacks, rows)
            wrapper.add_lora_linear(y, x, *stacks, 1.0, MODULES[name])
            worst = max(worst, error(y, want))
        sampled = [i - 1 for i in mapping.prompt_mapping]
        x, y = torch.randn(len(sampled), INPUTS), torch.randn(len(sampled), 200)
        want = reference(y, x, head, sampled)
        wrapper.add_lora_logits(y, x, head[0][0], head[1][0], 1.0)
        worst = max(worst, error(y, want))
        worst = max(worst, check_embedding(wrapper, rows, head[1][0]))
    return worst


def check_embedding(wrapper: RankExactWrapper, rows: list[int], b: torch.Tensor) -> float:
    """The embedding's half product: x is what was looked up in A."""
    x, y = torch.randn(len(rows), MAX_RANK), torch.randn(len(rows), b.shape[2])
    want = y.double()
    for row, slot in enumerate(rows):
        if slot >= 0:
            want[row] += x[row].double() @ b[slot, 0].double().t()
    wrapper.add_lora_embedding(y, x, b, add_input=True)
    return error(y, want)


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
    print("RESULT " + json.dumps({"worst": max(check(seed) for seed in seeds)}))
