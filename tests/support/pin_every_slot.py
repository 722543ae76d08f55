"""A script for the engine's Python: pin as many adapters as there are slots, then ask for another. Prints JSON.

`PYTHON pin_every_slot.py BASE_DIR ADAPTER_DIR ...`, with one adapter more than there are slots. All of it goes through
the engine client that vLLM's API server uses. VLLM_PLUGINS says whether the plugin takes part.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM


def outcome(error: Exception) -> str:
    """How an error is reported."""
    return f"{type(error).__name__}: {error}"


async def pin(engine: Any, request: LoRARequest) -> str:  # noqa: ANN401 - vLLM's types are not at hand here
    """Load and pin one adapter; what came of it."""
    await engine.add_lora(request)
    try:
        return str(await engine.pin_lora(request.lora_int_id))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return outcome(error)


async def ask(engine: Any, request: LoRARequest) -> str:  # noqa: ANN401 - the same
    """Ask for four tokens; what came of it."""
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    try:
        last = [out async for out in engine.generate("The river", params, request.lora_name, lora_request=request)][-1]
    except Exception as error:  # noqa: BLE001 - the same
        return outcome(error)
    return str(last.outputs[0].text)


async def main(base: str, paths: list[str]) -> dict[str, Any]:
    """Pin all but the last, then ask for the last."""
    slots = len(paths) - 1
    arguments = AsyncEngineArgs(
        model=base,
        enforce_eager=True,
        enable_lora=True,
        max_loras=slots,
        max_cpu_loras=len(paths),
        max_lora_rank=8,
        max_model_len=128,
        max_num_seqs=4,
    )
    engine = AsyncLLM.from_engine_args(arguments)
    requests = [LoRARequest(f"lora{number}", number, path) for number, path in enumerate(paths, start=1)]
    try:
        pins = [await pin(engine, request) for request in requests[:-1]]
        answer = await ask(engine, requests[-1])
        return {"pins": pins, "answer": answer, "dead": bool(engine.errored)}
    finally:
        engine.shutdown()


if __name__ == "__main__":
    print("RESULT " + json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2:]))), flush=True)  # noqa: T201 - the result
