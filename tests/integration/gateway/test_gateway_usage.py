"""The gateway knows what each request used, and no client sees how it came to know."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from tests.support.front import VERSIONS, Front, chat, open_front, scripted, view_of
from tests.support.identities import access_of
from tuneplex.engines.usage import Usage
from tuneplex.identity import Limits, Tenant
from tuneplex.testing import FakeEngine, Record, Script
from tuneplex.types import Price

CONTACTS = VERSIONS["contacts"]
CHAT, COMPLETIONS, RESPONSES = "chat/completions", "completions", "responses"
LOOKS_LIKE_USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}}\n\n","usage":null'
FUNCTION = {"name": "f", "parameters": {"properties": {"usage": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
LUCK = {"temperature": 1, "seed": 3}

STREAMS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {}),
    (CHAT, {"stream_options": None}),
    (CHAT, {"stream_options": {}}),
    (CHAT, {"stream_options": {"include_usage": False}}),
    (CHAT, {"stream_options": {"include_usage": None, "other": {"a": 1}}}),
    (CHAT, {"stream_options": {"continuous_usage_stats": True}}),
    (CHAT, {"stream_options": {"include_usage": False, "continuous_usage_stats": True}}),
    (CHAT, {"stream_options": {"include_usage": True}}),
    (CHAT, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    (CHAT, {"max_tokens": 1}),
    (CHAT, {"n": 3, **LUCK}),
    (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2, **LUCK}),
    (CHAT, {"return_token_ids": True}),
    (CHAT, {"tools": TOOLS, "tool_choice": "required"}),
    (COMPLETIONS, {"prompt": "hello"}),
    (COMPLETIONS, {"prompt": "hello", "max_tokens": 1}),
    (COMPLETIONS, {"prompt": ["hello", "you there"], "n": 2, "logprobs": 1, **LUCK}),
    (COMPLETIONS, {"prompt": "hello", "echo": True, "stream_options": {"include_usage": True}}),
    (RESPONSES, {"input": "hello"}),
    (RESPONSES, {"input": "hello", "tools": [{"type": "function", **FUNCTION}]}),
]
SCRIPTS = [
    Script(),
    Script(cut=1),
    Script(cut=37),
    Script(join=3),
    Script(join=100),
    Script(crlf=True),
    Script(text=LOOKS_LIKE_USAGE),
    Script(text=LOOKS_LIKE_USAGE, join=100, cut=11),
]


def named(value: object) -> str | None:
    """A short name for a request."""
    return json.dumps(value)[:60] if isinstance(value, dict) else scripted(value)


def body_of(path: str, fields: dict[str, Any], **more: object) -> dict[str, Any]:
    """A request for some tokens."""
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    said = {"messages": chat()["messages"]} if path == CHAT else {}
    return {"model": "contacts", "temperature": 0, limit: 12, **said, **fields, **more}


def without_chance(body: bytes) -> bytes:
    """A reply without the ids and times that differ between two replies."""
    body = re.sub(rb'"(id|item_id|call_id)":"\w+-?[^"]*"', b'"id":"x"', body)
    return re.sub(rb'"(created|created_at)":\d+', b'"created":0', body).replace(CONTACTS.encode(), b"contacts")


async def direct(engine: FakeEngine, path: str, body: dict[str, Any]) -> bytes:
    """What a client gets that asks the engine itself."""
    async with httpx2.AsyncClient(base_url=engine.url, verify=False) as client:
        reply = await client.post(f"/v1/{path}", json={**body, "model": CONTACTS})
    assert reply.status_code == 200, reply.text
    return reply.content


def taken(record: Record) -> Usage:
    """What the engine did for a request."""
    return Usage(len(record.prompt_ids), sum(map(len, record.reply_ids)))


def counted(front: Front) -> Usage:
    """What the gateway has counted."""
    counters = front.gateway.report().counters
    prompt, completion, cached, inexact = (
        int(sum(value for _, value in counters[f"tuneplex_{name}_total"]))
        for name in ("prompt_tokens", "completion_tokens", "cached_prompt_tokens", "counted_requests")
    )
    return Usage(prompt, completion, cached, exact=not inexact)


def watch(front: Front) -> None:
    """Limit the money of all callers so that their streams may be cut, but not so soon."""
    limits = Limits(money_per_month=10**18, cut_streams=True)
    front.gateway.update_access(access_of(Tenant("default", limits=limits)))
    view, price = front.gateway.view, Price(1, 1, 1)
    models = {name: msgspec.structs.replace(model, price=price) for name, model in view.models.items()}
    front.gateway.update(msgspec.structs.replace(view, models=models))


@pytest.mark.parametrize("watched", [False, True], ids=["usual", "watched"])
@pytest.mark.parametrize("script", SCRIPTS, ids=scripted)
@pytest.mark.parametrize("path, fields", STREAMS, ids=named)
async def test_a_stream_is_what_it_would_be_without_us(
    front: Front, engine: FakeEngine, path: str, fields: dict[str, Any], script: Script, *, watched: bool
) -> None:
    """Byte for byte, the first time and when the engine is known, and what it used is known exactly."""
    if watched:
        watch(front)
    body = body_of(path, fields, stream=True)
    engine.script(script, script, script)
    expected = without_chance(await direct(engine, path, body))
    for times in (1, 2):
        reply = await front.post(f"/v1/{path}", body)
        assert without_chance(reply.body) == expected
        assert reply.complete
        record = engine.requests[-1]
        prompts = fields.get("prompt")
        prompt = sum(map(len, prompts_of(engine, prompts))) if isinstance(prompts, list) else len(record.prompt_ids)
        used = Usage(prompt * times, taken(record).completion * times)
        assert counted(front) == used


def prompts_of(engine: FakeEngine, prompts: list[str]) -> list[list[int]]:
    """The tokens of several prompts."""
    return [engine.tokenizer.encode(prompt) for prompt in prompts]


@pytest.mark.parametrize("path, fields", [(CHAT, {"n": 2, **LUCK}), (COMPLETIONS, {"prompt": "hi"}), (RESPONSES, {})])
async def test_whole_replies_tell_what_they_used(
    front: Front, engine: FakeEngine, path: str, fields: dict[str, Any]
) -> None:
    """The numbers are those of the engine."""
    body = body_of(path, {"input": "hello", **fields} if path == RESPONSES else fields)
    assert (await front.post(f"/v1/{path}", body)).status == 200
    assert counted(front) == taken(engine.requests[0])


async def test_cached_tokens_and_embeddings_are_read(front: Front, engine: FakeEngine) -> None:
    """Embeddings write nothing; what was cached is counted where the engine tells it."""
    usage = {"prompt_tokens": 9, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    reply = json.dumps({"object": "list", "data": [{"embedding": [0.5]}], "model": CONTACTS, "usage": usage})
    engine.script(Script(content_type="application/json", body=reply), path="/v1/embeddings")
    await front.post("/v1/embeddings", {"model": "contacts", "input": "hello"})
    assert counted(front) == Usage(9, 0, 4)


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("told", [True, False])
async def test_a_large_document_is_counted(front: Front, engine: FakeEngine, size: int, *, told: bool) -> None:
    """It is not kept, but its usage is found; one without a usage counts by its size."""
    usage = {"prompt_tokens": 9, "completion_tokens": 8}
    reply = {
        "text": "x" * size,
        "model": CONTACTS,
        **({"usage": usage} if told else {}),
        "prompt_token_ids": [1] * size,
    }
    body = json.dumps(reply)
    engine.script(Script(content_type="application/json", body=body))
    await front.chat()
    assert counted(front) == Usage(9, 8) if told else counted(front).completion == -(-len(body) // 4)


async def test_a_client_that_leaves_is_counted_by_events(front: Front, engine: FakeEngine) -> None:
    """What it has got has been counted, and not as exact; each of its tokens counts once."""
    engine.script(Script(lockstep=True))
    http = await front.connect()
    http.post("/v1/chat/completions", chat(stream=True, max_tokens=50, ignore_eos=True))
    record = await asyncio.wait_for(engine.arrived(), 5)
    record.release(6)  # one event says who speaks
    await http.head()
    for _ in range(6):
        await http.chunk()
    await http.close()
    await asyncio.wait_for(record.left.wait(), 5)
    await settled(front)
    used = counted(front)
    assert (used.completion, used.exact) == (5, False)
    assert used.prompt > 0
    assert used.completion <= taken(record).completion


async def settled(front: Front) -> None:
    """Wait until nothing is under way."""
    for _ in range(500):
        if not front.gateway.ledger.relays:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(front.gateway.ledger.relays)


@pytest.mark.parametrize(
    "script",
    [
        Script(reset_after_chunks=4),
        Script(close_after_chunks=4),
        Script(error_after_chunks=4),
        Script(error_after_chunks=4, join=4),
        Script(error_after_chunks=4, join=10),
    ],
    ids=scripted,
)
async def test_a_stream_that_breaks_is_counted_by_events(front: Front, engine: FakeEngine, script: Script) -> None:
    """Three of the four events had a token."""
    engine.script(script)
    await front.chat(stream=True, max_tokens=50, ignore_eos=True)
    used = counted(front)
    assert (used.completion, used.exact) == (3, False)
    assert used.prompt > 0


REFUSED = [(Script(status=status), stream) for status in (400, 500, 503) for stream in (True, False)]


@pytest.mark.parametrize("script, stream", [*REFUSED, (Script(error_after_chunks=0), True)], ids=scripted)
async def test_what_an_engine_refuses_costs_nothing(
    front: Front, engine: FakeEngine, script: Script, *, stream: bool
) -> None:
    """No token was generated, and none is counted."""
    engine.script(script)
    await front.chat(stream=stream)
    assert counted(front) == Usage(0, 0)


async def test_an_engine_that_is_gone_costs_nothing(front: Front, engine: FakeEngine) -> None:
    """What was never sent was not used."""
    engine.die()
    assert (await front.chat()).status == 503
    assert counted(front) == Usage(0, 0)


async def test_a_reply_that_never_comes_counts_its_prompt(front: Front, engine: FakeEngine) -> None:
    """The engine has got it, so leaving early cannot make prompts free."""
    engine.script(Script(silent_before_headers=True))
    http = await front.connect()
    http.post("/v1/chat/completions", chat(messages=[{"role": "user", "content": "x" * 4000}]))
    await asyncio.wait_for(engine.arrived(), 5)
    await http.close()
    await settled(front)
    used = counted(front)
    assert used.prompt >= 1000
    assert (used.completion, used.exact) == (0, False)


# --- engines of other kinds


@pytest.fixture
async def other(engine: FakeEngine) -> AsyncIterator[Front]:
    """A gateway that knows the engine as one that speaks OpenAI's API."""
    view = view_of([engine])
    replicas = tuple(msgspec.structs.replace(replica, engine="openai") for replica in view.replicas)
    async with open_front(msgspec.structs.replace(view, replicas=replicas)) as front:
        yield front


REFUSAL = '{"error":{"message":"Unrecognized request argument supplied: stream_options","code":null}}'


async def test_an_engine_that_refuses_the_options_is_asked_without(other: Front, engine: FakeEngine) -> None:
    """The client does not notice; from then on the engine is not asked any more, also when the fleet changes."""
    engine.script(Script(status=400, body=REFUSAL))
    first = await other.chat(stream=True, max_tokens=5, ignore_eos=True)
    assert first.status == 200
    assert [("stream_options" in record.json) for record in engine.requests] == [True, False]
    other.gateway.update(msgspec.structs.replace(other.gateway.view, generation=2))
    assert (await other.chat(stream=True, max_tokens=5, ignore_eos=True)).status == 200
    assert "stream_options" not in engine.requests[2].json
    assert counted(other).completion == 10
    assert not counted(other).exact
    assert other.outcomes() == {"complete": 2}


async def test_an_engine_that_breaks_off_at_the_options_is_asked_without(other: Front, engine: FakeEngine) -> None:
    """The client does not notice, and the second time the gateway has learned it."""
    breaks = Script(reset_before_headers=True)
    engine.script(breaks, Script(), breaks, breaks, Script())  # a kept connection that breaks is tried once more
    for _ in range(3):
        assert (await other.chat(stream=True, max_tokens=5)).status == 200
    asked = [("stream_options" in record.json) for record in engine.requests]
    assert asked == [True, False, True, True, False, False]
    assert other.outcomes() == {"complete": 3}


async def test_one_connection_that_breaks_proves_nothing(other: Front, engine: FakeEngine) -> None:
    """An engine that has only ended once is asked again, and once it has answered it is known to take the options."""
    breaks = Script(reset_before_headers=True)
    engine.script(breaks, breaks, Script(), breaks, breaks)
    assert (await other.chat(stream=True, max_tokens=5)).status == 502
    assert (await other.chat(stream=True, max_tokens=5)).status == 200
    assert (await other.chat(stream=True, max_tokens=5)).status == 502
    asked = [
        record for record in engine.requests if record.path != "/health"
    ]  # after a break it is asked if it is well
    assert [("stream_options" in record.json) for record in asked] == [True, False, True, True, True]


async def test_an_error_that_only_looks_like_a_refusal_is_passed_on(other: Front, engine: FakeEngine) -> None:
    """Nobody can make the gateway believe that an engine does not know the options."""
    engine.script(Script(status=400, body=REFUSAL), Script(status=400, body=REFUSAL))
    assert (await other.chat(stream=True)).status == 400
    assert (await other.chat(stream=True, max_tokens=5)).status == 200
    assert "stream_options" in engine.requests[2].json
    assert counted(other).exact


async def test_a_clients_own_options_are_refused_by_the_engine(other: Front, engine: FakeEngine) -> None:
    """What the client has written itself is not taken away."""
    engine.script(Script(status=400, body=REFUSAL))
    reply = await other.chat(stream=True, stream_options={"include_usage": True})
    assert (reply.status, len(engine.requests)) == (400, 1)
    assert "stream_options" in reply.error["message"]


async def test_a_client_can_leave_while_the_engine_is_asked_again(other: Front, engine: FakeEngine) -> None:
    """The second request ends with it."""
    engine.script(Script(status=400, body=REFUSAL), Script(silent_before_headers=True))
    http = await other.connect()
    http.post("/v1/chat/completions", chat(stream=True))
    record = await asyncio.wait_for(engine.arrived(2), 5)
    await http.close()
    await asyncio.wait_for(record.left.wait(), 5)
    await settled(other)
    assert other.outcomes() == {"client_gone": 1}
