"""A script for the engine's Python: a whole model in vLLM with the plugin against PEFT, in float32. Prints JSON.

`PYTHON check_model.py BASE_DIR [ADAPTER_DIR ...]`. Beside the given adapters it makes random ones (alpha that is not
the rank, rsLoRA, q and v only, all linear modules, some layers only), runs all of them and the base in mixed batches
with chunked prefill and prefix caching, and compares what every position predicts with what PEFT predicts for the same
tokens.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
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
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANDOM = {
    "r4-alpha": {"r": 4, "lora_alpha": 10, "target_modules": ["q_proj", "v_proj"]},
    "r37-rslora": {"r": 37, "lora_alpha": 16, "use_rslora": True, "target_modules": ALL_LINEAR},
    "r64-some-layers": {
        "r": 64,
        "lora_alpha": 64,
        "target_modules": ["k_proj", "up_proj"],
        "layers_to_transform": [3, 17],
    },
}
NEW_TOKENS = 6
TOP = 20


def make_random(base_dir: str, out: Path) -> dict[str, str]:
    """Adapters with random A and B, saved by PEFT."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    paths = {}
    for name, config in RANDOM.items():
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **config))
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if "lora_B" in key:
                    weight.normal_(std=0.02)
        model.save_pretrained(str(out / name))
        base = model.unload()
        paths[name] = str(out / name)
    return paths


def prompts() -> list[list[int]]:
    """A short prompt and one that is longer than a step's token budget."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(100, 40000, (length,), generator=generator).tolist() for length in (9, 150)]


def run(llm: Any, requests: list[LoRARequest | None]) -> list[Any]:  # noqa: ANN401 - vLLM's types are not at hand for the linter
    """Every request with every prompt, all in one go."""
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, logprobs=TOP, prompt_logprobs=1)
    jobs = [(request, prompt) for request in requests for prompt in prompts()]
    return llm.generate(
        [{"prompt_token_ids": prompt} for _, prompt in jobs],
        params,
        lora_request=[request for request, _ in jobs],
        use_tqdm=False,
    )


def difference(output: Any, model: Any) -> float:  # noqa: ANN401 - the same
    """The largest difference of log-probabilities, relative to the largest logit of the position."""
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    logprobs = logits.log_softmax(-1)
    positions = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    worst = 0.0
    for position, given in enumerate(positions):
        scale = float(logits[position].abs().max())
        for token, entry in given.items():
            worst = max(worst, abs(entry.logprob - float(logprobs[position, token])) / scale)
    return worst


def main(base_dir: str, given: list[str]) -> dict[str, float]:
    """Run everything; the result is the largest relative difference for each adapter."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = {Path(path).name: path for path in given} | make_random(base_dir, Path(scratch))
        changing = Path(scratch) / "changing"
        shutil.copytree(paths["r4-alpha"], changing)
        llm = LLM(
            base_dir,
            dtype="float32",
            enable_lora=True,
            max_lora_rank=64,
            max_loras=3,
            max_cpu_loras=16,
            max_model_len=256,
            max_num_seqs=6,
            max_num_batched_tokens=96,
            enable_prefix_caching=True,
            distributed_executor_backend="uni",
        )
        requests = [None] + [LoRARequest(name, i + 1, path) for i, (name, path) in enumerate(paths.items())]
        outputs = {"first": run(llm, requests), "again": run(llm, requests[::-1])[::-1]}
        run(llm, [LoRARequest("changing", 99, str(changing))])
        shutil.copytree(paths["r37-rslora"], changing, dirs_exist_ok=True)
        llm.reset_prefix_cache()
        reloaded = run(llm, [LoRARequest("changing", 99, str(changing), load_inplace=True)])
        return compare(base_dir, paths, outputs, reloaded)


def compare(
    base_dir: str, paths: dict[str, str], outputs: dict[str, list[Any]], reloaded: list[Any]
) -> dict[str, float]:
    """Hold every output against PEFT's model of the same adapter."""
    base = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32).eval()
    each = len(prompts())
    result = {"base": max(difference(output, base) for run_ in outputs.values() for output in run_[:each])}
    for index, (name, path) in enumerate(paths.items(), start=1):
        model = PeftModel.from_pretrained(base, path).eval()
        mine = slice(index * each, (index + 1) * each)
        result[name] = max(difference(output, model) for run_ in outputs.values() for output in run_[mine])
        if name == "r37-rslora":
            result["reloaded"] = max(difference(output, model) for output in reloaded)
        base = model.unload()
    return result


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1], sys.argv[2:])))
