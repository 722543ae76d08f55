"""Sharing and counting over a real feed, on a store that fails as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.desk import Desk
from tests.support.records import MemoryRecords
from tuneplex.control.leasing import Leasing
from tuneplex.feed import Subscriber
from tuneplex.identity import Limits
from tuneplex.policy import Lessor, month_of
from tuneplex.types import FleetView, GatewayReport, Leases, Spent, Used

TENANT = "tenant default"
DAY, MONTH = "tokens_per_day", "money_per_month"
DAY_S = 86400
replace = msgspec.structs.replace


class Gateway:
    """A gateway that reports what it is told to, and goes by what it hears.

    Args:
        index: Which one.
        feed: Control's socket.
        pid: Its process.
    """

    def __init__(self, index: int, feed: Path, pid: int = 7) -> None:
        self.index, self.pid = index, pid
        self.used: dict[str, Used] = {}
        self.heard: list[FleetView | Leases] = []
        self.leases = Leases()
        self._subscriber = Subscriber(
            feed,
            on_view=self.heard.append,
            on_access=lambda _access: None,
            on_leases=self._lease,
            report=self.report,
            interval_s=0.05,
        )

    def _lease(self, leases: Leases) -> None:
        self.leases = leases
        self.heard.append(leases)

    @property
    def share(self) -> Limits:
        """What it may let in of the tenant."""
        return self.leases.shares.get(self.index, {}).get(TENANT, Limits())

    def report(self) -> GatewayReport:
        """What it tells control."""
        held = self.leases.shares.get(self.index, {})
        return GatewayReport(self.index, self.pid, 0, used=self.used, held=held, leases=self.leases.generation)

    def use(self, tokens: int) -> None:
        """It has counted so many tokens today."""
        self.used = {TENANT: Used(requests=1, tokens=tokens, spent={DAY: Spent(int(time.time() // DAY_S), tokens)})}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Gateway]:
        """It lives for as long as the block runs."""
        task = asyncio.create_task(self._subscriber.run())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def control(memory: MemoryRecords, directory: Path, *, gateways: int = 1) -> AsyncIterator[Desk]:
    """A control that shares and counts for as long as the block runs."""
    desk = Desk(memory, directory)
    desk.controller.spec = replace(desk.controller.spec, listen=replace(desk.controller.spec.listen, gateways=gateways))
    async with desk.running(), desk.controller.publisher.listening(directory / "feed"):
        sharing = asyncio.create_task(desk.leasing.run())
        looping = asyncio.create_task(desk.controller.run())
        try:
            yield desk
        finally:
            looping.cancel()
            sharing.cancel()
            await asyncio.wait((looping, sharing))


async def limit(desk: Desk, **limits: int) -> None:
    """Limit the tenant."""
    reply = await desk.client.patch("/tenants/default", json={"limits": limits})
    assert reply.status_code == 200, reply.text


async def day_tokens(desk: Desk) -> int:
    """What people are told of the tenant's day."""
    found = (await desk.client.get("/limits")).json()
    return next((int(one["day_tokens"]) for one in found if one["subject"] == TENANT), -1)


async def test_each_gateway_is_told_its_share(memory: MemoryRecords, tmp_path: Path) -> None:
    """Two gateways hold a limit together, and never more than the limit."""
    async with control(memory, tmp_path, gateways=2) as desk:
        await limit(desk, requests_per_minute=11)
        pair = Gateway(0, tmp_path / "feed"), Gateway(1, tmp_path / "feed", 8)
        async with pair[0].running(), pair[1].running():
            pair[0].use(5)
            await desk.until(lambda: pair[0].share.requests_per_minute and pair[1].share.requests_per_minute)
            assert sum(one.share.requests_per_minute or 0 for one in pair) <= 11


async def test_control_goes_on_while_shares_are_decided(
    memory: MemoryRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With very many subjects that takes its time: reports are heard meanwhile, and count for the next decision."""
    begun, go_on = threading.Event(), threading.Event()
    decide = Lessor.decide

    def slow(*arguments: Any) -> Leases | None:  # noqa: ANN401 - whatever the real one takes
        begun.set()
        assert go_on.wait(20), "the loop stands still"
        return decide(*arguments)

    async with control(memory, tmp_path) as desk, Gateway(0, tmp_path / "feed").running() as gateway:
        await limit(desk, requests_per_minute=11)
        monkeypatch.setattr(Lessor, "decide", slow)
        await desk.until(begun.is_set)
        gateway.use(5)
        await desk.until(lambda: desk.leasing.uses()[0].tokens == 5)
        go_on.set()
        await desk.until(lambda: gateway.share.requests_per_minute == 11)


async def test_a_gateway_knows_its_shares_before_the_fleet(memory: MemoryRecords, tmp_path: Path) -> None:
    """A gateway that serves knows what of today was used before, also by fleets of an earlier start."""
    memory.keep_spending("fleet", {(DAY, int(time.time() // DAY_S), TENANT, "1-0-5"): 90})
    memory.change_tenant("default", lambda tenant: replace(tenant, limits=Limits(tokens_per_day=100)))
    async with control(memory, tmp_path) as desk:
        async with Gateway(0, tmp_path / "feed").running() as gateway:
            await desk.until(lambda: any(isinstance(value, FleetView) for value in gateway.heard))
            assert isinstance(gateway.heard[0], Leases)
            assert gateway.leases.left == {TENANT: {DAY: 10}}
            assert gateway.share.tokens_per_day == 10
        assert await day_tokens(desk) == 90


async def test_a_restarted_gateway_counts_from_its_start(memory: MemoryRecords, tmp_path: Path) -> None:
    """A new process begins at nothing, and what the one before it has used still counts."""
    async with control(memory, tmp_path) as desk:
        await limit(desk, tokens_per_day=100)
        first, second = Gateway(0, tmp_path / "feed", 7), Gateway(0, tmp_path / "feed", 8)
        async with first.running():
            first.use(30)
            await desk.until(lambda: first.leases.left == {TENANT: {DAY: 70}})
        async with second.running():
            second.use(20)
            await desk.until(lambda: second.leases.left == {TENANT: {DAY: 50}})
        assert await day_tokens(desk) == 50


async def test_counts_outlive_control(memory: MemoryRecords, tmp_path: Path) -> None:
    """At its end control keeps what it has counted; the next one counts a gateway that lives on once."""
    gateway = Gateway(0, tmp_path / "feed")
    gateway.use(30)
    async with gateway.running():
        for _start in range(2):
            async with control(memory, tmp_path) as desk:
                await limit(desk, tokens_per_day=100)
                await desk.until(lambda: gateway.leases.left == {TENANT: {DAY: 70}})
                assert await day_tokens(desk) == 30
            gateway.leases = replace(gateway.leases, left={})
    today = int(time.time() // DAY_S)
    assert list(memory.spending("fleet", DAY, today)[TENANT].values()) == [30]


async def test_a_database_that_is_down_delays_and_loses_nothing(memory: MemoryRecords, tmp_path: Path) -> None:
    """Limits go on without it, and what was counted meanwhile is kept once it answers; a write may be done unheard."""
    today = int(time.time() // DAY_S)
    async with control(memory, tmp_path) as desk:
        await limit(desk, tokens_per_day=100)
        async with Gateway(0, tmp_path / "feed").running() as gateway:
            gateway.use(10)
            await desk.until(lambda: memory.spending("fleet", DAY, today))
            memory.down = True
            gateway.use(25)
            await desk.until(lambda: gateway.leases.left == {TENANT: {DAY: 75}})
            assert await day_tokens(desk) == 25
            memory.down = False
            memory.cut = True
            await desk.until(lambda: list(memory.spending("fleet", DAY, today)[TENANT].values()) == [25])
            memory.cut = False
            gateway.use(26)
            await desk.until(lambda: list(memory.spending("fleet", DAY, today)[TENANT].values()) == [26])


async def test_the_money_of_a_month_outlives_control(memory: MemoryRecords, tmp_path: Path) -> None:
    """It is shared, told and kept like the tokens of a day, beside them, and counts once in the next control."""
    month = month_of(time.time())
    memory.keep_spending("fleet", {(MONTH, month, TENANT, "1-0-5"): 90, (MONTH, month - 1, TENANT, "1-0-5"): 500})
    limits = Limits(tokens_per_day=50, money_per_month=10**12)
    memory.change_tenant("default", lambda tenant: replace(tenant, limits=limits))
    gateway = Gateway(0, tmp_path / "feed")
    gateway.used = {TENANT: Used(requests=1, spent={DAY: Spent(int(time.time() // DAY_S), 20), MONTH: Spent(month, 7)})}
    left = {TENANT: {DAY: 30, MONTH: 10**12 - 97}}
    async with gateway.running():
        for _start in range(2):
            async with control(memory, tmp_path) as desk:
                await desk.until(lambda: gateway.leases.left == left)
                assert gateway.leases.periods[MONTH] == month
                assert gateway.share.money_per_month == 10**12 - 90
                (told,) = (await desk.client.get("/limits")).json()
                assert (told["month_money"], told["day_tokens"]) == ("0.000000000097", 20)
            gateway.leases = replace(gateway.leases, left={})
    assert sum(memory.spending("fleet", MONTH, month)[TENANT].values()) == 97


async def test_a_new_month_begins_with_its_first_day(memory: MemoryRecords, tmp_path: Path) -> None:
    """What was spent last month does not count any more, until a clock goes back there."""
    now = [datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC).timestamp()]
    desk = Desk(memory, tmp_path)
    leasing = Leasing(desk.controller, desk.registry, clock=lambda: now[0])
    february = month_of(now[0])
    async with desk.running():
        memory.change_tenant("default", lambda tenant: replace(tenant, limits=Limits(money_per_month=10**12)))
        await desk.until(lambda: desk.published[-1].tenants[0].limits != Limits())
        leasing.heard(GatewayReport(0, 7, 0, used={TENANT: Used(spent={MONTH: Spent(february, 5 * 10**11)})}))
        assert [one.month_money for one in leasing.uses()] == ["0.50"]
        now[0] += 1
        assert [one.month_money for one in leasing.uses()] == ["0.00"]
        leasing.heard(GatewayReport(0, 7, 0, used={TENANT: Used(spent={MONTH: Spent(february + 1, 10**11)})}))
        assert [one.month_money for one in leasing.uses()] == ["0.10"]
        now[0] -= 1
        assert [one.month_money for one in leasing.uses()] == ["0.50"]


async def test_a_new_day_begins_at_midnight(memory: MemoryRecords, tmp_path: Path) -> None:
    """What was used yesterday does not count today, whatever gateways still say of it."""
    now = [20_000.9999 * DAY_S]
    desk = Desk(memory, tmp_path)
    leasing = Leasing(desk.controller, desk.registry, clock=lambda: now[0])
    used = {TENANT: Used(spent={DAY: Spent(20_000, 40)})}
    async with desk.running():
        await limit(desk, tokens_per_day=100)
        leasing.heard(GatewayReport(0, 7, 0, used=used))
        assert [one.day_tokens for one in leasing.uses()] == [40]
        now[0] = 20_001.0 * DAY_S
        leasing.heard(GatewayReport(0, 7, 0, used=used))
        assert [one.day_tokens for one in leasing.uses()] == [0]
        leasing.heard(GatewayReport(0, 7, 0, used={TENANT: Used(spent={DAY: Spent(20_001, 2)})}))
        assert [one.day_tokens for one in leasing.uses()] == [2]
        now[0] = 20_000.5 * DAY_S
        assert [one.day_tokens for one in leasing.uses()] == [40]
