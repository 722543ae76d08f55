"""Requests that have lost their replica, where something else goes on at the same time."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from tests.support.front import VERSIONS
from tests.support.returning import fronting, tries, whole
from tuneplex.policy import End, verdict
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import ReplicaState, Retries, Timeouts, Waiting


async def test_a_hedge_that_cannot_be_made_costs_nothing(engines: list[FakeEngine], tokenizer: str) -> None:
    """Where there is no second engine, nothing is taken from what may be sent again."""
    few = Retries(share=0, per_second=0.1, hedge_after_s=0.1)  # one at once
    async with fronting(engines[:1], tokenizer, retries=few) as front:
        engines[0].script(Script(before_headers_s=0.4), Script(status=503))
        assert (await front.chat()).status == 200
        assert (await front.chat()).status == 200
        assert tries(engines[:1]) == [3]


async def test_what_has_nowhere_to_go_costs_nothing(engines: list[FakeEngine], tokenizer: str) -> None:
    """A request that cannot be sent again leaves what may be sent again to those that can."""
    few = Retries(share=0, per_second=0.1)
    async with fronting(engines[:1], tokenizer, retries=few) as front:
        nonsense = Script(content_type="text/html", body="<html>login</html>")  # not worth another try there
        engines[0].script(nonsense, Script(status=503))
        assert (await front.chat()).status == 502
        assert (await front.chat()).status == 200


async def test_an_engine_that_is_back_is_asked_again(engines: list[FakeEngine], tokenizer: str) -> None:
    """Though it was found to be gone some time ago: since then it has answered."""
    async with fronting(engines[:1], tokenizer) as front:
        upstream = front.gateway._upstreams[front.gateway.view.replicas[0]]
        front.gateway._doubts._note(upstream.replica.endpoint, gone=True)
        assert (await front.chat()).status == 200
        engines[0].script(Script(status=503))
        assert (await front.chat()).status == 200
        assert tries(engines[:1]) == [3]


async def test_each_engine_is_worth_what_it_did_itself(engines: list[FakeEngine], tokenizer: str) -> None:
    """One that only broke off is tried again, though another one has been silent since."""
    async with fronting(engines, tokenizer, tries=5) as front:
        engines[0].script(Script(reset_before_headers=True))
        engines[1].script(Script(silent_before_headers=True))
        assert (await front.chat()).status == 200
        assert tries(engines) == [2, 1]


async def test_what_becomes_of_an_engine_later_says_nothing_of_a_broken_connection(
    engines: list[FakeEngine], tokenizer: str
) -> None:
    """An engine that was there after a connection broke did not die of it, though it does die in the end."""
    async with fronting(engines[:1], tokenizer) as front:
        doubts, replica = front.gateway._doubts, front.gateway.view.replicas[0]
        upstream = front.gateway._upstreams[replica]
        broke = time.monotonic()
        doubts.doubt(upstream)
        assert doubts.died(upstream, broke) is None
        while replica.name in doubts:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        assert doubts.died(upstream, broke) is False
        engines[0].die()
        died = time.monotonic()
        doubts.doubt(upstream)
        while doubts.died(upstream, died) is None:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.01)
        assert doubts.died(upstream, died) is True
        assert doubts.died(upstream, broke) is False


@pytest.mark.parametrize("drains", [False, True])
async def test_a_stream_waits_for_no_engine_that_cannot_continue_it(
    engines: list[FakeEngine], tokenizer: str, *, drains: bool
) -> None:
    """It ends at once where it cannot go on, and it is not taken away from where it can."""
    async with fronting(engines, tokenizer, waiting=Waiting(longest_s=30)) as front:
        view = front.gateway.view
        one, two = view.replicas
        two = msgspec.structs.replace(two, engine="openai")  # tells no token ids
        front.gateway.update(msgspec.structs.replace(view, replicas=(one, two)))
        engines[0].script(Script(lockstep=True, silent_after_chunks=None if drains else 4))
        asking = asyncio.create_task(front.chat(stream=True, max_tokens=8))
        record = await engines[0].arrived(1)
        record.release(4)
        await record.sent_pieces(4)
        if drains:
            one = msgspec.structs.replace(one, state=ReplicaState.DRAINING, leave_at=time.time())
            front.gateway.update(msgspec.structs.replace(view, replicas=(one, two)))
            front.gateway.tick(time.monotonic())
        record.release(100)
        reply = await asyncio.wait_for(asking, 5)
        assert whole(reply) is drains
        assert tries(engines) == [1, 0]


async def test_engines_that_end_side_by_side_count(tokenizer: str) -> None:
    """A request at which an engine and the one asked beside it have ended goes to no third one."""
    made = [FakeEngine("base", adapters=VERSIONS.values()) for _ in range(3)]
    async with made[0], made[1], made[2], fronting(made, tokenizer, retries=Retries(hedge_after_s=0.1)) as front:
        for engine in made:
            engine.script(Script(before_headers_s=0.4, die=True))
        reply = await front.chat(stream=True)
        assert (reply.status, reply.error["code"]) == (502, "quarantined")
        assert tries(made) == [1, 1, 0]


async def test_a_hedge_is_counted_once(engines: list[FakeEngine], tokenizer: str) -> None:
    """However often its stream moves afterwards."""
    async with fronting(engines, tokenizer, retries=Retries(hedge_after_s=0.1)) as front:
        engines[0].script(Script(silent_before_headers=True))
        engines[1].script(Script(reset_after_chunks=4))
        assert whole(await front.chat(stream=True, max_tokens=30))
        assert front.gateway.report().counters["tuneplex_hedges_total"] == [(("contacts", "second"), 1.0)]


async def test_an_engine_that_has_failed_once_is_better_than_one_that_is_away(
    engines: list[FakeEngine], tokenizer: str
) -> None:
    """A request goes to where it has failed, rather than wait for an engine that gets nothing for long."""
    async with fronting(engines, tokenizer, waiting=Waiting(longest_s=30)) as front:
        front.gateway._health.ended("r1", 0, verdict(End.BUSY, 25.0))
        engines[0].script(Script(status=503))
        reply = await asyncio.wait_for(front.chat(), 5)
        assert reply.status == 200
        assert tries(engines) == [2, 0]


async def test_a_stream_gets_a_slot_where_it_goes_on(engines: list[FakeEngine], tokenizer: str) -> None:
    """Though requests with another adapter have it, one after the other without a pause: they have to wait."""
    async with fronting(engines, tokenizer, waiting=Waiting(longest_s=5)) as front:
        view = front.gateway.view
        one, two = view.replicas
        one = msgspec.structs.replace(one, serves={name: name for name in one.serves if "v2" not in name})
        two = msgspec.structs.replace(two, slots=1)
        front.gateway.update(msgspec.structs.replace(view, replicas=(one, two)))
        engines[0].script(Script(silent_after_chunks=4))
        engines[1].script(*[Script(before_headers_s=0.1)] * 200)

        async def crowd() -> None:
            while True:
                assert (await front.chat("contacts-v2", max_tokens=1)).status == 200

        crowds = [asyncio.create_task(crowd())]
        await asyncio.sleep(0.05)
        crowds.append(asyncio.create_task(crowd()))
        try:
            assert whole(await front.chat(stream=True, max_tokens=30))
        finally:
            for one_crowd in crowds:
                one_crowd.cancel()
            await asyncio.gather(*crowds, return_exceptions=True)
        assert not front.gateway.report().closing


async def test_control_hears_of_streams_that_wait_for_a_place(engines: list[FakeEngine], tokenizer: str) -> None:
    """So that a gateway gets its share of an engine that only such streams want."""
    timeouts = Timeouts(between_chunks_s=0.5)
    async with fronting(engines, tokenizer, timeouts=timeouts) as front:
        view = front.gateway.view
        two = msgspec.structs.replace(view.replicas[1], concurrent=1)
        front.gateway.update(msgspec.structs.replace(view, replicas=(view.replicas[0], two)))
        engines[1].script(Script(lockstep=True))
        engines[0].script(Script(silent_after_chunks=4))
        asking = asyncio.create_task(front.chat(stream=True, max_tokens=8))
        await engines[0].arrived(1)
        other = asyncio.create_task(front.chat("contacts-v2", stream=True, max_tokens=5))
        await engines[1].arrived(1)
        report = front.gateway.report
        for _ in range(500):
            await asyncio.sleep(0.01)
            if report().waiting:
                break
        wanted = report().demand
        engines[1].requests[0].release(99)
        assert wanted == {"r0": {"default": 0.5}, "r1": {"default": 1.5}}
        assert whole(await asking)
        await other
        assert (report().waiting, report().demand) == (0, {})


async def test_a_defect_in_one_request_does_not_end_the_timeouts_of_all(
    engines: list[FakeEngine], tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked after again a moment later."""
    async with fronting(engines[:1], tokenizer, tries=1) as front:
        ticks: list[float] = []

        def tick(now: float) -> None:
            ticks.append(now)
            if len(ticks) == 1:
                raise ZeroDivisionError

        monkeypatch.setattr(front.gateway.idempotency, "tick", tick)
        engines[0].script(Script(silent_before_headers=True))
        assert (await asyncio.wait_for(front.chat(), 5)).status == 504
