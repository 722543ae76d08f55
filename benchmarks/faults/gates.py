"""The gateways: each is started anew for every fault, with its own defaults."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.cpu import Meter
from benchmarks.environments import environment
from benchmarks.faults.client import post
from benchmarks.faults.fault import SETTINGS
from benchmarks.faults.play import DRAIN_S, Gate
from benchmarks.faults.stage import ADAPTER, Stage
from benchmarks.fleet import FleetGateway, fleet_gateway
from benchmarks.processes import end, free_ports, start, tail
from tuneplex.identity import Access
from tuneplex.testing import Tokenizer
from tuneplex.types import FleetView, GatewaySettings, Model, Replica, ReplicaState

__all__ = ["KINDS", "DoesNotStart", "Kind", "draining", "view_of"]

_REQUIREMENTS = Path(__file__).parents[1] / "gateway" / "requirements"
_READY_S = 20.0
_PAUSE_S = 0.1
_OK = 200


class DoesNotStart(Exception):
    """The gateway serves nothing with these engines."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One gateway of the table.

    Attributes:
        name: As in the table and for `--only`.
        started: Starts it in front of a stage, until the block is left.
        requirements: Stem of the file that pins what its environment has; None if it runs in ours.
    """

    name: str
    started: Callable[[Stage], contextlib.AbstractAsyncContextManager[Gate]]
    requirements: str | None = None

    def install(self) -> None:
        """Make its environment, if it needs one and that is not there yet."""
        if self.requirements is not None:
            _bin(self.requirements)


def view_of(stage: Stage, settings: GatewaySettings, tokenizer: Path) -> FleetView:
    """A fleet of whatever the stage has, with the adapter `contacts`."""
    serves = {"base": "base", ADAPTER: ADAPTER}
    replicas = tuple(
        Replica(f"default-{number}", "default", "vllm", endpoint, serves=serves)
        for number, endpoint in enumerate(stage.endpoints)
    )
    models = {"base": Model("base", "base"), "contacts": Model("contacts", ADAPTER, "base")}
    return FleetView(generation=1, models=models, replicas=replicas, settings=settings, tokenizer=str(tokenizer))


def draining(view: FleetView, endpoint: str) -> FleetView:
    """The same fleet, in which the replica at this endpoint will be stopped in `DRAIN_S`."""
    leave_at = time.time() + DRAIN_S
    replicas = tuple(
        msgspec.structs.replace(one, state=ReplicaState.DRAINING, leave_at=leave_at)
        if one.endpoint == endpoint
        else one
        for one in view.replicas
    )
    return msgspec.structs.replace(view, generation=view.generation + 1, replicas=replicas)


class _Process:
    """What all gateways in processes of their own have; the peers know the base only."""

    model = engine_model = "base"
    well = "/health"

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self._meter = Meter(pid)

    def memory_mb(self) -> float | None:
        """Of all its processes."""
        return self._meter.memory_mb()

    async def ready(self, alive: Callable[[], bool]) -> None:
        """Wait until it says that it is well.

        Raises:
            DoesNotStart: It has ended, or does not say so.
        """
        until = time.monotonic() + _READY_S
        while alive() and time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError, IndexError, TimeoutError):
                if (await post(self.port, self.well, "GET"))[0] == _OK:
                    return
            await asyncio.sleep(_PAUSE_S)
        raise DoesNotStart


class _Tuneplex(_Process):
    model, engine_model = "contacts", ADAPTER

    def __init__(self, port: int, gateway: FleetGateway, view: FleetView) -> None:
        super().__init__(port, gateway.pid)
        self._gateway = gateway
        self._view = view

    async def drain(self, endpoint: str) -> None:
        """Say so over the feed, as control does."""
        await self._gateway.tell(draining(self._view, endpoint))


@contextlib.asynccontextmanager
async def _tuneplex(stage: Stage) -> AsyncIterator[Gate]:
    with tempfile.TemporaryDirectory(prefix="tp") as name:
        port, tokenizer = free_ports(1)[0], Path(name) / "tokenizer.json"
        tokenizer.write_text(Tokenizer().as_json())
        view = view_of(stage, SETTINGS, tokenizer)
        async with fleet_gateway(port, view, Access()) as gateway:
            gate = _Tuneplex(port, gateway, view)
            await gate.ready(lambda: True)
            yield gate


class _VllmRouter(_Process):
    async def drain(self, endpoint: str) -> None:
        """Take the worker away."""
        await post(self.port, f"/remove_worker?url={endpoint}")


class _Smg(_Process):
    well = "/readiness"  # it is healthy before it has workers

    async def drain(self, endpoint: str) -> None:
        """Take the worker away."""
        _, page = await post(self.port, "/workers", "GET")
        for worker in json.loads(page).get("workers", []):
            if worker.get("url") == endpoint:
                await post(self.port, f"/workers/{worker['id']}", "DELETE")


def _peer(
    kind: type[_VllmRouter | _Smg], command: Callable[[int, int], list[str]]
) -> Callable[[Stage], contextlib.AbstractAsyncContextManager[Gate]]:
    @contextlib.asynccontextmanager
    async def started(stage: Stage) -> AsyncIterator[Gate]:
        port, spare = free_ports(2)
        words = [*command(port, spare), "--worker-urls", *stage.endpoints]
        with tempfile.TemporaryFile() as log:
            process = start(words, log)
            try:
                gate = kind(port, process.pid)
                try:
                    await gate.ready(lambda: process.poll() is None)
                except DoesNotStart as error:
                    raise DoesNotStart(tail(log)) from error
                yield gate
            finally:
                await asyncio.to_thread(end, process)

    return started


def _vllm_router(port: int, spare: int) -> list[str]:
    """Everything but ports and the pace of its start is as it comes."""
    return [
        *(str(_bin("vllm-router") / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-port", str(spare), "--log-level", "warning", "--worker-startup-check-interval", "1"),
    ]


def _smg(port: int, spare: int) -> list[str]:
    """The same; the engine's tokenizer cannot be loaded from a model that does not exist."""
    return [
        *(str(_bin("smg") / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-port", str(spare), "--prometheus-host", "127.0.0.1", "--log-level", "warn"),
        *("--worker-startup-check-interval", "1", "--disable-tokenizer-autoload"),
    ]


def _bin(requirements: str) -> Path:
    return environment(_REQUIREMENTS / f"{requirements}.txt")


KINDS: Sequence[Kind] = (
    Kind("tuneplex", _tuneplex),
    Kind("vllm-router 0.1.17", _peer(_VllmRouter, _vllm_router), "vllm-router"),
    Kind("smg 1.13.0", _peer(_Smg, _smg), "smg"),
)
