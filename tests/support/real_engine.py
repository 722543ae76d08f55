"""A real vLLM on the CPU for a whole test session."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import httpx2

PATIENCE_S = 420.0  # the first start on a machine reads gigabytes from a cold disk
FLAGS = "--enable-lora --max-loras 2 --max-cpu-loras 4 --max-lora-rank 16 --max-model-len 1024 --dtype bfloat16"
# For the routes of the plugin. The developer routes are open, so that the engine's worker can be asked as a witness.
PLUGIN_FLAGS = (
    "--enable-lora --max-loras 3 --max-cpu-loras 6 --max-lora-rank 128 --max-model-len 1024 --max-num-seqs 16 "
    "--dtype float32 --enable-prefix-caching --enforce-eager --disable-uvicorn-access-log"
)
PLUGIN_ENV = MappingProxyType({"VLLM_PLUGINS": "tuneplex", "VLLM_SERVER_DEV_MODE": "1"})
TOOLS = "--enable-auto-tool-choice --tool-call-parser hermes"
TEMPLATE = Path(__file__).parents[1] / "e2e" / "chatml_with_tools.jinja"


@dataclass(frozen=True)
class RealEngine:
    """A vLLM that answers.

    Attributes:
        model: What clients call the base.
        root: The base's directory.
        uds: The Unix socket it listens on.
        secret: The key it asks for.
        adapters: A directory for adapters.
        log: What it writes.
        leader: The first process of its session, to which all of its processes belong.
    """

    model: str
    root: Path
    uds: Path
    secret: str
    adapters: Path
    log: Path
    leader: int = 0

    @property
    def endpoint(self) -> str:
        """As fleets write it."""
        return f"unix:{self.uds}"

    def client(self) -> httpx2.Client:
        """A client with the key."""
        headers = {"authorization": f"Bearer {self.secret}"}
        transport = httpx2.HTTPTransport(uds=str(self.uds))
        return httpx2.Client(base_url="http://engine", transport=transport, headers=headers, timeout=120)


@contextlib.contextmanager
def real_engine(
    python: Path, base: Path, *, flags: str = FLAGS, env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[RealEngine]:
    """Start vLLM with LoRA and with tools; none of its processes is left afterwards.

    Args:
        python: The engine's.
        base: The base's directory.
        flags: What is added to the command line.
        env: What is added to the environment.
    """
    with tempfile.TemporaryDirectory(prefix="tp", dir="/tmp") as name:
        directory = Path(name)
        engine = RealEngine(
            "base", base, directory / "engine.sock", "sk-engine", directory / "adapters", directory / "engine.log"
        )
        command: list[str | Path] = [
            python.absolute(),
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            base,
            "--uds",
            engine.uds,
        ]
        command += ["--served-model-name", engine.model, *flags.split(), *TOOLS.split(), "--chat-template", TEMPLATE]
        with engine.log.open("w") as sink:
            process = subprocess.Popen(
                command,
                env={**_environment(engine), **env},
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                cwd=directory,
            )
        try:
            _wait(process, engine)
            yield replace(engine, leader=process.pid)
        finally:
            _end(process)


def _environment(engine: RealEngine) -> dict[str, str]:
    return os.environ | {
        "VLLM_API_KEY": engine.secret,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(min(os.sched_getaffinity(0))),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
    }


def _wait(process: subprocess.Popen[bytes], engine: RealEngine) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not _answers(engine):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(engine.log.read_text()[-5000:])
        time.sleep(0.2)


def _answers(engine: RealEngine) -> bool:
    # Whether anybody is there is asked first: a refused connection leaves httpcore2 with an open socket.
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(str(engine.uds))
        with engine.client() as client:
            return client.get("/health").is_success
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
