"""The measurement: interleaved rounds over all proxies, each one alone under load while it is measured."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median

import msgspec

from benchmarks.cpu import Cores, machine_busy_s
from benchmarks.errors import BenchmarkError
from benchmarks.gateway.load import Kind, Load
from benchmarks.gateway.processes import Proxy, running
from benchmarks.gateway.targets import Target

__all__ = ["Plan", "Round", "Test", "measure"]

_NS_PER_US = 1e3
_RAMP_S = 1.1  # about as long as a paced stream
_MOST = 0.99


class Test(msgspec.Struct, frozen=True):
    """One kind of request and how many of it make a round.

    Attributes:
        kind: What is sent.
        warm_up: Requests before the measured ones, in each round.
        requests: Measured requests in each round; of a paced test all that are answered in its time.
        seconds: No request begins later, so that a slow proxy has a smaller round instead of a longer one.
    """

    kind: Kind
    warm_up: int
    requests: int
    seconds: float


class Plan(msgspec.Struct, frozen=True):
    """What one run measures."""

    targets: tuple[Target, ...]
    tests: tuple[Test, ...]
    rounds: int
    cores: Cores | None


class Round(msgspec.Struct, frozen=True):
    """One proxy under one test, once.

    Attributes:
        round: Its number, from 1; all proxies of one number ran one after the other.
        target: The proxy.
        test: The kind of request.
        requests: How many were answered and found right.
        wall_s: How long that took.
        cpu_us: The proxy's CPU time for each request, microseconds.
        per_s: Requests in a second.
        busy: Share of one core that the proxy used.
        load_busy: Share of one core that the load generator used.
        others_busy: Share of one core that all others on the machine used meanwhile, a disturbance.
        loadavg: The machine's load average over the last minute, at the end.
        memory_mb: The proxy's resident memory at the end, MB.
        lag_us: How old paced chunks are when they arrive, microseconds: the median, and what 99 % do not exceed.
        first_us: The median time to the first piece of a reply, microseconds.
    """

    round: int
    target: str
    test: str
    requests: int
    wall_s: float
    cpu_us: float
    per_s: float
    busy: float
    load_busy: float
    others_busy: float
    loadavg: float
    memory_mb: float
    lag_us: tuple[float, float] | None = None
    first_us: float | None = None


async def measure(plan: Plan, done: Callable[[Round], None]) -> dict[str, list[str]]:
    """Run the plan; `done` hears of each round. Returns the command line of each proxy.

    Raises:
        BenchmarkError: A proxy does not start, or answers wrongly.
    """
    with ExitStack() as stack:
        async with Load() as load:
            proxies = [stack.enter_context(running(target, load, _cores(plan, target))) for target in plan.targets]
            for proxy in proxies:
                await proxy.ready(load)
            for number in range(1, plan.rounds + 1):
                for proxy in proxies:
                    for test in plan.tests:
                        done(await _round(number, proxy, test, load))
            return {proxy.target.name: proxy.command for proxy in proxies}


def _cores(plan: Plan, target: Target) -> tuple[int, ...]:
    return () if plan.cores is None else plan.cores.proxies(target.processes)


async def _round(number: int, proxy: Proxy, test: Test, load: Load) -> Round:
    async with load.clients(test.kind, proxy.target.names, proxy.port):
        try:
            if test.kind.paced:
                load.begin(_RAMP_S)
                await load.flow(_RAMP_S * 2)
            else:
                await load.drive(test.warm_up, test.seconds)
            gc.collect()
            gc.disable()
            measured = await _measured(number, proxy, test, load)
            if test.kind.paced:
                await load.ebb()
        except BenchmarkError as error:
            raise BenchmarkError(f"{proxy.target.name}, {test.kind.name}: {error}\n{proxy.log_tail()}") from error
        finally:
            gc.enable()
        return measured


async def _measured(number: int, proxy: Proxy, test: Test, load: Load) -> Round:
    pids = proxy.pids()
    load.first_us.clear()
    del load.pace.lags_us[:]
    machine, ours, wall, proxy_ns = machine_busy_s(), time.process_time(), time.perf_counter(), proxy.cpu_ns()
    if test.kind.paced:
        requests = await load.flow(test.seconds)
    else:
        requests = await load.drive(test.requests, test.seconds)
    used_ns, wall = proxy.cpu_ns() - proxy_ns, time.perf_counter() - wall
    ours, machine = time.process_time() - ours, machine_busy_s() - machine
    if proxy.pids() != pids:
        raise BenchmarkError("its processes changed during the round")
    if not requests:
        raise BenchmarkError("no reply was complete in time")
    return Round(
        round=number,
        target=proxy.target.name,
        test=test.kind.name,
        requests=requests,
        wall_s=wall,
        cpu_us=used_ns / _NS_PER_US / requests,
        per_s=requests / wall,
        busy=used_ns / 1e9 / wall,
        load_busy=ours / wall,
        others_busy=max(0.0, (machine - ours - used_ns / 1e9) / wall),
        loadavg=os.getloadavg()[0],
        memory_mb=proxy.memory_mb(),
        lag_us=_lags(load.pace.lags_us) if test.kind.paced else None,
        first_us=median(load.first_us) if test.kind.timed else None,
    )


def _lags(lags: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(lags)
    return median(ordered), ordered[math.ceil(_MOST * len(ordered)) - 1]
