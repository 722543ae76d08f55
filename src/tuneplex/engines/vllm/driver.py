"""vLLM: its command line, its log, its routes for adapters, its metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from tuneplex.engines.command import Command, Place
from tuneplex.engines.server import EngineMetrics, EngineServer
from tuneplex.errors import EngineError
from tuneplex.types import AdapterVersion, Base, PoolSpec, Route

__all__ = ["VllmDriver"]

_LOAD_TIMEOUT_S = 120.0
_KV_FLAG = "--kv-cache-memory-bytes"
_KV_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"

# What a line of the log tells about the start, the later the further. Checked against a real log by a test.
_PHASES = (
    (re.compile(r"non-default args"), "reading the model's configuration"),
    (re.compile(r"Initializing a V1 LLM engine"), "starting the engine"),
    (re.compile(r"Starting to load model|Loading (weights|safetensors)"), "loading weights"),
    (re.compile(r"Loading weights took|Model loading took"), "weights are loaded"),
    (re.compile(r"KV cache|# (CPU|GPU) blocks"), "making room for the KV cache"),
    (re.compile(r"torch\.compile|Compiling a graph|[Ww]arming up|Capturing CUDA graphs"), "compiling and warming up"),
    (re.compile(r"init engine .* took"), "starting the API server"),
    (re.compile(r"Starting vLLM (API )?server|Application startup complete"), "serving"),
)


class VllmDriver:
    """vLLM's OpenAI server, version 0.11 or later."""

    loads_adapters = True
    routes = frozenset(Route)

    def command(self, pool: PoolSpec, base: Base, place: Place, inherited: Mapping[str, str]) -> Command:
        """Start vLLM's API server on a Unix socket, with its developer routes and its usage statistics off."""
        start = (pool.python, "-m", "vllm.entrypoints.openai.api_server", "--model", base.path)
        arguments = (*start, "--served-model-name", base.name, "--uds", place.socket, *_flags(pool), *pool.engine_args)
        return Command(arguments, {**_environment(pool, place, inherited), **pool.env})

    def phase(self, log: str) -> str:
        """What the last telling line of the log says."""
        for line in reversed(log.splitlines()):
            for pattern, words in reversed(_PHASES):
                if pattern.search(line):
                    return words
        return "starting Python"

    def engine_name(self, version: AdapterVersion) -> str:
        """With the content's digest in it, so that a new content never meets an old one's KV cache (vllm#42125)."""
        return version.id

    async def healthy(self, server: EngineServer) -> bool:
        """Ask `/health`, which also asks the engine core."""
        return (await server.get("/health")).ok

    async def load(self, server: EngineServer, version: AdapterVersion) -> None:
        """Load an adapter at run time."""
        body = {"lora_name": version.id, "lora_path": version.path}
        reply = await server.post("/v1/load_lora_adapter", body, timeout_s=_LOAD_TIMEOUT_S)
        if not reply.ok and "already been loaded" not in reply.words:
            raise EngineError(reply.words)

    async def unload(self, server: EngineServer, name: str) -> None:
        """Take an adapter's name away from the front end; the engine keeps its copy a while (vllm#54839)."""
        reply = await server.post("/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=_LOAD_TIMEOUT_S)
        if not reply.ok and "cannot be found" not in reply.words:
            raise EngineError(reply.words)

    async def metrics(self, server: EngineServer) -> EngineMetrics:
        """Read the few figures that control uses from `/metrics`."""
        reply = await server.get("/metrics")
        if not reply.ok:
            raise EngineError(reply.words)
        return read_metrics(reply.body.decode(errors="replace"))


def read_metrics(page: str) -> EngineMetrics:
    """The figures of a `/metrics` page, summed over vLLM's engine cores.

    Raises:
        EngineError: The page is not Prometheus text.
    """
    totals = dict.fromkeys(_METRICS, 0.0)
    cores = 0
    # The page is long and mostly histograms; parsing only our lines costs a tenth.
    wanted = "\n".join(line for line in page.splitlines() if line.startswith(tuple(_METRICS))) + "\n"
    try:
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
                cores += sample.name == "vllm:kv_cache_usage_perc"
    except ValueError as error:
        raise EngineError(f"/metrics is not a Prometheus page: {error}") from error
    totals["vllm:kv_cache_usage_perc"] /= max(cores, 1)
    figures = {field: totals[name] for name, field in _METRICS.items()}
    return EngineMetrics(**{field: value if field == "kv_use" else int(value) for field, value in figures.items()})  # type: ignore[arg-type]


_METRICS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_use",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_preemptions_total": "preemptions",
}


def _flags(pool: PoolSpec) -> Iterator[str]:
    yield "--disable-uvicorn-access-log"  # the gateway knows every request; a second list would only fill the disk
    if pool.max_loras:
        yield "--enable-lora"
        yield from ("--max-loras", str(pool.max_loras))
        yield from ("--max-cpu-loras", str(max(pool.max_loras, pool.max_cpu_loras)))
        yield from ("--max-lora-rank", str(pool.max_lora_rank))
    if pool.max_model_len is not None:
        yield from ("--max-model-len", str(pool.max_model_len))
    if pool.kv_cache_bytes is not None:
        yield from (_KV_FLAG, str(pool.kv_cache_bytes))
    if not pool.gpus:
        yield "--enforce-eager"  # compiled for the CPU and without adapters, vLLM 0.32 answers nonsense
    if pool.gpus > 1:
        yield from ("--tensor-parallel-size", str(pool.gpus))


def _environment(pool: PoolSpec, place: Place, inherited: Mapping[str, str]) -> dict[str, str]:
    env = {name: value for name, value in inherited.items() if name not in {"VLLM_SERVER_DEV_MODE", _KV_VARIABLE}}
    env |= {
        "VLLM_API_KEY": place.secret,  # not on the command line, which every user of the machine can read
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_HOST_IP": "127.0.0.1",  # otherwise it looks for its address by way of a public name server's
        "PYTHONUNBUFFERED": "1",
    }
    if pool.gpus:
        return env | {"CUDA_VISIBLE_DEVICES": ",".join(place.gpus)}
    if place.cores:
        env["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, place.cores))
    # The variable would win over the flag, so it is set only where nobody said anything.
    if pool.kv_cache_bytes is None and not any(argument.startswith(_KV_FLAG) for argument in pool.engine_args):
        env[_KV_VARIABLE] = inherited.get(_KV_VARIABLE, "1")
    return env
