"""Several gateways share a replica, over a real feed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from tests.support.desk import Desk
from tests.support.records import MemoryRecords
from tuneplex.control import Dividing
from tuneplex.feed import Subscriber
from tuneplex.types import FleetSpec, FleetView, GatewayReport, Listen, PoolSpec, Turns

POOL = PoolSpec("default", launcher="external", urls=("http://127.0.0.1:9",), concurrent=12)
NAME = "default-0"


class Gateway:
    """A gateway that reports what it is told to."""

    def __init__(self, index: int, feed: Path) -> None:
        self.index = index
        self.report = GatewayReport(index, 7, 0)
        self.turns: list[Turns] = []
        self.views: list[FleetView] = []
        self._subscriber = Subscriber(
            feed, on_view=self.views.append, on_access=lambda _access: None, on_turns=self.turns.append,
            report=lambda: self.report, interval_s=0.05,
        )  # fmt: skip

    def say(self, demand: dict[str, float], *, busy: int = 0, closing: tuple[str, ...] = ()) -> None:
        """From now on it reports so much for the replica."""
        versions = {"a@1": busy} if busy else {}
        closed = {NAME: closing} if closing else {}
        self.report = GatewayReport(
            self.index, 7, 0, demand={NAME: demand}, busy={NAME: versions} if versions else {}, closing=closed
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """It lives for as long as the block runs."""
        task = asyncio.create_task(self._subscriber.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def control(memory: MemoryRecords, directory: Path, gateways: int) -> AsyncIterator[Desk]:
    """A control that divides for as long as the block runs."""
    desk = Desk(memory, directory)
    spec: FleetSpec = desk.controller.spec
    desk.controller.spec = msgspec.structs.replace(spec, listen=Listen(gateways=gateways), pools=(POOL,))
    dividing = Dividing(desk.controller, desk.registry)
    async with desk.running(), desk.controller.publisher.listening(directory / "feed"):
        leasing, looping = asyncio.create_task(desk.leasing.run()), asyncio.create_task(desk.controller.run())
        await desk.until(lambda: any(replica.concurrent for replica in desk.controller.view.replicas))
        tasks = (leasing, looping, asyncio.create_task(dividing.run()))
        try:
            yield desk
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_places_go_where_the_demand_is(memory: MemoryRecords, tmp_path: Path) -> None:
    """Each gateway is told its places, what tenants weigh there, and what the other has under way and closes."""
    async with control(memory, tmp_path, 2) as desk:
        pair = Gateway(0, tmp_path / "feed"), Gateway(1, tmp_path / "feed")
        pair[0].say({"acme": 30.0}, busy=4)
        pair[1].say({"acme": 30.0, "zeta": 60.0}, closing=("a@1",))
        async with pair[0].running(), pair[1].running():
            await desk.until(lambda: pair[0].turns and NAME in pair[0].turns[-1].closing)
            told = pair[0].turns[-1]
            assert told.places == {0: {NAME: 3}, 1: {NAME: 9}}
            assert told.weights == {0: {"acme": 0.5}, 1: {"acme": 0.5, "zeta": 1.0}}
            assert told.elsewhere == {0: {}, 1: {NAME: {"a@1": 4}}}
            assert told.closing == {NAME: ("a@1",)}
            await asyncio.sleep(1.2)  # one more round, with nothing new in it
            assert pair[0].turns[-1] == told
            pair[1].say({})
            await desk.until(lambda: pair[0].turns[-1].places[0][NAME] > 5)
        assert pair[1].turns[-1].generation == pair[0].turns[-1].generation


async def test_a_gateway_that_is_gone_wants_nothing(memory: MemoryRecords, tmp_path: Path) -> None:
    """After a few seconds of silence the others may fill its places, apart from one."""
    async with control(memory, tmp_path, 2) as desk:
        stays, goes = Gateway(0, tmp_path / "feed"), Gateway(1, tmp_path / "feed")
        stays.say({"acme": 50.0})
        goes.say({"acme": 50.0}, busy=5)
        async with stays.running():
            async with goes.running():
                await desk.until(lambda: stays.turns and stays.turns[-1].places[0][NAME] == 6)
            await desk.until(lambda: stays.turns[-1].places[0][NAME] == 11)
            assert stays.turns[-1].elsewhere[0] == {}


async def test_a_single_gateway_is_told_nothing(memory: MemoryRecords, tmp_path: Path) -> None:
    """It has everything, as long as it hears nothing else."""
    async with control(memory, tmp_path, 1) as desk:
        gateway = Gateway(0, tmp_path / "feed")
        gateway.say({"acme": 50.0})
        async with gateway.running():
            await desk.until(lambda: gateway.views)
            await asyncio.sleep(1.2)
            assert gateway.turns == []
