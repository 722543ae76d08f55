"""Engines as processes of this machine, each under a keeper that the supervisor holds."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tuneplex.engines.command import Place
from tuneplex.engines.driver import driver_for
from tuneplex.errors import EngineError
from tuneplex.launchers.launcher import Launched, Order
from tuneplex.launchers.machine import Machine, pick_gpus, pick_share
from tuneplex.launchers.spawner import Child, Forget, Spawn, Spawner, Stop

__all__ = ["LocalLauncher", "inheritable"]

_INHERITED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"}
)
_INHERITED_PREFIXES = (
    *("LC_", "XDG_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "ROCR_", "HIP_", "ONEAPI_", "OMP_", "KMP_", "MKL_"),
    *("VLLM_", "TORCH", "PYTORCH_", "TRITON_", "TRANSFORMERS_", "HF_HOME", "HF_HUB_CACHE"),
)


def inheritable(env: Mapping[str, str]) -> dict[str, str]:
    """The part of our environment that an engine may see: where things are and how to compute, but no credentials."""
    return {
        name: value
        for name, value in env.items()
        if (name in _INHERITED or name.startswith(_INHERITED_PREFIXES)) and not _looks_secret(name)
    }


class LocalLauncher:
    """Starts engines here.

    Args:
        spawner: The supervisor.
        sockets: The short directory for the engines' sockets.
        logs: The directory for their logs.
        machine: What replicas share.
        env: The environment that engines may see.
    """

    name = "local"

    def __init__(
        self, spawner: Spawner, *, sockets: Path, logs: Path, machine: Machine, env: Mapping[str, str]
    ) -> None:
        self._spawner = spawner
        self._sockets = sockets
        self._logs = logs
        self._machine = machine
        self._env = env

    @property
    def changed(self) -> asyncio.Event:
        """Set whenever `launched` changed."""
        return self._spawner.changed

    @property
    def launched(self) -> tuple[Launched, ...]:
        """What the supervisor holds, in our own words: they travelled there as `meta`."""
        return tuple(_recall(child) for child in self._spawner.children)

    @property
    def free_gpus(self) -> int | None:
        """How many GPUs no replica uses."""
        return len(self._machine.gpus) - sum(len(other.gpus) for other in self._alive())

    async def launch(self, order: Order) -> None:
        """Have the supervisor start a keeper with the engine."""
        place = self._place(order)
        command = await driver_for(order.pool.engine).command(order.pool, order.base, place, self._env)
        record = Launched(
            replica=order.replica,
            pool=order.pool.name,
            launcher=self.name,
            engine=order.pool.engine,
            settings=order.settings,
            endpoint=f"unix:{place.socket}",
            secret=place.secret,
            log=str(self._logs / f"{order.replica}.log"),
            started=time.time(),
            failures=order.failures,
            restarts=order.restarts,
            cores=place.cores,
            gpus=place.gpus,
            drain_s=order.pool.drain_s,
        )
        self._remove_socket(order.replica)
        meta = msgspec.json.encode(record).decode()
        await self._spawner.ask(Spawn(order.replica, command.arguments, command.env, record.log, meta))

    async def stop(self, replica: str) -> None:
        """SIGTERM by way of the keeper, which sees to the rest."""
        await self._spawner.ask(Stop(replica))

    async def forget(self, replica: str) -> None:
        """Have the supervisor drop its record."""
        self._remove_socket(replica)
        await self._spawner.ask(Forget(replica))

    def _remove_socket(self, replica: str) -> None:
        """What an engine that has ended leaves in the directory."""
        for record in self.launched:
            if record.replica == replica and record.ended is not None:
                Path(record.endpoint.removeprefix("unix:")).unlink(missing_ok=True)

    def _alive(self) -> list[Launched]:
        return [record for record in self.launched if record.ended is None]

    def _place(self, order: Order) -> Place:
        others = [record for record in self._alive() if record.replica != order.replica]
        gpus = pick_gpus(self._machine.gpus, order.pool.gpus, [gpu for other in others for gpu in other.gpus])
        if gpus is None:
            raise EngineError(f"{order.replica} needs {order.pool.gpus} free GPUs; here are {self.free_gpus}")
        on_cores = not order.pool.gpus
        return Place(
            cores=pick_share(self._machine.cores, order.peers, [other.cores for other in others]) if on_cores else (),
            gpus=gpus,
            socket=str(self._sockets / f"e-{secrets.token_hex(6)}.sock"),  # a path that a crash left behind blocks vLLM
            secret=secrets.token_urlsafe(32),
        )


def _recall(child: Child) -> Launched:
    record = msgspec.json.decode(child.meta, type=Launched)
    return msgspec.structs.replace(record, pid=child.engine, ended=child.ended, exit_code=child.exit_code)


def _looks_secret(name: str) -> bool:
    return any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))
