"""vLLM: its command line, its log, its routes for adapters, its metrics.

With the plugin `tuneplex-vllm`, adapters go by the plugin's routes, which tell what is in memory and really free it.
Every engine may lack the plugin, or run it beside a vLLM that it does not know; then vLLM's own routes do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tuneplex.engines.command import Command, Place
from tuneplex.engines.server import EngineMetrics, EngineServer, Reply
from tuneplex.engines.vllm import plugins
from tuneplex.errors import EngineError
from tuneplex.types import AdapterVersion, Base, PoolSpec, Residency, Route

__all__ = ["VllmDriver"]

_LOAD_TIMEOUT_S = 120.0
_UNLOAD_WAIT_S = 20.0
_NOT_FOUND = 404
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
    without_residency = "tuneplex-vllm is missing or does not know this vLLM: unloading adapters frees no memory"

    async def command(self, pool: PoolSpec, base: Base, place: Place, inherited: Mapping[str, str]) -> Command:
        """Start vLLM's API server on a Unix socket, with our plugin, its developer routes and its statistics off."""
        start = (pool.python, "-m", "vllm.entrypoints.openai.api_server", "--model", base.path)
        arguments = (*start, "--served-model-name", base.name, "--uds", place.socket, *_flags(pool), *pool.engine_args)
        env = {**_environment(pool, place, inherited), **pool.env}
        return Command(arguments, env | await _with_plugin(pool.python, env))

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

    async def check(self, server: EngineServer, timeout_s: float) -> None:
        """Ask `/health`, which also asks the engine core."""
        reply = await server.get("/health", timeout_s=timeout_s)
        if reply.status == _NOT_FOUND:
            raise EngineError("it has no /health, so it is not vLLM; for other servers the pool has `engine: openai`")
        if not reply.ok:
            raise EngineError(f"GET /health was answered by {reply.status}: it says that it cannot work")

    async def load(self, server: EngineServer, version: AdapterVersion) -> None:
        """Load an adapter at run time. What has its name, and is not it, is replaced where the plugin can tell."""
        body: dict[str, object] = {"name": version.id, "path": version.path, "replace": True}
        reply = await server.post("/v1/tuneplex/load", body, timeout_s=_LOAD_TIMEOUT_S)
        if _lacks_route(reply):
            body = {"lora_name": version.id, "lora_path": version.path}
            reply = await server.post("/v1/load_lora_adapter", body, timeout_s=_LOAD_TIMEOUT_S)
        # The name holds the content's digest, so what has it already is what was to be loaded.
        if not reply.ok and reply.code != "adapter_exists" and "already been loaded" not in reply.words:
            raise EngineError(reply.words)

    async def unload(self, server: EngineServer, name: str) -> None:
        """Unload an adapter when its requests have ended. Without the plugin the engine keeps a copy (vllm#54839)."""
        body: dict[str, object] = {"name": name, "running": "wait", "timeout_s": _UNLOAD_WAIT_S}
        reply = await server.post("/v1/tuneplex/unload", body, timeout_s=_UNLOAD_WAIT_S + _LOAD_TIMEOUT_S)
        if _lacks_route(reply):
            reply = await server.post("/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=_LOAD_TIMEOUT_S)
        if not reply.ok and reply.code != "adapter_not_found" and "cannot be found" not in reply.words:
            raise EngineError(reply.words)

    async def move(self, server: EngineServer, way: str, name: str) -> None:
        """By the plugin's route of that name."""
        reply = await server.post(f"/v1/tuneplex/{way}", {"name": name}, timeout_s=_LOAD_TIMEOUT_S)
        if not reply.ok:
            raise EngineError(reply.words)

    async def residency(self, server: EngineServer) -> Residency | None:
        """Read the plugin's list, which costs the engine nothing."""
        reply = await server.get("/v1/tuneplex/adapters")
        if _lacks_route(reply):
            return None
        if not reply.ok:
            raise EngineError(reply.words)
        try:
            told = msgspec.json.decode(reply.body, type=Residency)
        except msgspec.MsgspecError as error:
            raise EngineError(f"/v1/tuneplex/adapters is not a list of adapters: {error}") from error
        return None if told.slots is None else told

    async def metrics(self, server: EngineServer) -> EngineMetrics:
        """Read the few figures that control uses from `/metrics`."""
        reply = await server.get("/metrics")
        if not reply.ok:
            raise EngineError(reply.words)
        return read_metrics(reply.body.decode(errors="replace"))


def _lacks_route(reply: Reply) -> bool:
    """Whether there is no plugin behind one of its routes, or none that knows this vLLM."""
    return (reply.status == _NOT_FOUND and not reply.code) or reply.code == "not_supported"


def read_metrics(page: str) -> EngineMetrics:
    """The figures of a `/metrics` page, summed over vLLM's engine cores.

    Raises:
        EngineError: The page is not Prometheus text.
    """
    totals = dict.fromkeys(_METRICS, 0.0)
    cores = 0
    capacities = []
    # The page is long and mostly histograms; parsing only our lines costs a tenth.
    wanted = "\n".join(line for line in page.splitlines() if line.startswith((*_METRICS, _CAPACITY))) + "\n"
    try:
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
                cores += sample.name == "vllm:kv_cache_usage_perc"
                if sample.name == _CAPACITY:
                    capacities.append(_capacity(sample.labels))
    except ValueError as error:
        raise EngineError(f"/metrics is not a Prometheus page: {error}") from error
    totals["vllm:kv_cache_usage_perc"] /= max(cores, 1)
    figures = {field: totals[name] for name, field in _METRICS.items()}
    whole = {field: value if field in _PARTS else int(value) for field, value in figures.items()}
    # Each core has a cache of its own, and a request goes to any of them: what fits the largest can be answered.
    return EngineMetrics(**whole, kv_tokens=max(filter(None, capacities), default=None))  # type: ignore[arg-type]


def _capacity(labels: Mapping[str, str]) -> int | None:
    """Tokens that a KV cache can hold, as its configuration says; older versions tell only its blocks."""
    tokens, blocks, size = (labels.get(name, "") for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size"))
    if tokens.isdecimal():
        return int(tokens)
    return int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else None


_CAPACITY = "vllm:cache_config_info"

_METRICS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_use",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_preemptions_total": "preemptions",
    # Of these three histograms the sums will do, and one count, for vLLM fills all of them when a request ends.
    "vllm:request_queue_time_seconds_count": "timed",
    "vllm:request_queue_time_seconds_sum": "queue_s",
    "vllm:request_prefill_time_seconds_sum": "prefill_s",
    "vllm:request_decode_time_seconds_sum": "decode_s",
}
_PARTS = {"kv_use", "queue_s", "prefill_s", "decode_s"}  # these are no whole numbers


async def _with_plugin(python: str, env: Mapping[str, str]) -> dict[str, str]:
    """`VLLM_PLUGINS` with ours in it; nothing where ours is not installed, so that such an engine stays as it is."""
    given = env.get(plugins.VARIABLE)
    if given is not None:
        return {plugins.VARIABLE: plugins.with_ours(given.split(","))}
    found = await plugins.installed(python, env)
    return {plugins.VARIABLE: plugins.with_ours(sorted(found))} if plugins.OURS in found else {}


def _flags(pool: PoolSpec) -> Iterator[str]:
    yield "--disable-uvicorn-access-log"  # the gateway knows every request; a second list would only fill the disk
    if pool.max_loras:
        yield "--enable-lora"
        yield from ("--max-loras", str(pool.max_loras))
        yield from ("--max-cpu-loras", str(max(pool.max_loras, pool.max_cpu_loras)))
        yield from ("--max-lora-rank", str(pool.max_lora_rank))
    yield from ("--max-num-seqs", str(pool.concurrent))  # what is more waits in the gateways, where it waits fairly
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
