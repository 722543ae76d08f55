"""FakeEngine as a process: `python -m tuneplex.testing.fake_engine` with vLLM's own flags.

It stands in for `python -m vllm.entrypoints.openai.api_server`: the same flags (those it has no use for are taken and
ignored), the same lines in its log, the same processes, the same reaction to signals. `TUNEPLEX_FAKE_*` variables make
it misbehave (`flags.Behaviour`). `GET /fake/requests` tells what it was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from tuneplex.testing.children import Children
from tuneplex.testing.engine import FakeEngine
from tuneplex.testing.flags import Behaviour, Flags, parse_flags
from tuneplex.testing.wire import bind

__all__ = ["main"]


class Log:
    """Writes lines as vLLM's processes do."""

    def __init__(self, children: Children | None) -> None:
        pid = os.getpid()
        self._pids = {"APIServer": pid, "EngineCore": pid, "Worker": pid}
        if children is not None:
            self._pids |= {"EngineCore": children.core, "Worker": children.worker}

    def line(self, source: str, text: str, *, who: str = "APIServer", level: str = "INFO") -> None:
        """One line of vLLM's own logger."""
        when = time.strftime("%m-%d %H:%M:%S")
        self.raw(f"({who} pid={self._pids[who]}) {level} {when} [{source}] {text}")

    def raw(self, text: str) -> None:
        """One line as it is."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def main(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Run until a signal or a fault ends it; the exit code."""
    flags, behaviour = parse_flags(arguments), Behaviour.read(env)
    children = Children.fork(hang=behaviour.hang_on_term) if behaviour.children else None
    process = Process(flags, behaviour, children, env)
    try:
        return asyncio.run(process.run())
    except OSError as error:
        process.log.raw(f"OSError: {error}")
        return 1
    finally:
        if children is not None:
            children.end()


class Process:
    """The API server's life, from its first log line to its exit code.

    Args:
        flags: vLLM's.
        behaviour: How it misbehaves.
        children: The processes behind it, if it has any.
        env: Where vLLM's own variables are.
    """

    def __init__(self, flags: Flags, behaviour: Behaviour, children: Children | None, env: Mapping[str, str]) -> None:
        self._flags = flags
        self._behaviour = behaviour
        self._children = children
        self._env = env
        self._stop = asyncio.Event()
        self._lost = asyncio.Event()
        self.log = Log(children)

    async def run(self) -> int:
        """Start, serve, end; the exit code.

        Raises:
            OSError: Its address is taken.
        """
        self._watch()
        shown = {"model": self._flags.model, "uds": self._flags.uds, "ignored": self._flags.ignored}
        self.log.line("api_utils.py:286", f"non-default args: {shown}")
        # vLLM takes its address first, and listens only when the model is there.
        sock = bind(self._flags.host or "0.0.0.0", self._flags.port, self._flags.uds)  # noqa: S104 - vLLM's own default
        with contextlib.closing(sock):
            if not await self._start():
                return self._exit_code()
            async with self._engine(sock):
                await self._serve()
        return self._exit_code()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        ask = (lambda: None) if self._behaviour.hang_on_term else self._stop.set
        loop.add_signal_handler(signal.SIGTERM, ask)
        loop.add_signal_handler(signal.SIGINT, ask)
        if self._children is not None:
            loop.add_signal_handler(signal.SIGCHLD, self._lost.set)

    async def _start(self) -> bool:
        """Take as long as it should, and log what vLLM logs on the way; whether it came through."""
        model = self._flags.model
        steps = (
            ("APIServer", "model.py:733", "Resolved architecture: LlamaForCausalLM"),
            ("EngineCore", "core.py:133", f"Initializing a V1 LLM engine (v0.32.0) with config: model='{model}'"),
            ("Worker", "cpu_model_runner.py:68", f"Starting to load model {model}..."),
            ("Worker", "default_loader.py:501", "Loading weights took 0.23 seconds"),
            ("EngineCore", "kv_cache_utils.py:2327", "CPU KV cache size: 1,000,000 tokens"),
            ("EngineCore", "core.py:402", "init engine (profile, create kv cache, warmup model) took 3.15 s"),
        )
        for who, source, text in steps:
            self.log.line(source, text, who=who)
            if await self._ends_within(self._behaviour.start_delay_s / len(steps)):
                return False
        if self._behaviour.fail_start:
            self.log.line("core.py:1180", "EngineCore failed to start.", who="EngineCore", level="ERROR")
            self.log.raw(f"RuntimeError: {self._behaviour.fail_start}")
            self._lost.set()
        return not self._lost.is_set()

    async def _serve(self) -> None:
        self.log.line("entry.py:140", f"Starting vLLM server on {self._flags.address}")
        self.log.raw(f"INFO:     Started server process [{os.getpid()}]")
        self.log.raw("INFO:     Waiting for application startup.\nINFO:     Application startup complete.")
        if self._behaviour.die_after_s:
            asyncio.get_running_loop().call_later(self._behaviour.die_after_s, self._die)
        await self._ends_within(None)
        if self._stop.is_set():
            self.log.line("launcher.py:254", "[shutdown] API server: shutdown triggered")
        else:
            self.log.line("core_client.py:700", "Engine core proc EngineCore died unexpectedly.", level="ERROR")

    async def _ends_within(self, seconds: float | None) -> bool:
        """Whether the end is asked for, or EngineCore lost, in that time."""
        tasks = [asyncio.ensure_future(event.wait()) for event in (self._stop, self._lost)]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        return bool(done)

    def _exit_code(self) -> int:
        return 0 if self._stop.is_set() else 1

    def _die(self) -> None:
        """End as the kernel ends what has taken too much memory."""
        if self._children is not None:
            self._children.kill()
        os.kill(os.getpid(), signal.SIGKILL)

    def _engine(self, sock: socket.socket) -> FakeEngine:
        flags = self._flags
        keys = flags.api_key or [self._env.get("VLLM_API_KEY", "")]
        may_load = self._env.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "").lower() in ("1", "true")
        return FakeEngine(
            flags.name,
            sock=sock,
            uds=flags.uds,
            api_key=keys[0] or None,
            max_loras=flags.max_loras,
            max_cpu_loras=flags.max_cpu_loras,
            max_lora_rank=flags.max_lora_rank,
            max_num_seqs=flags.max_num_seqs,
            max_model_len=flags.max_model_len,
            lora=flags.enable_lora and may_load,
            plugin=self._behaviour.plugin and "tuneplex" in self._env.get("VLLM_PLUGINS", "").split(","),
            tool_parser=flags.tool_call_parser is not None,
            root=flags.model,
            default=self._behaviour.scripted(),
            on_death=self._die,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
