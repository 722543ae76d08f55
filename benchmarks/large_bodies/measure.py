"""Rounds with and without large prompts, in turn, over the same streams."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import tempfile
import time
from collections.abc import AsyncIterator
from statistics import median

import msgspec

from benchmarks.cpu import Meter, machine_busy_s
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import fleet_gateway
from benchmarks.large_bodies.crowd import Done, Order
from benchmarks.large_bodies.processes import Crowd, crowd
from benchmarks.large_bodies.streams import Streams
from benchmarks.processes import free_ports
from tuneplex.identity import Access, Key, Limits, Tenant
from tuneplex.testing import FakeEngine
from tuneplex.types import FleetView, GatewaySettings, Model, Replica

__all__ = ["Plan", "Result", "Round", "measure"]

_KEY = "sk-large-bodies"
_PLENTY = 2**50
_FIRST_S = 1.0


class Plan(msgspec.Struct, frozen=True):
    """What is measured.

    Attributes:
        tokenizer: The file that the gateway counts with.
        streams: Side by side, whose chunks are timed.
        pace_s: Between two chunks of each, seconds.
        clients: That send large prompts, side by side.
        size: Of each large prompt, bytes.
        rounds: Of each kind.
        seconds: Of each round.
    """

    tokenizer: str
    streams: int
    pace_s: float
    clients: int
    size: int
    rounds: int
    seconds: float


class Round(msgspec.Struct, frozen=True):
    """How late chunks were in one round, milliseconds.

    Attributes:
        chunks: How many were timed.
        large: Large prompts that were answered meanwhile.
        large_s: How long each of them took, seconds; 0 if there was none.
        gateway_busy: Cores that the gateway used.
        others_busy: Cores that anything used that does not belong to the benchmark.
    """

    chunks: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    large: int
    large_s: float
    gateway_busy: float
    others_busy: float


class Result(msgspec.Struct, frozen=True):
    """All rounds, in their order: each without large prompts, then with them."""

    quiet: list[Round]
    crowded: list[Round]

    def middle(self, kind: str, figure: str) -> float:
        """The median of a figure over the rounds of a kind."""
        rounds: list[Round] = getattr(self, kind)
        return float(median(getattr(one, figure) for one in rounds))


async def measure(plan: Plan) -> Result:
    """Time the chunks of the streams, in turn without and with large prompts.

    Raises:
        BenchmarkError: A reply was not as it must be.
    """
    async with _running(plan) as (streams, other, meters):
        await asyncio.sleep(_FIRST_S)
        result = Result([], [])
        for _ in range(plan.rounds):
            result.quiet.append(await _round(plan, streams, None, meters))
            result.crowded.append(await _round(plan, streams, other, meters))
        if not all(one.large for one in result.crowded):
            raise BenchmarkError("in some round no large prompt was answered; give it more seconds")
        return result


@contextlib.asynccontextmanager
async def _running(plan: Plan) -> AsyncIterator[tuple[Streams, Crowd, tuple[Meter, Meter]]]:
    with tempfile.TemporaryDirectory(prefix="tp", dir="/tmp") as name:
        port = free_ports(1)[0]
        engine = FakeEngine("base", uds=f"{name}/engine.sock", max_num_seqs=plan.streams)
        order = Order(f"{name}/large.sock", port, _KEY, plan.clients, plan.size)
        async with (
            engine,
            crowd(order) as other,
            fleet_gateway(port, _view(plan, engine, order), _access()) as gateway,
        ):
            streams = Streams(engine, plan.streams, plan.pace_s)
            try:
                await streams.start(port, _KEY)
                yield streams, other, (Meter(gateway.pid), Meter(other.pid))
            finally:
                streams.stop()


async def _round(plan: Plan, streams: Streams, other: Crowd | None, meters: tuple[Meter, Meter]) -> Round:
    before, busy = [meter.read_ns() / 1e9 for meter in meters], machine_busy_s() - time.process_time()
    began = time.perf_counter()
    if other is not None:
        await other.go()
    await asyncio.sleep(plan.seconds)
    done = Done(0, 0.0) if other is None else await other.stop()
    until = time.perf_counter()
    used = [meter.read_ns() / 1e9 - then for meter, then in zip(meters, before, strict=True)]
    busy = machine_busy_s() - time.process_time() - busy - sum(used)
    await asyncio.sleep(_FIRST_S)  # for the last chunks to come, and for the machine to come to rest
    lags = sorted(streams.lags_ms(began, until))
    seconds = until - began
    return Round(
        chunks=len(lags),
        p50_ms=median(lags),
        p99_ms=lags[math.ceil(0.99 * len(lags)) - 1],
        max_ms=lags[-1],
        large=done.requests,
        large_s=done.seconds / done.requests if done.requests else 0.0,
        gateway_busy=used[0] / seconds,
        others_busy=max(0.0, busy / seconds),
    )


def _view(plan: Plan, engine: FakeEngine, order: Order) -> FleetView:
    """The base for the streams on one engine, an adapter for the large prompts on another.

    The context has fewer tokens than a large prompt has bytes, so that only counting tells whether it fits.
    """
    large = Model("large", "large@0", parent="base")
    context = plan.size * 9 // 10
    return FleetView(
        generation=1,
        models={"base": Model("base", "base"), "large": large},
        replicas=(
            Replica("streams-0", "streams", "vllm", engine.endpoint, serves={"base": "base"}),
            Replica("large-0", "large", "vllm", f"unix:{order.socket}", serves={"large@0": "large@0"}, context=context),
        ),
        settings=GatewaySettings(require_key=True),
        tokenizer=plan.tokenizer,
    )


def _access() -> Access:
    """One tenant, with a limit in tokens that is never reached."""
    tenant = Tenant("acme", limits=Limits(tokens_per_minute=_PLENTY))
    key = Key("1", "acme", hashlib.sha256(_KEY.encode()).hexdigest())
    return Access(1, required=True, salt="salt", tenants=(Tenant("default"), tenant), keys=(key,))
