"""Requests whose engine fails: they begin anew elsewhere, or go on there where they broke off."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.support.front import VERSIONS, Front, Response, chat, scripted
from tests.support.returning import fronting, tries, whole
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import Breaking, ReplicaState, Retries, Waiting


def fake() -> FakeEngine:
    """An engine with all adapters."""
    return FakeEngine("base", adapters=VERSIONS.values())


@pytest.fixture
async def front(engines: list[FakeEngine], tokenizer: str) -> AsyncIterator[Front]:
    """A gateway before both."""
    async with fronting(engines, tokenizer) as front:
        yield front


async def truth(front: Front, **fields: Any) -> Response:  # noqa: ANN401 - of the request
    """The same answer without any failure."""
    reply = await front.chat(**fields)
    assert whole(reply)
    return reply


# --- before the first byte


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        Script(reset_before_headers=True),
        Script(raw="SSH-2.0-OpenSSH_9.2\r\n"),
        Script(raw="HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"),
        Script(content_type="text/html", body="<html>login</html>"),
        Script(status=502),
        Script(status=503),
        Script(status=504),
        Script(status=500, body='{"error":{"message":"EngineCore encountered an issue. See stack trace","code":500}}'),
        Script(status=429),
        Script(silent_before_headers=True),
    ],
    ids=scripted,
)
async def test_what_an_engine_fails_at_another_one_does(
    front: Front, engines: list[FakeEngine], script: Script, *, stream: bool
) -> None:
    """The client sees nothing of it, and the counters do."""
    engines[0].script(script)
    reply = await front.chat(stream=stream)
    assert reply.status == 200
    assert tries(engines) == [1, 1]
    assert front.outcomes() == {"complete": 1}
    assert not front.gateway.ledger.outstanding


@pytest.mark.parametrize("script", [Script(status=400), Script(status=404), Script(status=500)], ids=scripted)
async def test_what_may_be_the_requests_own_fault_is_not_sent_again(
    front: Front, engines: list[FakeEngine], script: Script
) -> None:
    """One engine is asked, and its refusal is the answer."""
    engines[0].script(script)
    assert (await front.chat()).status == script.status
    assert tries(engines) == [1, 0]


async def test_a_single_engine_is_asked_again(engines: list[FakeEngine], tokenizer: str) -> None:
    """Where there is no other one, as often as the settings say."""
    async with fronting(engines[:1], tokenizer) as front:
        engines[0].script(Script(reset_before_headers=True), Script(reset_before_headers=True))
        assert (await front.chat()).status == 200
        engines[0].script(*[Script(status=503)] * 3)
        reply = await front.chat()
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert tries(engines[:1]) == [6]


async def test_retries_are_bounded(engines: list[FakeEngine], tokenizer: str) -> None:
    """Above the budget, clients get the engine's error at once, and are told when to come back."""
    never = Retries(tries=3, share=0, per_second=0)
    async with fronting(engines, tokenizer, retries=never) as front:
        engines[0].script(Script(status=502))
        reply = await front.chat()
        assert reply.status == 502
        assert "retry-after" in reply.headers
        assert tries(engines) == [1, 0]


async def test_busy_engines_are_given_their_time(engines: list[FakeEngine], tokenizer: str) -> None:
    """After a 429 with `retry-after` an engine gets nothing before that; if it is the only one, requests wait."""
    async with fronting(engines[:1], tokenizer) as front:
        engines[0].script(Script(raw="HTTP/1.1 429 x\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}"))
        began = time.monotonic()
        replies = await asyncio.gather(front.chat(), front.chat())
        assert [reply.status for reply in replies] == [200, 200]
        assert time.monotonic() - began >= 1


async def test_a_hedge_answers_for_a_silent_engine(engines: list[FakeEngine], tokenizer: str) -> None:
    """Another one is asked beside it, the first to answer answers, and the other one is let go."""
    async with fronting(engines, tokenizer, retries=Retries(hedge_after_s=0.2)) as front:
        engines[0].script(Script(silent_before_headers=True))
        reply = await front.chat(stream=True)
        assert whole(reply)
        assert tries(engines) == [1, 1]
        await asyncio.wait_for(engines[0].requests[0].left.wait(), 5)
        assert not front.gateway.ledger.outstanding
        hedges = front.gateway.report().counters["tuneplex_hedges_total"]
        assert hedges == [(("contacts", "second"), 1.0)]


async def test_an_engine_that_fails_gets_nothing_for_a_while(engines: list[FakeEngine], tokenizer: str) -> None:
    """After some failures it is left alone, then one request tries it, and when that is answered all is well."""
    async with fronting(engines[:1], tokenizer, tries=1, breaking=Breaking(failures=3, open_s=0.6)) as front:
        engines[0].script(*[Script(status=503)] * 3)
        assert [(await front.chat()).status for _ in range(3)] == [503] * 3
        reply = await front.chat()
        assert (reply.status, reply.error["code"]) == (503, "no_healthy_engine")
        assert int(reply.headers["retry-after"]) >= 1
        assert tries(engines[:1]) == [3]
        await asyncio.sleep(0.7)
        assert (await front.chat()).status == 200


async def test_a_prompt_that_is_too_long_breaks_nothing(engines: list[FakeEngine], tokenizer: str) -> None:
    """However often: it is the request's fault."""
    async with fronting(engines[:1], tokenizer, tries=1, breaking=Breaking(failures=2)) as front:
        for _ in range(10):
            assert (await front.chat(max_tokens=100_000)).status == 400
        assert (await front.chat()).status == 200


# --- after the first byte


FAILURES = [
    Script(reset_after_chunks=4),
    Script(close_after_chunks=4),
    Script(silent_after_chunks=4),
    Script(die_after_chunks=4),
]


@pytest.mark.parametrize("script", FAILURES, ids=scripted)
async def test_a_stream_goes_on_elsewhere(front: Front, engines: list[FakeEngine], script: Script) -> None:
    """With the same text, one id, one role, one end, and the whole usage."""
    fields: dict[str, Any] = {"stream": True, "max_tokens": 30, "stream_options": {"include_usage": True}}
    expected = await truth(front, **fields)
    engines[0].script(script)
    reply = await front.chat(**fields)
    assert whole(reply)
    assert tries(engines) == [2, 1]
    assert reply.text == expected.text
    chunks, others = ([json.loads(event) for event in one.events[:-1]] for one in (reply, expected))
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert sum("role" in choice["delta"] for chunk in chunks for choice in chunk["choices"]) == 1
    assert [chunk["usage"] for chunk in chunks if chunk.get("usage")] == [others[-1]["usage"]]
    assert {chunk["model"] for chunk in chunks} == {"contacts"}
    assert b'token_ids":[' not in reply.body
    assert front.outcomes() == {"complete": 2}
    assert not front.gateway.ledger.outstanding


async def test_a_stream_ends_at_a_stop_string_across_the_seam(front: Front, engines: list[FakeEngine]) -> None:
    """At once, though its engine goes on, as it does not see the string."""
    whole_reply = await truth(front, stream=True, max_tokens=30, ignore_eos=True)
    chunks = [json.loads(event) for event in whole_reply.events[:-1]]
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    at = next(at for at in range(3, 20) if min(map(len, texts[at - 1 : at + 3])) > 2)
    stop = texts[at - 1][-2:] + "".join(texts[at : at + 2]) + texts[at + 2][:2]
    engines[0].script(Script(reset_after_chunks=at))
    engines[1].script(Script(silent_after_chunks=5))
    reply = await front.chat(stream=True, max_tokens=30, ignore_eos=True, stop=stop)
    assert whole(reply)
    assert reply.text == "".join(texts)[: "".join(texts).index(stop)]
    assert reply.events.count("[DONE]") == 1
    await asyncio.wait_for(engines[1].requests[0].left.wait(), 5)
    assert front.outcomes() == {"complete": 2}


async def test_a_stream_moves_several_times(engines: list[FakeEngine], tokenizer: str) -> None:
    """As often as it has to, as long as it gets further in between."""
    async with fronting(engines, tokenizer, tries=2) as front:
        expected = await truth(front, stream=True, max_tokens=60)
        for engine in engines:
            engine.script(*[Script(reset_after_chunks=5)] * 3)
        reply = await front.chat(stream=True, max_tokens=60)
        assert whole(reply)
        assert reply.text == expected.text
        assert min(tries(engines)) >= 3


async def test_without_migration_a_stream_ends_with_an_error(engines: list[FakeEngine], tokenizer: str) -> None:
    """An error event, and no `[DONE]`."""
    async with fronting(engines, tokenizer, migrate=False) as front:
        engines[0].script(Script(reset_after_chunks=4))
        reply = await front.chat(stream=True, max_tokens=30)
        assert json.loads(reply.events[-1])["error"]["code"] == "engine_broke_off"
        assert tries(engines) == [1, 0]


async def test_what_cannot_be_continued_ends_with_an_error(front: Front, engines: list[FakeEngine]) -> None:
    """For instance a stream with a seed."""
    engines[0].script(Script(reset_after_chunks=4))
    reply = await front.chat(stream=True, max_tokens=30, seed=3)
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_broke_off"
    assert tries(engines) == [1, 0]


async def test_a_stream_that_lacks_only_its_end_gets_it(front: Front, engines: list[FakeEngine]) -> None:
    """All tokens have come, and the connection breaks before `[DONE]`: that is written here."""
    engines[0].script(Script(drop_done=True))
    reply = await front.chat(stream=True, max_tokens=5)
    assert whole(reply)
    assert tries(engines) == [1, 0]


async def test_a_draining_replica_is_left(front: Front, engines: list[FakeEngine]) -> None:
    """Shortly before it is stopped, its streams go on elsewhere; before that they stay."""
    expected = await truth(front, stream=True, max_tokens=60)
    engines[0].script(Script(between_chunks_s=0.03))
    asking = asyncio.create_task(front.chat(stream=True, max_tokens=60))
    record = await engines[0].arrived(2)
    await asyncio.sleep(0.3)
    view = front.gateway.view

    def drained(leave_at: float) -> None:
        one, two = view.replicas
        one = msgspec.structs.replace(one, state=ReplicaState.DRAINING, leave_at=leave_at)
        front.gateway.update(msgspec.structs.replace(view, replicas=(one, two)))

    drained(time.time() + 600)
    await asyncio.sleep(0.3)
    assert tries(engines) == [2, 0]
    drained(time.time())
    reply = await asking
    assert whole(reply)
    assert reply.text == expected.text
    assert tries(engines) == [2, 1]
    assert record.left.is_set()


async def test_a_request_that_engines_die_of_is_not_sent_to_a_third(tokenizer: str) -> None:
    """Two have died with it under way, so it gets an error that clients do not repeat."""
    made = [fake() for _ in range(3)]
    async with made[0], made[1], made[2], fronting(made, tokenizer, tries=10) as front:
        for engine in made:
            engine.script(Script(die=True))
        reply = await front.chat(stream=True)
        assert (reply.status, reply.error["code"]) == (502, "quarantined")
        assert reply.headers["x-should-retry"] == "false"
        assert tries(made) == [1, 1, 0]


async def test_the_client_leaves_while_it_waits_for_another_engine(engines: list[FakeEngine], tokenizer: str) -> None:
    """Nothing of it stays behind."""
    async with fronting(engines[:1], tokenizer, waiting=Waiting(longest_s=30)) as front:
        engines[0].script(Script(die_after_chunks=3))
        http = await front.connect()
        http.post("/v1/chat/completions", chat(stream=True, max_tokens=50))
        await http.head()
        await http.chunk()
        await asyncio.sleep(0.3)
        http.writer.transport.abort()
        await asyncio.sleep(0.3)
        assert not front.gateway.ledger.relays
        assert len(front.gateway._returns) == 0
        assert front.outcomes() == {"client_gone": 1}


def starting(front: Front, number: int) -> None:
    """Control says that the engine of this replica has ended and another one is starting."""
    view = front.gateway.view
    replicas = list(view.replicas)
    versions = frozenset(model.version for model in view.models.values())
    replicas[number] = msgspec.structs.replace(
        replicas[number], state=ReplicaState.STARTING, endpoint="", serves={}, awaited=versions
    )
    front.gateway.update(msgspec.structs.replace(view, replicas=tuple(replicas)))


async def test_a_stream_goes_on_at_the_engine_that_follows(tokenizer: str) -> None:
    """Control starts another one at the same address, and that is as good as any."""
    async with fake() as first, fronting([first], tokenizer) as front:
        expected = await truth(front, stream=True, max_tokens=30)
        ready = front.gateway.view
        first.script(Script(die_after_chunks=4))
        asking = asyncio.create_task(front.chat(stream=True, max_tokens=30))
        await (await first.arrived(2)).ended.wait()
        await asyncio.sleep(0.1)
        starting(front, 0)
        await asyncio.sleep(0.2)
        async with FakeEngine("base", adapters=VERSIONS.values(), port=int(first.url.rpartition(":")[2])):
            front.gateway.update(ready)
            reply = await asking
    assert whole(reply)
    assert reply.text == expected.text


async def test_a_stream_waits_for_an_engine_that_starts(front: Front, engines: list[FakeEngine]) -> None:
    """Its own hangs, and as long as another one is expected nothing is lost."""
    expected = await truth(front, stream=True, max_tokens=30)
    ready = front.gateway.view
    starting(front, 0)
    engines[1].script(Script(silent_after_chunks=4))
    asking = asyncio.create_task(front.chat(stream=True, max_tokens=30))
    await asyncio.wait_for((await engines[1].arrived()).left.wait(), 5)
    await asyncio.sleep(0.3)
    front.gateway.update(ready)
    reply = await asking
    assert whole(reply)
    assert reply.text == expected.text


async def test_nobody_is_refused_while_control_may_start_another_engine(tokenizer: str) -> None:
    """The only engine dies with many streams: its breaker opens, and still what comes then waits for the next one."""
    async with fake() as first, fronting([first], tokenizer, breaking=Breaking(failures=2, open_s=2)) as front:
        ready = front.gateway.view
        first.script(*[Script(silent_after_chunks=3)] * 4)
        asking = [asyncio.create_task(front.chat(stream=True, max_tokens=30)) for _ in range(4)]
        record = await first.arrived(4)
        await record.sent_pieces(3)
        first.die()
        await asyncio.sleep(0.1)
        asking.append(asyncio.create_task(front.chat(stream=True, max_tokens=30)))
        await asyncio.sleep(0.1)
        starting(front, 0)
        async with FakeEngine("base", adapters=VERSIONS.values(), port=int(first.url.rpartition(":")[2])):
            front.gateway.update(ready)
            replies = await asyncio.gather(*asking)
    assert all(map(whole, replies))
