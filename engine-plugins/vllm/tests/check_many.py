"""A script for the engine's Python: adapters and batches that Hypothesis makes up, in vLLM and in PEFT. Prints JSON.

`PYTHON check_many.py BASE_DIR PROFILE EXAMPLES [--random]`. The base is cut to its first layers, which keeps every
kind of module and makes an example take seconds. A profile is an engine's settings; all examples of a run share the
engine, so adapters come and go through its slots. The profile `ranks` runs adapters of the ranks 1 to EXAMPLES instead.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from check_model import (
    ALL_LINEAR,
    BOS,
    QV,
    Job,
    Judge,
    load_base,
    run,
    save_random,
    start,
)  # first: it sets the environment

# ruff: isort: split
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from vllm.lora.request import LoRARequest

LAYERS = 3
MAX_RANK = 128
TOLERANCE, ROUGHLY = 1e-4, 0.03
PROFILES: dict[str, dict[str, Any]] = {
    # Prompts come in pieces of a step's budget, and many of them out of the prefix cache; few slots, few copies.
    "chunked": {"max_num_batched_tokens": 32, "max_num_seqs": 8, "max_loras": 3, "max_cpu_loras": 4},
    # Fewer KV blocks than the requests need: some are thrown out and start anew, perhaps in another slot.
    "scarce": {"num_gpu_blocks_override": 10, "max_num_seqs": 8, "max_loras": 2, "max_cpu_loras": 2},
    # Everything in one step.
    "wide": {"max_num_batched_tokens": 2048, "max_num_seqs": 32, "max_loras": 8, "max_cpu_loras": 8},
}
PROFILES["ranks"] = PROFILES["wide"]
# The native kernel computes bfloat16 only. The model itself is then exact to percents, and adapters move logits by
# tens of them: this shows that each row gets its own adapter in every module, not how well it is rounded.
PROFILES["bfloat16"] = PROFILES["chunked"] | {"dtype": "bfloat16"}
Config = dict[str, Any]


@dataclass
class Bench:
    """An engine, PEFT's model of the same base, and the adapters that were made.

    Attributes:
        directory: Where adapters are written.
        tolerance: What a logit may be off, relative to the largest one of its position.
        adapters: How many were compared.
    """

    llm: Any
    judge: Judge
    directory: Path
    tolerance: float = TOLERANCE
    adapters: int = 0
    _ids: Iterator[int] = field(default_factory=lambda: count(1))

    def make(self, config: Config, *, instead_of: LoRARequest | None = None) -> LoRARequest:
        """A new adapter; perhaps under the id and name of another one, whose weights it replaces."""
        number = next(self._ids)
        path = self.directory / f"a{number}"
        self.judge.base = save_random(self.judge.base, path, config)
        if instead_of is None:
            return LoRARequest(path.name, number, str(path))
        fields = (instead_of.lora_name, instead_of.lora_int_id, str(path))
        self.llm.llm_engine.add_lora(LoRARequest(*fields, load_inplace=True))
        return LoRARequest(*fields)

    def compare(self, jobs: list[Job], requests: dict[str, LoRARequest]) -> None:
        """Run a batch and hold each answer against PEFT's."""
        done = list(zip(jobs, run(self.llm, jobs, requests), strict=True))
        for name in dict.fromkeys(job.name for job in jobs):
            path = requests[name].lora_path if name else None
            self.adapters += name is not None
            self.judge.see(Path(path).name if path else "base", path, [out for job, out in done if job.name == name])
        worst = {name: off for name, off in self.judge.worst.items() if off > self.tolerance}
        self.judge.worst = {"all": max(self.judge.worst.values())}
        if worst:
            raise AssertionError(f"differs from PEFT: {worst}")

    def result(self) -> dict[str, Any]:
        """What was found, and whether the profile did what it is for."""
        metrics = {metric.name: getattr(metric, "value", 0) for metric in self.llm.get_metrics()}
        preempted = metrics["vllm:num_preemptions"]
        return self.judge.result() | {"adapters": self.adapters, "preempted": preempted}


def cut(base_dir: str, out: Path) -> Any:  # noqa: ANN401 - transformers' types are not at hand for the linter
    """The base's first layers as a model of their own, in float32; written to `out` as well."""
    base = load_base(base_dir)
    base.model.layers = nn.ModuleList(base.model.layers[:LAYERS])
    base.config.num_hidden_layers = LAYERS
    base.save_pretrained(out)
    return base


def tokens(seed: int, length: int) -> tuple[int, ...]:
    """A prompt; one seed's prompts begin alike."""
    generator = torch.Generator().manual_seed(seed)
    return (BOS, *torch.randint(100, 40000, (256,), generator=generator)[:length].tolist())


PLACES = [
    f"layers.{layer}.{'self_attn' if name[0] in 'qkvo' else 'mlp'}.{name}"
    for layer in range(LAYERS)
    for name in ALL_LINEAR
]
RANKS = st.sampled_from([1, 8, 16, 64, MAX_RANK]) | st.integers(1, MAX_RANK)
TARGETS = st.one_of(
    st.just(QV),
    st.just(ALL_LINEAR),
    st.lists(st.sampled_from(PLACES), min_size=1, max_size=8, unique=True),  # modules missing in some layers
    st.just([*ALL_LINEAR, "lm_head"]),
    st.just([*QV, "embed_tokens"]),
)
CONFIGS = st.fixed_dictionaries(
    {"r": RANKS, "lora_alpha": st.integers(1, 256), "target_modules": TARGETS},
    optional={
        "use_rslora": st.booleans(),
        # No module matches two of them: which one counts then depends on their order, which PEFT does not save.
        "rank_pattern": st.dictionaries(st.sampled_from([*QV, "layers.1.self_attn.k_proj", "up_proj"]), RANKS),
        "alpha_pattern": st.dictionaries(st.sampled_from(["v_proj", "layers.0.mlp.down_proj"]), st.integers(1, 64)),
    },
)


@st.composite
def batches(draw: st.DrawFn, names: list[str]) -> list[Job]:
    """Requests for some of the adapters and for the base, long and short ones, some with a common beginning."""
    scored = not draw(st.booleans())
    job = st.builds(
        Job,
        name=st.sampled_from([None, *names, *names]),
        prompt=st.builds(tokens, st.integers(1, 3), st.integers(1, 12) | st.integers(1, 120)),
        new=st.integers(1, 8),
        scored=st.just(scored),
    )
    return draw(st.lists(job, min_size=1, max_size=10))


def example(bench: Bench, data: st.DataObject) -> None:
    """Some adapters and some batches; between batches an adapter may be replaced under its id."""
    torch.manual_seed(data.draw(st.integers(0, 2**32 - 1), "seed"))
    drawn = data.draw(st.lists(CONFIGS, min_size=1, max_size=4), "adapters")
    requests = {f"adapter {number}": bench.make(config) for number, config in enumerate(drawn)}
    for _ in range(data.draw(st.integers(1, 2), "batches")):
        bench.compare(data.draw(batches(list(requests)), "batch"), requests)
        if data.draw(st.booleans(), "replace the first"):
            name = next(iter(requests))
            requests[name] = bench.make(data.draw(CONFIGS, "replacement"), instead_of=requests[name])


def run_examples(bench: Bench, examples: int, *, fixed: bool) -> None:
    """That many examples. Nothing is made smaller after a failure: each try takes seconds."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=fixed,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        example(bench, data)

    check()


def run_growing(bench: Bench) -> None:
    """Requests that all fit when they start, and all need one more KV block a few tokens later."""
    requests = {f"adapter {rank}": bench.make({"r": rank, "target_modules": ALL_LINEAR}) for rank in (5, 64)}
    bench.compare([Job(name, tokens(seed, 61), new=6) for seed in range(4) for name in (*requests, None)], requests)


def run_ranks(bench: Bench, last: int) -> None:
    """An adapter of all linear modules for every rank, eight in a batch."""
    for first in range(1, last + 1, 8):
        ranks = range(first, min(first + 8, last + 1))
        made = [bench.make({"r": rank, "lora_alpha": 2 * rank + 1, "target_modules": ALL_LINEAR}) for rank in ranks]
        requests = {request.lora_name: request for request in made}
        bench.compare([Job(name, tokens(first, 7), new=3) for name in requests], requests)


def main(base_dir: str, profile: str, examples: int, *, fixed: bool) -> dict[str, Any]:
    """Run a profile."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        rough = profile == "bfloat16"
        judge = Judge(cut(base_dir, Path(scratch) / "base"), moved=2 * ROUGHLY if rough else 1e-3)
        llm = start(
            Path(scratch) / "base",
            max_lora_rank=MAX_RANK,
            block_size=32,
            skip_tokenizer_init=True,
            disable_log_stats=False,
            **PROFILES[profile],
        )
        bench = Bench(llm, judge, Path(scratch), ROUGHLY if rough else TOLERANCE)
        if profile == "ranks":
            run_ranks(bench, examples)
        else:
            run_growing(bench)
            run_examples(bench, examples, fixed=fixed)
        return bench.result()


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), fixed="--random" not in sys.argv)))
