"""What a client sees when an engine fails: complete, error and cut are three different things."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from tests.support.front import Front, open_front, scripted, view_of
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import GatewaySettings, Timeouts

BREAKS = [
    Script(reset_after_chunks=3),
    Script(close_after_chunks=3),
    Script(drop_done=True),
    Script(reset_after_chunks=3, cut=11),
    Script(reset_after_chunks=3, crlf=True),
]


def internal(engine: FakeEngine) -> list[str]:
    """What must not reach a client."""
    return [engine.endpoint.removeprefix("http://"), "0123456789ab", "Traceback"]


@pytest.mark.parametrize("script", BREAKS, ids=scripted)
async def test_a_stream_that_breaks_ends_with_an_error_event(front: Front, engine: FakeEngine, script: Script) -> None:
    """Whole events, then one error event in OpenAI's shape, no `[DONE]`, a proper end of the HTTP body."""
    engine.script(script)
    reply = await front.chat(stream=True, max_tokens=20)
    *chunks, last = reply.events
    assert reply.complete
    assert len(chunks) >= 3
    assert all("error" not in json.loads(chunk) for chunk in chunks)
    error = json.loads(last)["error"]
    assert (error["type"], error["param"]) == ("server_error", None)
    assert "[DONE]" not in reply.events
    assert front.outcomes() == {"broken": 1}
    assert not front.gateway.ledger.outstanding


async def test_a_response_that_breaks_ends_with_a_typed_error_event(front: Front, engine: FakeEngine) -> None:
    """`/v1/responses` has events with a type and a number; the error has them too."""
    engine.script(Script(reset_after_chunks=4))
    reply = await front.post("/v1/responses", {"model": "contacts", "input": "hello", "stream": True})
    events = [json.loads(event) for event in reply.events]
    assert b"event: error\ndata: " in reply.body
    assert events[-1]["type"] == "error"
    assert events[-1]["sequence_number"] == events[-2]["sequence_number"] + 1
    assert events[-1]["error"]["message"] == events[-1]["message"]


@pytest.mark.parametrize(
    "script",
    [
        Script(error_after_chunks=2),
        Script(error_after_chunks=2, join=9),
        Script(error_after_chunks=2, crlf=True),
        Script(error_after_chunks=2, crlf=True, join=9),
    ],
    ids=scripted,
)
async def test_the_engines_own_error_event_is_the_last_one(front: Front, engine: FakeEngine, script: Script) -> None:
    """VLLM sends an error and then `[DONE]`; the client gets what came before, the error in OpenAI's shape, no more."""
    engine.script(script)
    reply = await front.chat(stream=True, max_tokens=20)
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_error"
    assert len(reply.events) == 3
    assert front.outcomes() == {"engine_error": 1}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script, status",
    [
        (Script(reset_before_headers=True), 502),
        (Script(raw="SSH-2.0-OpenSSH_9.2\r\n"), 502),
        (Script(raw="HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"), 502),
        (Script(raw="HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"), 502),
        (Script(content_type="text/html", body="<html>login</html>"), 502),
        (Script(content_type="application/octet-stream", body="{}"), 502),
        (Script(content_type="application/json", body="{nonsense"), 502),
        (Script(content_type="text/event-stream", body=""), 502),
        (Script(status=500), 500),
        (Script(status=503), 503),
        (Script(status=502, body="<html>"), 502),
        (Script(status=429), 429),
        (Script(status=400, body='{"detail":"odd"}'), 400),
        (Script(status=401), 502),
    ],
    ids=scripted,
)
async def test_before_the_first_byte_an_error_has_a_status(
    front: Front, engine: FakeEngine, script: Script, status: int, *, stream: bool
) -> None:
    """Always JSON in OpenAI's shape, with a request id, without anything internal."""
    engine.script(script)
    reply = await front.chat(stream=stream)
    assert reply.status == status
    assert reply.error["message"]
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert not [word for word in internal(engine) if word in reply.body.decode()]
    assert not front.gateway.ledger.outstanding
    assert (await front.chat(stream=stream)).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script, outcome",
    [
        (Script(status=400), "refused"),
        (Script(status=404), "refused"),
        (Script(status=422), "refused"),
        (Script(status=401), "engine_error"),  # it is the gateway whose key is wrong
        (Script(status=429), "engine_error"),
        (Script(status=500), "engine_error"),
        (Script(status=501), "engine_error"),
    ],
    ids=scripted,
)
async def test_a_refusal_is_no_failure(
    front: Front, engine: FakeEngine, script: Script, outcome: str, *, stream: bool
) -> None:
    """What is wrong with a request by the engine's word counts as refused, and none of its tokens are counted."""
    engine.script(*[script] * 9)
    assert (await front.chat(stream=stream)).status >= 400
    assert front.outcomes() == {outcome: 1}
    sums = front.gateway.report().counters
    tokens = sums["tuneplex_prompt_tokens_total"] + sums["tuneplex_completion_tokens_total"]
    assert {count for _, count in tokens} == {0}


async def test_an_engine_that_is_down_is_unavailable(front: Front, engine: FakeEngine) -> None:
    """Nobody listens: 503 with `retry-after`, without the address."""
    engine.die()
    reply = await front.chat()
    assert (reply.status, reply.error["code"]) == (503, "engine_unreachable")
    assert int(reply.headers["retry-after"]) >= 1
    assert front.outcomes() == {"unreachable": 1}


async def test_a_unary_reply_that_breaks_off_is_bad_gateway(front: Front, engine: FakeEngine) -> None:
    """A whole error instead of half an answer."""
    engine.script(
        Script(raw="HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{")
    )
    reply = await front.chat()
    assert (reply.status, reply.error["code"]) == (502, "engine_broke_off")


async def test_events_split_anywhere_arrive_whole(front: Front, engine: FakeEngine) -> None:
    """The engine's pieces end in the middle of events, names and characters; what the client reads is the same."""
    plain = await front.chat(stream=True, max_tokens=30)
    for script in (Script(cut=1), Script(cut=13), Script(join=4), Script(join=3, cut=100), Script(crlf=True, cut=17)):
        engine.script(script)
        reply = await front.chat(stream=True, max_tokens=30)
        assert reply.text == plain.text
        assert reply.events[-1] == "[DONE]"
        assert b"0123456789ab" not in reply.body


@pytest.mark.parametrize(
    "script, stream, timeouts, words, status",
    [
        (Script(silent_before_headers=True), False, Timeouts(first_byte_s=0.2), "its reply within 0.2", 504),
        (Script(silent_after_chunks=0), True, Timeouts(first_byte_s=0.2), "its reply within 0.2", 504),
        (Script(silent_after_chunks=2), True, Timeouts(between_chunks_s=0.2), "next part of its reply within 0.2", 200),
    ],
)
async def test_each_timeout_has_its_own_message(
    engine: FakeEngine, script: Script, timeouts: Timeouts, words: str, status: int, *, stream: bool
) -> None:
    """A silent engine is given up and hears of it."""
    async with open_front(view_of([engine], GatewaySettings(timeouts=timeouts))) as front:
        engine.script(script)
        reply = await front.chat(stream=stream, max_tokens=20)
        assert reply.status == status
        assert words in reply.body.decode()
        assert reply.complete
        await asyncio.wait_for(engine.requests[0].left.wait(), 5)
        assert front.outcomes() == {"timeout": 1}


async def test_slow_connects_time_out(front: Front) -> None:
    """An address that swallows packets is given up after its own time."""
    replica = msgspec.structs.replace(front.gateway.view.replicas[0], endpoint="http://192.0.2.1:9")
    front.gateway.update(msgspec.structs.replace(front.gateway.view, replicas=(replica,)))
    front.settings(timeouts=Timeouts(connect_s=0.1))
    reply = await front.chat()
    assert (reply.status, reply.error["code"]) == (503, "engine_unreachable")


async def test_connections_that_went_stale_are_replaced(engine: FakeEngine) -> None:
    """An engine that closes idle connections, even at the very moment of use, costs no request."""
    async with FakeEngine("base", keep_alive_s=0.05) as brief, open_front(view_of([brief])) as front:
        for _ in range(10):
            assert (await front.chat("base")).status == 200
            await asyncio.sleep(0.05)
        assert len(brief.requests) == 10
    assert not engine.requests


async def test_requests_spread_over_replicas(engine: FakeEngine) -> None:
    """The one with less under way gets the next."""
    async with FakeEngine("base") as second, open_front(view_of([engine, second])) as front:
        engine.script(Script(silent_before_headers=True))
        waiting = asyncio.create_task(front.chat("base"))
        await engine.arrived()
        assert front.gateway.report().outstanding == {"r0": 1}
        assert (await front.chat("base")).status == 200
        assert len(second.requests) == 1
        waiting.cancel()
