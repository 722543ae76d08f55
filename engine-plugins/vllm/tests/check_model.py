"""A script for the engine's Python: a whole model in vLLM with the plugin against PEFT, in float32. Prints JSON.

`PYTHON check_model.py BASE_DIR [ADAPTER_DIR ...]`. Beside the given adapters it makes random ones (alpha that is not
the rank, rsLoRA, q and v only, all linear modules, some layers only), runs all of them and the base in mixed batches
with chunked prefill, prefix-cache hits and more adapters than slots, loads one again under its id, and compares the
logits of every position with PEFT's for the same tokens. check_many.py does the same for adapters and batches that
Hypothesis makes up.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # several spin at their barriers when the machine is busy, which takes minutes
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

__all__ = ["Job", "Judge", "load_base", "run", "save_random", "start"]

QV = ["q_proj", "v_proj"]
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANDOM: dict[str, dict[str, Any]] = {
    "r4-alpha": {"r": 4, "lora_alpha": 10, "target_modules": QV},
    "r37-rslora": {"r": 37, "lora_alpha": 16, "use_rslora": True, "target_modules": ALL_LINEAR},
    "r64-some-layers": {
        "r": 64,
        "lora_alpha": 64,
        "target_modules": ["k_proj", "up_proj"],
        "layers_to_transform": [3, 17],
    },
}
BOS = 1
TOP = 20


@dataclass(frozen=True)
class Job:
    """One request.

    Attributes:
        name: The adapter; None for the base.
        prompt: Its tokens.
        new: How many tokens to generate.
        scored: Whether the prompt's positions are compared as well. vLLM then reads no prefix cache for it.
    """

    name: str | None
    prompt: tuple[int, ...]
    new: int = 6
    scored: bool = True

    def params(self) -> Any:  # noqa: ANN401 - vLLM's types are not at hand for the linter
        """What vLLM is asked for."""
        prompt = 1 if self.scored else None
        return SamplingParams(
            max_tokens=self.new, temperature=0, ignore_eos=True, logprobs=TOP, prompt_logprobs=prompt, detokenize=False
        )


def load_base(base_dir: str | Path) -> Any:  # noqa: ANN401 - the same
    """The base in float32."""
    return AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32).eval()


def save_random(base: Any, out: Path, config: dict[str, Any]) -> Any:  # noqa: ANN401 - the same
    """Save a random adapter whose effect does not depend on rank and alpha, by PEFT; returns the base as it was."""
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **config))
    with torch.no_grad():
        for module in model.modules():
            if not isinstance(module, LoraLayer):
                continue
            spread = 0.5 / module.scaling["default"] / module.r["default"] ** 0.5
            if "default" in module.lora_B:
                module.lora_B["default"].weight.normal_(std=spread)
            else:
                module.lora_embedding_A["default"].normal_()
                module.lora_embedding_B["default"].normal_(std=spread / 10)
    model.save_pretrained(str(out), save_embedding_layers=False)
    return model.unload()


def start(base_dir: str | Path, **options: Any) -> Any:  # noqa: ANN401 - the same
    """An engine in this process that reports logits, not probabilities; in float32 unless another dtype is given."""
    return LLM(
        str(base_dir),
        enable_lora=True,
        max_model_len=256,
        logprobs_mode="raw_logits",
        distributed_executor_backend="uni",
        **{"dtype": "float32"} | options,
    )


def run(llm: Any, jobs: list[Job], requests: dict[str, LoRARequest]) -> list[Any]:  # noqa: ANN401 - the same
    """All jobs in one go."""
    return llm.generate(
        [{"prompt_token_ids": list(job.prompt)} for job in jobs],
        [job.params() for job in jobs],
        lora_request=[requests[job.name] if job.name else None for job in jobs],
        use_tqdm=False,
    )


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:  # noqa: ANN401 - the same
    """The logits of every position, in float64."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0].double()


@dataclass
class Judge:
    """Holds vLLM's outputs against PEFT's, and adds up what it found.

    Attributes:
        base: The base in float32, without an adapter.
        moved: How much an adapter must move at least one logit, relative to the largest one, to prove anything.
        worst: For each adapter the largest difference of logits, relative to the largest logit of the position.
        still: Adapters that moved no logit that much.
        cached: Prompt tokens that came from the prefix cache.
    """

    base: Any
    moved: float = 1e-3
    worst: dict[str, float] = field(default_factory=dict)
    still: set[str] = field(default_factory=set)
    cached: int = 0

    def see(self, name: str, path: str | Path | None, outputs: list[Any]) -> None:
        """Compare the outputs of one adapter, or of the base when there is no path."""
        plain = [logits_of(self.base, ids_of(output)) for output in outputs]
        if path is None:
            self._compare(name, outputs, plain)
            return
        model = PeftModel.from_pretrained(self.base, str(path)).eval()
        adapted = [logits_of(model, ids_of(output)) for output in outputs]
        self.base = model.unload()
        self._compare(name, outputs, adapted)
        pairs = zip(plain, adapted, strict=True)
        if max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs) < self.moved:
            self.still.add(name)

    def _compare(self, name: str, outputs: list[Any], expected: list[torch.Tensor]) -> None:
        for output, logits in zip(outputs, expected, strict=True):
            self.worst[name] = max(self.worst.get(name, 0.0), difference(output, logits))
            self.cached += output.num_cached_tokens or 0

    def result(self) -> dict[str, Any]:
        """As JSON."""
        return {"worst": self.worst, "still": sorted(self.still), "cached": self.cached}


def ids_of(output: Any) -> list[int]:  # noqa: ANN401 - the same
    """Prompt and answer, without the last token, which predicts nothing."""
    return [*output.prompt_token_ids, *output.outputs[0].token_ids][:-1]


def difference(output: Any, logits: torch.Tensor) -> float:  # noqa: ANN401 - the same
    """The largest difference of logits, relative to the largest one of its position."""
    prompt = output.prompt_logprobs[1:] if output.prompt_logprobs else [{}] * (len(output.prompt_token_ids) - 1)
    positions = [*prompt, *output.outputs[0].logprobs]
    worst = 0.0
    for position, given in enumerate(positions):
        scale = float(logits[position].abs().max())
        for token, entry in given.items():
            off = abs(entry.logprob - float(logits[position, token])) / scale
            worst = max(worst, off if off == off else float("inf"))  # noqa: PLR0124 - NaN is as wrong as can be
    return worst


def prompts() -> list[tuple[int, ...]]:
    """A short prompt and one that is longer than a step's token budget.

    They begin as chats do. Without that token the model looks for another one to rest its attention on, and the first
    positions are so badly conditioned that PEFT alone differs by 1e-4 between a prompt and the same prompt cut short.
    """
    generator = torch.Generator().manual_seed(1)
    return [(BOS, *torch.randint(100, 40000, (length,), generator=generator).tolist()) for length in (9, 150)]


def main(base_dir: str, given: list[str]) -> dict[str, Any]:
    """Run everything: first scored, then again in another order out of the prefix cache."""
    with tempfile.TemporaryDirectory() as scratch:
        torch.manual_seed(0)
        base, paths = load_base(base_dir), {Path(path).name: path for path in given}
        for name, config in RANDOM.items():
            paths[name] = str(Path(scratch) / name)
            base = save_random(base, Path(paths[name]), config)
        llm = start(
            base_dir,
            max_lora_rank=64,
            max_loras=3,
            max_cpu_loras=4,
            max_num_seqs=6,
            max_num_batched_tokens=96,
            enable_prefix_caching=True,
        )
        requests = {name: LoRARequest(name, i, path) for i, (name, path) in enumerate(paths.items(), start=1)}
        first = [Job(name, prompt) for name in (None, *paths) for prompt in prompts()]
        again = [Job(name, prompts()[1], new=3, scored=False) for name in (*reversed(paths), None)]
        jobs = [
            *zip(first, run(llm, first, requests), strict=True),
            *zip(again, run(llm, again, requests), strict=True),
        ]
        reloaded = reload(llm, Path(scratch) / "changing", paths["r4-alpha"], paths["r37-rslora"])
        return hold(Judge(base), paths, jobs, reloaded)


def reload(llm: Any, changing: Path, one: str, other: str) -> list[Any]:  # noqa: ANN401 - the same
    """Outputs of an id whose weights were `one`'s and then, with the same path, `other`'s."""
    jobs = [Job("changing", prompt) for prompt in prompts()]
    request = LoRARequest("changing", 99, str(changing))
    shutil.copytree(one, changing)
    run(llm, jobs, {"changing": request})
    shutil.copytree(other, changing, dirs_exist_ok=True)
    llm.reset_prefix_cache()
    llm.llm_engine.add_lora(LoRARequest("changing", 99, str(changing), load_inplace=True))
    return run(llm, jobs, {"changing": request})


def hold(judge: Judge, paths: dict[str, str], jobs: list[tuple[Job, Any]], reloaded: list[Any]) -> dict[str, Any]:
    """Hold every output against PEFT's model of the same adapter."""
    judge.see("base", None, [output for job, output in jobs if job.name is None])
    for name, path in paths.items():
        judge.see(name, path, [output for job, output in jobs if job.name == name])
    judge.see("reloaded", paths["r37-rslora"], reloaded)
    return judge.result()


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1], sys.argv[2:])))
