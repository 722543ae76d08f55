"""A storm: replicas die, hang, reset, run out of memory and come back at random, and no client sees anything of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import time
from pathlib import Path

import psutil
import pytest

from tests.support.crowd import Crowd
from tests.support.errands import Errands
from tests.support.failing import Fleet, Storm
from tests.support.front import VERSIONS, Front, chat, open_front
from tests.support.identities import access_of, bearer, key_of
from tests.support.written import Written
from tuneplex.engines.journal import Journal
from tuneplex.gateway.attempt import Attempt
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.relay import Relay
from tuneplex.identity import Access, Limits, Tenant
from tuneplex.testing import FakeEngine
from tuneplex.types import (
    Breaking,
    FleetView,
    GatewaySettings,
    Model,
    Price,
    Retries,
    Timeouts,
    Waiting,
)

LIMITS = Limits(concurrent=1000, tokens_per_minute=10**9, tokens_per_day=10**9, money_per_month=10**18)
PRICE = Price(prompt=3, completion=7, cached=1)
TENANTS = ("a", "b", "c")
OURS = (Relay, Attempt, Journal, Exchange)
_log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fakes' tokenizer as a file."""
    path: Path = tmp_path_factory.mktemp("base") / "tokenizer.json"
    path.write_text(FakeEngine().tokenizer.as_json())
    return str(path)


def access() -> Access:
    """Three tenants with limits that are never reached."""
    return access_of(*(Tenant(name, limits=LIMITS) for name in TENANTS), *(key_of(name, name) for name in TENANTS))


def view(tokenizer: str, *, hedges: bool) -> FleetView:
    """A fleet without replicas, whose gateway is as patient as a storm needs it."""
    models = {"base": Model("base", "base", price=PRICE)}
    models |= {name: Model(name, version, "base", price=PRICE) for name, version in VERSIONS.items()}
    settings = GatewaySettings(
        timeouts=Timeouts(connect_s=2, first_byte_s=6, between_chunks_s=3, total_s=300),
        waiting=Waiting(longest_s=30, comment_s=0.5),
        retries=Retries(tries=10, share=1, per_second=100, hedge_after_s=1 if hedges else None),
        breaking=Breaking(failures=5, open_s=0.3, longest_s=0.6),
        currency="EUR",
    )
    return FleetView(models=models, settings=settings, tokenizer=tokenizer)


async def settled(front: Front, fleet: Fleet) -> int:
    """Wait until nothing is under way, and all replicas take requests again; how many it has asked for that."""
    gateway, asked = front.gateway, 0
    async with asyncio.timeout(30):
        while gateway.ledger.relays or gateway._health.states() or gateway._doubts._probes:
            # a breaker closes when something has been answered there
            await asyncio.gather(
                *(front.post("/v1/chat/completions", chat("base", max_tokens=1), **bearer("a")) for _ in range(16))
            )
            asked += 16
            await asyncio.sleep(0.05)
        while any(one.busy for seat in fleet.seats for one in seat.engine._wire.connections):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    return asked


def summary(front: Front, crowd: Crowd, storm: Storm) -> dict[str, float]:
    """What happened, in numbers, for people."""
    sums = sums_of(front)
    said = {
        name: sums.get(f"tuneplex_{name}_total", 0) for name in ("retries", "migrations", "hedges", "breaker_opened")
    }
    return {"asked": crowd.asked} | dict(crowd.ends) | dict(storm.happened) | said


def sums_of(front: Front) -> dict[str, float]:
    """The gateway's counters, over all their labels."""
    counters = front.gateway.report().counters
    return {name: sum(count for _, count in rows) for name, rows in counters.items()}


def check_answers(crowd: Crowd, storm: Storm) -> None:
    """Nothing was said wrongly; nothing failed but what could not be begun anew, and what engines may have died of."""
    assert not crowd.wrong, "\n".join(crowd.wrong[:10])
    assert set(crowd.failed.values()) <= {"quarantined"}, crowd.failed
    unfounded = {name: storm.chronicle.deaths[name] for name in crowd.failed if not storm.chronicle.may_be_deadly(name)}
    assert not unfounded  # how many these are depends on how many tokens the machine makes between two deaths
    assert crowd.ends["complete"] > crowd.asked / 2


def check_books(front: Front, crowd: Crowd, extra: int) -> None:
    """All that the gateway counts adds up, and nothing is held of any request."""
    gateway = front.gateway
    ledger, room = gateway.ledger, gateway._room
    assert (ledger.outstanding, ledger.relays, ledger.attempts) == ({}, set(), set())
    assert (len(gateway._returns), len(room), room.bytes, len(room._queue)) == (0, 0, 0, 0)
    assert not len(gateway._entrance)
    report = gateway.report()
    assert (report.waiting, report.outstanding, report.busy, report.demand) == (0, {}, {}, {})
    sums = sums_of(front)
    ended = sums["tuneplex_outcomes_total"] + sums.get("tuneplex_left_waiting_total", 0)
    ended += sums.get("tuneplex_refused_waiting_total", 0)
    assert sums["tuneplex_requests_total"] == ended == crowd.asked + extra
    tokens = sums["tuneplex_prompt_tokens_total"] + sums["tuneplex_completion_tokens_total"]
    spent = 0
    for name in TENANTS:
        used = report.used[f"tenant {name}"]
        assert used.concurrent == 0
        spent += used.spent["tokens_per_day"].amount
    assert spent == tokens
    assert {account.reserved for account in gateway._admission._accounts.values()} == {0}
    assert crowd.completed <= sums["tuneplex_completion_tokens_total"] - extra <= crowd.completed + crowd.begun


def check_connections(front: Front, fleet: Fleet) -> None:
    """Only idle connections to engines are left, and both sides know the same."""
    pools = front.gateway._upstreams._pools
    for seat in fleet.seats:
        assert len(seat.engine._wire.connections) == pools[seat.engine.endpoint].idle
    assert len(pools) == len(fleet.seats)


def ours() -> list[object]:
    """What is in memory of requests."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) in OURS]


async def rage(
    tokenizer: str, written: Written, seed: int, *, clients: int, seconds: float, pace_s: tuple[float, float]
) -> None:
    """One storm, and what has to be true afterwards."""
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    process, tasks = psutil.Process(os.getpid()), asyncio.all_tasks()
    fleet = Fleet(view(tokenizer, hedges=seed % 2 == 1), dice, pace_s, concurrent=max(20, clients // 3))
    async with FakeEngine():
        pass  # the loop keeps a handle from when it listens first
    handles, before = process.num_fds(), ours()  # of other tests something may be left
    first = await fleet.start()
    try:
        async with open_front(first, access(), journal=written.journal) as front:
            await front.gateway.counter.loaded()
            fleet.tell(front.gateway)
            own = asyncio.all_tasks()
            crowd = Crowd(front.port, Errands(seed, longest=200), list(TENANTS), seed)
            storm = Storm(fleet, dice)
            until = time.monotonic() + seconds
            await asyncio.gather(storm.run(until), crowd.run(clients, until))
            extra = await settled(front, fleet)
            _log.info("seed %d: %s", seed, summary(front, crowd, storm))
            check_answers(crowd, storm)
            check_books(front, crowd, extra)
            written.agrees_with(front)
            check_connections(front, fleet)
            left = asyncio.all_tasks() - own - {asyncio.current_task()}
            assert not left
            known = set(map(id, before))
            assert not [one for one in ours() if id(one) not in known]
    finally:
        await fleet.stop()
    assert asyncio.all_tasks() <= tasks
    async with asyncio.timeout(5):
        while process.num_fds() > handles:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_a_short_storm(tokenizer: str, written: Written, seed: int) -> None:
    """Whatever happens to replicas, streams say what they would have said, and nothing is left of any request."""
    await rage(tokenizer, written, seed, clients=80, seconds=12, pace_s=(0.01, 0.03))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 21))
async def test_a_storm(tokenizer: str, written: Written, seed: int) -> None:
    """The same with three hundred streams for two minutes, which take most of a core."""
    await rage(tokenizer, written, seed, clients=300, seconds=120, pace_s=(0.06, 0.15))
