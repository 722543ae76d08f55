"""vLLM's driver: the command line, the phases of its log, its metrics, its errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tuneplex.engines.command import Place
from tuneplex.engines.driver import driver_for
from tuneplex.engines.server import EngineMetrics, Reply
from tuneplex.engines.vllm.driver import VllmDriver, read_metrics
from tuneplex.errors import EngineError, EngineStartError
from tuneplex.types import Base, PoolSpec

DATA = Path(__file__).parents[1] / "data"
BASE = Base("base", "/models/base")
PLACE = Place(cores=(0, 1, 2), gpus=(), socket="/run/e.sock", secret="a-random-key")


def command(
    pool: PoolSpec, inherited: dict[str, str] | None = None, place: Place = PLACE
) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment for a pool; its Python is not asked for plugins."""
    made = asyncio.run(VllmDriver().command(pool, BASE, place, {"VLLM_PLUGINS": "", **(inherited or {})}))
    return list(made.arguments), made.env


def option(arguments: list[str], name: str) -> str:
    """The value after an option."""
    return arguments[arguments.index(name) + 1]


def test_the_command_line() -> None:
    """The pool's settings become vLLM's flags, and the pool's own arguments come last, so that they win."""
    pool = PoolSpec(
        "p", python="/v/bin/python", max_loras=2, max_cpu_loras=6, max_lora_rank=64, max_model_len=2048,
        concurrent=24, engine_args=("--dtype", "float32"),
    )  # fmt: skip
    arguments, _env = command(pool)
    assert arguments[:3] == ["/v/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert option(arguments, "--model") == "/models/base"
    assert option(arguments, "--served-model-name") == "base"
    assert option(arguments, "--uds") == "/run/e.sock"
    assert "--enable-lora" in arguments
    assert option(arguments, "--max-loras") == "2"
    assert option(arguments, "--max-cpu-loras") == "6"
    assert option(arguments, "--max-lora-rank") == "64"
    assert option(arguments, "--max-model-len") == "2048"
    assert option(arguments, "--max-num-seqs") == "24"
    assert arguments[-2:] == ["--dtype", "float32"]


def test_the_key_is_not_on_the_command_line() -> None:
    """Everybody on the machine can read command lines, so the key travels in the environment."""
    arguments, env = command(PoolSpec("p", python="python"))
    assert not any("a-random-key" in argument for argument in arguments)
    assert env["VLLM_API_KEY"] == "a-random-key"


def test_nothing_calls_home() -> None:
    """Usage statistics, hub telemetry, hub look-ups and developer routes are off, whatever our environment says."""
    _arguments, env = command(PoolSpec("p", python="python"), {"VLLM_SERVER_DEV_MODE": "1", "PATH": "/bin"})
    assert env["VLLM_NO_USAGE_STATS"] == env["DO_NOT_TRACK"] == "1"
    assert env["HF_HUB_OFFLINE"] == env["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert env["VLLM_HOST_IP"] == "127.0.0.1"
    assert env["PATH"] == "/bin"
    assert "VLLM_SERVER_DEV_MODE" not in env


def test_the_pool_has_the_last_word_on_the_environment() -> None:
    """A variable from the fleet file replaces ours."""
    _arguments, env = command(PoolSpec("p", python="python", env={"VLLM_CPU_OMP_THREADS_BIND": "7"}))
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "7"


def test_the_kv_cache_on_the_cpu() -> None:
    """On the CPU one GiB is the default, and a size in the fleet file becomes the flag that the variable would mask."""
    _arguments, env = command(PoolSpec("p", python="python"))
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    arguments, env = command(PoolSpec("p", python="python", kv_cache_bytes=2**29), {"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert option(arguments, "--kv-cache-memory-bytes") == str(2**29)
    assert "VLLM_CPU_KVCACHE_SPACE" not in env


@pytest.mark.parametrize("gpus,eager", [(0, True), (1, False)])
def test_the_model_is_not_compiled_on_the_cpu(gpus: int, eager: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    """Compiled for the CPU and without adapters, this vLLM answers nonsense; on a GPU it may compile."""
    arguments, _env = command(PoolSpec("p", python="python", gpus=gpus))
    assert ("--enforce-eager" in arguments) is eager


def test_gpus() -> None:
    """A replica sees its GPUs only, and splits the model over them."""
    arguments, env = command(PoolSpec("p", python="python", gpus=2), place=Place(gpus=("2", "3")))
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert option(arguments, "--tensor-parallel-size") == "2"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in env
    assert "VLLM_CPU_KVCACHE_SPACE" not in env


def test_the_phases_of_a_real_start() -> None:
    """Reading a real log line by line, the phases come in their order and none comes back."""
    lines = (DATA / "vllm-0.32-start.log").read_text().splitlines()
    driver, phases = VllmDriver(), ["starting Python"]
    for end in range(len(lines) + 1):
        phase = driver.phase("\n".join(lines[:end]))
        if phase != phases[-1]:
            phases.append(phase)
    assert phases == [
        "starting Python",
        "reading the model's configuration",
        "starting the engine",
        "loading weights",
        "weights are loaded",
        "making room for the KV cache",
        "starting the API server",
        "serving",
    ]


def test_the_figures_of_a_real_page() -> None:
    """The few figures that control uses are found in a real metrics page."""
    figures = read_metrics((DATA / "vllm-0.32-metrics.txt").read_text())
    assert figures == EngineMetrics(
        running=3, waiting=2, kv_use=0.25, prompt_tokens=12345, generation_tokens=678, preemptions=0
    )


def test_the_times_of_requests_that_have_ended() -> None:
    """Of the histograms of queue, prefill and decode the sums are read, in seconds, and one count for all of them."""
    page = "".join(
        f'vllm:request_{part}_time_seconds_bucket{{engine="{core}",le="0.3"}} 1.0\n'
        f'vllm:request_{part}_time_seconds_count{{engine="{core}"}} 2.0\n'
        f'vllm:request_{part}_time_seconds_sum{{engine="{core}"}} {sum_s}\n'
        for core in (0, 1)
        for part, sum_s in (("queue", 0.5), ("prefill", 0.25), ("decode", 1.5))
    )
    assert read_metrics(page) == EngineMetrics(timed=4, queue_s=1.0, prefill_s=0.5, decode_s=3.0)


def test_the_figures_of_several_engine_cores() -> None:
    """With data parallelism, counts add up and the use of the KV cache is the mean."""
    page = "".join(
        f'vllm:num_requests_running{{engine="{core}"}} 2\nvllm:kv_cache_usage_perc{{engine="{core}"}} {use}\n'
        for core, use in ((0, 0.5), (1, 0.7))
    )
    figures = read_metrics(page)
    assert figures.running == 4
    assert figures.kv_use == pytest.approx(0.6)


@pytest.mark.parametrize(
    "labels, tokens",
    [
        (('kv_cache_size_tokens="4096",num_gpu_blocks="300",block_size="16"',), 4096),
        (('num_gpu_blocks="300",block_size="16"',), 4800),
        (('kv_cache_size_tokens="None",num_gpu_blocks="300",block_size="16"',), 4800),
        (('num_gpu_blocks="None",block_size="16"',), None),
        (('engine="0",num_gpu_blocks="2",block_size="16"', 'engine="1",num_gpu_blocks="3",block_size="16"'), 48),
    ],
)
def test_the_size_of_the_kv_cache(labels: tuple[str, ...], tokens: int | None) -> None:
    """An engine tells how many tokens its cache holds, or how many blocks; of several cores the largest counts."""
    page = "".join(f"vllm:cache_config_info{{{some}}} 1.0\n" for some in labels)
    assert read_metrics(page).kv_tokens == tokens


def test_a_page_of_something_else() -> None:
    """What is not a metrics page is an error of the engine, not a crash."""
    with pytest.raises(EngineError, match="not a Prometheus page"):
        read_metrics("vllm:num_requests_running is about three")


@pytest.mark.parametrize(
    "body, words",
    [
        ({"error": {"message": "Loading lora a failed", "code": 404}}, "Loading lora a failed"),
        ({"object": "error", "message": "flat"}, "flat"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"error": "short"}, "short"),
        ({"detail": [{"loc": ["body"]}]}, '[{"loc":["body"]}]'),
        (["what"], 'HTTP 404 ["what"]'),
    ],
)
def test_the_engines_own_words(body: object, words: str) -> None:
    """Whatever shape an error has, its sentence is found."""
    assert Reply(404, msgspec.json.encode(body)).words == words


async def test_an_openai_server_is_not_started_here() -> None:
    """A pool of kind openai without URLs cannot be started, and says so."""
    with pytest.raises(EngineStartError, match="give its urls"):
        await driver_for("openai").command(PoolSpec("p"), BASE, PLACE, {})
