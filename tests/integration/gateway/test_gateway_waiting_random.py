"""Many clients, few places, and everything that can go wrong at once, over real sockets."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from tests.support.front import VERSIONS, Front, chat, open_front, view_of
from tests.support.identities import access_of, bearer, key_of
from tuneplex.identity import Limits, Tenant
from tuneplex.testing import FakeEngine
from tuneplex.types import FleetView, GatewaySettings, Timeouts, Waiting

CHAT = "/v1/chat/completions"
REQUESTS = 150
FAULTS: tuple[dict[str, object], ...] = (
    {},
    {},
    {},
    {"before_headers_s": 0.05},
    {"between_chunks_s": 0.01},
    {"silent_before_headers": True},
    {"silent_after_chunks": 2},
    {"reset_before_headers": True},
    {"reset_after_chunks": 2},
    {"close_after_chunks": 1},
    {"error_after_chunks": 1},
    {"drop_done": True},
    {"status": 500},
    {"status": 429},
    {"raw": "nonsense"},
)
SETTINGS = GatewaySettings(
    waiting=Waiting(requests=40, longest_s=2, comment_s=0.1), timeouts=Timeouts(first_byte_s=0.5, between_chunks_s=0.5)
)


def fleet(first: FakeEngine, second: FakeEngine) -> FleetView:
    """Two replicas with two places and one slot each."""
    view = view_of([first, second], SETTINGS)
    replicas = tuple(msgspec.structs.replace(one, concurrent=2, slots=1) for one in view.replicas)
    return msgspec.structs.replace(view, replicas=replicas)


async def one(front: Front, dice: random.Random) -> str:
    """One client, and how it fared: its answer's status, or that it left."""
    stream = dice.random() < 0.6
    body = chat(dice.choice(("base", *VERSIONS)), stream=stream, max_tokens=4, fake_fault=dice.choice(FAULTS))
    headers = bearer(dice.choice("abc")) | {"x_tuneplex_priority": dice.choice(("high", "normal", "low"))}
    if dice.random() < 0.2:
        headers["x_tuneplex_deadline"] = dice.choice(("50ms", "0.5", "2s"))
    http = await front.connect()
    http.post(CHAT, body, **headers)
    if dice.random() < 0.2:
        await asyncio.sleep(dice.random() / 2)
        http.writer.transport.abort()
        return "left"
    reply = await http.response()
    if not stream or reply.status != 200:
        assert reply.complete
        assert reply.status == 200 or reply.error["message"]
        return str(reply.status)
    assert reply.complete
    assert b"HTTP/1.1" not in reply.body
    last = reply.events[-1]
    assert last == "[DONE]" or "error" in last
    return "stream" if last == "[DONE]" else "error"


async def changing(front: Front, dice: random.Random, whole: FleetView) -> None:
    """Replicas come and go, and load and unload, until it is cancelled."""
    try:
        while True:
            await asyncio.sleep(dice.random() / 5)
            known = [replica for replica in whole.replicas if dice.random() < 0.8]
            serves = [{name: one for name, one in replica.serves.items() if dice.random() < 0.8} for replica in known]
            replicas = tuple(
                msgspec.structs.replace(replica, serves=loaded, awaited=frozenset(replica.serves))
                for replica, loaded in zip(known, serves, strict=True)
            )
            front.gateway.update(msgspec.structs.replace(whole, replicas=replicas or whole.replicas))
    finally:
        front.gateway.update(whole)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_everybody_is_answered_and_nothing_is_left(engine: FakeEngine, seed: int) -> None:
    """Whatever engines, clients and control do: each request ends properly, and in the end nothing is held of any."""
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    limited = Tenant("b", weight=3, limits=Limits(concurrent=30, tokens_per_minute=100_000))
    access = access_of(limited, *(key_of(name, name) for name in "abc"))
    async with FakeEngine("base", adapters=VERSIONS.values()) as second:
        whole = fleet(engine, second)
        async with open_front(whole, access) as front:
            changes = asyncio.create_task(changing(front, dice, whole))
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                asking = []
                for _ in range(REQUESTS):
                    asking.append(group.create_task(one(front, random.Random(dice.random()))))  # noqa: S311 - the same
                    await asyncio.sleep(dice.random() / 50)
            changes.cancel()
            await asyncio.gather(changes, return_exceptions=True)
            ends = {task.result() for task in asking}
            assert {"stream", "200", "error", "left"} <= ends
            gateway = front.gateway
            async with asyncio.timeout(5):
                while gateway.ledger.relays or len(gateway._room):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            report = gateway.report()
            assert (report.waiting, report.outstanding, report.busy, report.demand) == (0, {}, {}, {})
            assert (report.closing, gateway._room.bytes, len(gateway._room._queue)) == ({}, 0, 0)
            assert report.used["tenant b"].concurrent == 0
            assert (await front.post(CHAT, chat(), **bearer("a"))).status == 200
