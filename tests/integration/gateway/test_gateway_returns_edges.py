"""Requests that have lost their replica, where something else goes on at the same time."""

from __future__ import annotations

import asyncio
import json
import time

import msgspec
import pytest

from tests.support.front import VERSIONS, chat
from tests.support.returning import fronting, tries, whole
from tuneplex.gateway import doubts
from tuneplex.policy import End, verdict
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import Breaking, ReplicaState, Retries, Timeouts, Waiting


async def test_a_hedge_that_cannot_be_made_costs_nothing(engines: list[FakeEngine], tokenizer: str) -> None:
    """Where there is no second engine, nothing is taken from what may be sent again."""
    few = Retries(share=0, per_second=0.1, hedge_after_s=0.1)  # one at once
    async with fronting(engines[:1], tokenizer, retries=few) as front:
        engines[0].script(Script(before_headers_s=0.4), Script(status=503))
        assert (await front.chat(stream=True)).status == 200
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


async def test_all_that_wait_for_nothing_end(engines: list[FakeEngine], tokenizer: str) -> None:
    """However many they are, and though only some of them are looked at at a time."""
    timeouts = Timeouts(between_chunks_s=0.5)
    async with fronting(engines, tokenizer, timeouts=timeouts, waiting=Waiting(longest_s=60)) as front:
        view = front.gateway.view
        one, two = view.replicas
        front.gateway.update(msgspec.structs.replace(view, replicas=(one, msgspec.structs.replace(two, concurrent=1))))
        engines[0].script(*[Script(silent_after_chunks=2)] * 120)
        engines[1].script(Script(lockstep=True))
        asking = [asyncio.create_task(front.chat(stream=True, max_tokens=8)) for _ in range(121)]
        async with asyncio.timeout(20):
            while front.gateway.report().waiting < 120:  # noqa: ASYNC110 - what is waited for is a number
                await asyncio.sleep(0.05)
        front.gateway.update(msgspec.structs.replace(view, replicas=(one,)))
        async with asyncio.timeout(5):
            done = [await one for one in asking if one is not asking[1]]
        assert {json.loads(reply.events[-1])["error"]["code"] for reply in done} == {"engine_stalled"}
        engines[1].requests[0].release(99)
        assert whole(await asking[1])
        assert len(front.gateway._returns) == 0


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_a_hedge_makes_nothing_worse(engines: list[FakeEngine], tokenizer: str, status: int) -> None:
    """Whatever the engine says that was asked beside it, the first one answers."""
    async with fronting(engines, tokenizer, retries=Retries(hedge_after_s=0.1)) as front:
        engines[0].script(Script(before_headers_s=0.4))
        engines[1].script(Script(status=status))
        assert whole(await front.chat(stream=True))
        assert tries(engines) == [1, 1]


async def test_prompts_are_not_kept_while_streams_go_on(engines: list[FakeEngine], tokenizer: str) -> None:
    """Neither that of the request nor that of its continuation, which has the ids of all tokens."""
    async with fronting(engines, tokenizer) as front:
        engines[0].script(Script(reset_after_chunks=4))
        engines[1].script(Script(lockstep=True))
        asking = asyncio.create_task(front.chat(stream=True, max_tokens=30))
        record = await engines[1].arrived(1)
        (relay,) = front.gateway.ledger.relays
        assert "prompt" in relay.asked.fields
        record.release(3)
        async with asyncio.timeout(5):
            while relay.asked.fields:  # noqa: ASYNC110 - it is no event of the test
                await asyncio.sleep(0.01)
        record.release(99)
        assert whole(await asking)


@pytest.mark.parametrize("chunks, quarantined", [(2, True), (6, False)])
async def test_a_stream_that_engines_die_of_at_the_same_token_moves_once(
    tokenizer: str, chunks: int, *, quarantined: bool
) -> None:
    """The last tokens before the first death may not have been read, and so come from the second engine, which dies."""
    made = [FakeEngine("base", adapters=VERSIONS.values()) for _ in range(3)]
    async with made[0], made[1], made[2], fronting(made, tokenizer) as front:
        made[0].script(Script(die_after_chunks=6))
        made[1].script(Script(die_after_chunks=chunks))
        reply = await front.chat(stream=True, max_tokens=60, ignore_eos=True)
        assert tries(made) == [1, 1, 0 if quarantined else 1]
        assert whole(reply) is not quarantined
        if quarantined:
            assert json.loads(reply.events[-1])["error"]["code"] == "quarantined"


async def test_an_engine_that_cannot_be_understood_has_not_ended(engines: list[FakeEngine], tokenizer: str) -> None:
    """The stream cannot go on, its client is told why, and nobody asks whether the engine is still there."""
    async with fronting(engines, tokenizer) as front:
        engines[0].script(Script(silent_after_chunks=4))
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        event = 'data: {"id":"x","choices":[{"index":0,"text":"a","token_ids":[5],"odd":1}]}\n\n'
        engines[1].script(Script(raw=head + event))
        reply = await front.chat(stream=True, max_tokens=30)
        assert json.loads(reply.events[-1])["error"]["code"] == "engine_reply_invalid"
        assert not any(record.path == "/health" for record in engines[1].requests)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_request_begins_anew_with_the_model_as_it_is_then(
    engines: list[FakeEngine], tokenizer: str, *, waits: bool
) -> None:
    """Whether another version came before its engine failed, or while it waits: the old one may be nowhere any more."""
    old, new = VERSIONS["contacts"], VERSIONS["contacts-v2"]
    async with fronting(engines[:1], tokenizer, waiting=Waiting(longest_s=10)) as front:
        view = front.gateway.view
        engines[0].script(Script(before_headers_s=0.2, status=503, retry_after=1))
        asking = asyncio.create_task(front.chat())
        record = await engines[0].arrived(1)
        if waits:
            await record.ended.wait()
            await asyncio.sleep(0.1)
            assert len(front.gateway._returns) == 1
        models = {**view.models, "contacts": msgspec.structs.replace(view.models["contacts"], version=new)}
        serves = {name: name for name in view.replicas[0].serves if name != old}
        replicas = (msgspec.structs.replace(view.replicas[0], serves=serves),)
        front.gateway.update(msgspec.structs.replace(view, models=models, replicas=replicas))
        assert (await asking).status == 200
        assert [record.json["model"] for record in engines[0].requests] == [old, new]
        assert not front.gateway._places._waiting


@pytest.mark.parametrize("status, code", [(404, None), (400, None), (500, "engine_error")])
async def test_a_refusal_of_the_continuation_is_not_the_clients(tokenizer: str, status: int, code: str | None) -> None:
    """The request was good enough for the first engine; perhaps the second one has just lost the adapter."""
    made = [FakeEngine("base", adapters=VERSIONS.values()) for _ in range(3)]
    async with made[0], made[1], made[2], fronting(made, tokenizer) as front:
        made[0].script(Script(silent_after_chunks=4))
        made[1].script(Script(status=status))
        reply = await front.chat(stream=True, max_tokens=30)
        assert whole(reply) is (code is None)
        assert tries(made) == [1, 1, 1 if code is None else 0]
        if code is not None:
            assert json.loads(reply.events[-1])["error"]["code"] == code


async def test_a_refused_continuation_is_a_failure(engines: list[FakeEngine], tokenizer: str) -> None:
    """The client has sent what one engine had taken, so it counts as an engine's error when nobody else goes on."""
    async with fronting(engines, tokenizer, tries=2) as front:
        engines[0].script(Script(silent_after_chunks=4))
        engines[1].script(Script(status=400))
        assert not whole(await front.chat(stream=True, max_tokens=30))
        assert tries(engines) == [1, 1]
        assert front.outcomes() == {"engine_error": 1}


async def test_both_engines_are_let_go_when_the_client_leaves(engines: list[FakeEngine], tokenizer: str) -> None:
    """The one that was asked first and the one that was asked beside it, and the request is counted once."""
    async with fronting(engines, tokenizer, retries=Retries(hedge_after_s=0.1), timeouts=Timeouts()) as front:
        for engine in engines:
            engine.script(Script(silent_before_headers=True))
        http = await front.connect()
        http.post("/v1/chat/completions", chat(stream=True))
        records = [await engine.arrived(1) for engine in engines]
        http.writer.transport.abort()
        async with asyncio.timeout(5):
            for record in records:
                await record.left.wait()
        ledger = front.gateway.ledger
        assert not ledger.outstanding | front.gateway._places.slots.busy
        assert not ledger.attempts | ledger.relays
        assert front.outcomes() == {"client_gone": 1}


async def test_a_probe_whose_client_leaves_lets_the_next_one_go(engines: list[FakeEngine], tokenizer: str) -> None:
    """It has proved nothing, and must not keep an engine away from all the others."""
    breaking = Breaking(failures=1, open_s=0.3)
    async with fronting(engines[:1], tokenizer, tries=1, breaking=breaking, timeouts=Timeouts()) as front:
        engines[0].script(Script(status=502), Script(silent_before_headers=True))
        assert (await front.chat()).status == 502
        await asyncio.sleep(0.4)
        http = await front.connect()
        http.post("/v1/chat/completions", chat())
        probe = await engines[0].arrived(2)
        assert (await front.chat()).status == 503
        http.writer.transport.abort()
        await asyncio.wait_for(probe.left.wait(), 5)
        assert (await front.chat()).status == 200


async def test_only_streams_are_hedged(engines: list[FakeEngine], tokenizer: str) -> None:
    """Other replies come when they are complete, so a silent engine may be well at work."""
    async with fronting(engines, tokenizer, retries=Retries(hedge_after_s=0.1)) as front:
        engines[0].script(Script(before_headers_s=0.4))
        assert (await front.chat()).status == 200
        assert tries(engines) == [1, 0]


async def test_an_engine_that_says_it_is_sick_gets_nothing(
    engines: list[FakeEngine], tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked until it is well, or until control sees that it has ended; what comes meanwhile waits."""
    monkeypatch.setattr(doubts, "_LONGEST_S", 0.3)
    async with fronting(engines[:1], tokenizer) as front:
        engines[0].script(*[Script(status=503)] * 5, path="/health")
        dead = '{"error":{"message":"EngineCore encountered an issue. See stack trace","code":500}}'
        engines[0].script(Script(status=500, body=dead))
        assert (await front.chat()).status == 500
        assert (await front.chat()).status == 200
        asked = [record.path for record in engines[0].requests]
        assert asked.count("/health") == 6
        assert asked[-1] == "/v1/chat/completions"
