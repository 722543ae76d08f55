"""Limits in money, through a gateway on FakeEngine: streams that are ended by them, and what is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import openai
import pytest
from openai import AsyncOpenAI

from tests.support.front import Front, Response, open_front, scripted, view_of
from tests.support.identities import access_of
from tuneplex.identity import Limits, Tenant
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import Price

MIDDLE = datetime(2026, 3, 15, 12, tzinfo=UTC).timestamp()
CHAT, COMPLETIONS, RESPONSES = "chat/completions", "completions", "responses"
PRICE = Price(prompt=3, completion=1000, cached=1)
WHY = "tenant default is limited to {} EUR per month, and nothing is left"
LONG: dict[str, Any] = {"model": "contacts", "temperature": 0, "stream": True, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {**LONG, "messages": MESSAGES, "max_tokens": 400},
    COMPLETIONS: {**LONG, "prompt": "hello", "max_tokens": 400},
    RESPONSES: {**LONG, "input": "hello", "max_output_tokens": 400},
}


def limit(front: Front, picos: int, *, cut: bool = True) -> None:
    """Give all models a price, and limit what may be spent in a month, in the middle of which it is."""
    front.gateway._wall = front.gateway._entrance._wall = lambda: MIDDLE
    limits = Limits(money_per_month=picos, cut_streams=cut)
    front.gateway.update_access(access_of(Tenant("default", limits=limits)))
    models = {name: msgspec.structs.replace(model, price=PRICE) for name, model in front.gateway.view.models.items()}
    front.gateway.update(msgspec.structs.replace(front.gateway.view, models=models))
    front.settings(currency="EUR")


def money(front: Front) -> int:
    """What the month has cost, as control is told."""
    used = front.gateway.report().used.get("tenant default")
    return 0 if used is None else used.spent["money_per_month"].amount


def chunks(reply: Response) -> list[dict[str, Any]]:
    """The events of a stream that is complete."""
    assert reply.complete
    return [json.loads(event) for event in reply.events if event != "[DONE]"]


def amount(picos: int) -> str:
    """As it is written in messages, for such small ones."""
    return f"{picos:014}"[:1] + "." + f"{picos:012}".rstrip("0")


async def left(engine: FakeEngine) -> None:
    """The engine was told to stop."""
    await asyncio.wait_for(engine.requests[-1].left.wait(), 5)


@pytest.mark.parametrize("script", [Script(between_chunks_s=0.005), Script(join=4), Script(cut=29)], ids=scripted)
async def test_a_chat_ends_when_the_money_is_gone(front: Front, engine: FakeEngine, script: Script) -> None:
    """It ends as a limit on its length would, says why, the engine stops, and exactly what was told is counted."""
    engine.script(script)
    limit(front, 10_100)
    reply = await front.post(f"/v1/{CHAT}", BODIES[CHAT])
    assert reply.events[-1] == "[DONE]"
    *said, last = chunks(reply)
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
    assert (last["id"], last["object"], last["model"]) == (said[0]["id"], said[0]["object"], "contacts")
    why = WHY.format(amount(10_100))
    assert last["tuneplex"] == {"ended_by": "money_per_month", "message": f"The stream was ended: {why}."}
    assert f"\n\n: ended by a limit: {why}\n\n" in reply.body.decode()
    assert "usage" not in last
    assert all("usage" not in chunk for chunk in said)
    await left(engine)
    tokens = len(said) - 1  # one says who speaks
    assert 10 < tokens <= 10 + script.join
    assert money(front) == PRICE.of(len(engine.requests[0].prompt_ids), tokens)
    assert front.outcomes() == {"cut": 1}
    refused = await front.post(f"/v1/{CHAT}", BODIES[CHAT])
    assert (refused.status, refused.error["code"]) == (429, "insufficient_quota")


async def test_who_asks_for_the_usage_is_told_it(front: Front, engine: FakeEngine) -> None:
    """After the last choice, in a chunk of its own; who wants it in every chunk has it there, too."""
    for options in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
        engine.script(Script(between_chunks_s=0.005))
        limit(front, money(front) + 5_100)
        before = money(front)
        reply = await front.post(f"/v1/{CHAT}", BODIES[CHAT] | {"stream_options": options})
        *said, end, last = chunks(reply)
        assert end["choices"][0]["finish_reason"] == "length"
        prompt, completion = len(engine.requests[-1].prompt_ids), len(said) - 1
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        assert (last["choices"], last["usage"]) == ([], usage)
        assert money(front) - before == PRICE.of(prompt, completion)
        assert all(("usage" in chunk) is ("continuous_usage_stats" in options) for chunk in said)


async def test_each_choice_of_each_prompt_ends(front: Front, engine: FakeEngine) -> None:
    """Every choice that is open gets its end, and the tokens of all of them are paid."""
    engine.script(Script(between_chunks_s=0.005))
    limit(front, 20_100)
    body = BODIES[COMPLETIONS] | {"prompt": ["hello", "you there"], "n": 2, "temperature": 1, "seed": 3}
    reply = await front.post(f"/v1/{COMPLETIONS}", body)
    found = chunks(reply)
    ends = [chunk for chunk in found if "tuneplex" in chunk]
    assert [chunk["choices"][0] for chunk in ends] == [
        {"index": index, "text": "", "logprobs": None, "finish_reason": "length"} for index in range(4)
    ]
    said = len(found) - 4
    prompt = sum(len(engine.tokenizer.encode(text)) for text in body["prompt"])
    assert money(front) == PRICE.of(prompt, said)
    assert 20 <= said <= 24


async def test_a_response_is_incomplete(front: Front, engine: FakeEngine) -> None:
    """Everything that was open is done as far as it came, and the last event has all of it, as OpenAI's would."""
    engine.script(Script(between_chunks_s=0.005))
    limit(front, 10_100)
    reply = await front.post(f"/v1/{RESPONSES}", BODIES[RESPONSES])
    found = chunks(reply)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    said = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert [event["type"] for event in found[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert (found[-4]["text"], found[-3]["part"]["text"]) == (said, said)
    response = found[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (response["id"], response["model"]) == (found[0]["response"]["id"], "contacts")
    (item,) = response["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", said)
    assert response["tuneplex"]["ended_by"] == "money_per_month"
    usage = response["usage"]
    assert money(front) == PRICE.of(usage["input_tokens"], usage["output_tokens"])
    assert "[DONE]" not in reply.events
    await left(engine)
    assert front.outcomes() == {"cut": 1}


async def test_a_call_of_a_function_ends(front: Front, engine: FakeEngine) -> None:
    """Its arguments stay what they were when the money was gone."""
    engine.script(Script(between_chunks_s=0.005))
    limit(front, 4_100)
    tool = {"type": "function", "name": "f", "parameters": {"properties": {"usage": {"type": "string"}}}}
    reply = await front.post(f"/v1/{RESPONSES}", BODIES[RESPONSES] | {"tools": [tool], "tool_choice": "required"})
    found = chunks(reply)
    said = "".join(event["delta"] for event in found if event["type"] == "response.function_call_arguments.delta")
    assert said
    assert found[-1]["type"] == "response.incomplete"
    (item,) = found[-1]["response"]["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", said)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
async def test_engines_that_do_not_tell_are_counted_by_events(engine: FakeEngine, path: str) -> None:
    """Any server with OpenAI's API is ended as well; its prompt is paid by the estimate."""
    view = view_of([engine])
    replicas = tuple(msgspec.structs.replace(replica, engine="openai") for replica in view.replicas)
    async with open_front(msgspec.structs.replace(view, replicas=replicas)) as other:
        engine.script(Script(between_chunks_s=0.005))
        limit(other, 10_100)
        reply = await other.post(f"/v1/{path}", BODIES[path])
        assert reply.complete
        assert "continuous_usage_stats" not in json.dumps(engine.requests[0].json)
        assert other.outcomes() == {"cut": 1}
        assert 10_100 < money(other) < 11_200


async def test_what_fits_is_not_cut(front: Front, engine: FakeEngine) -> None:
    """A stream that ends by itself before the money does is as it always was, and so is one of an engine that fails."""
    limit(front, 1_000_000)
    reply = await front.post(f"/v1/{CHAT}", BODIES[CHAT] | {"max_tokens": 9})
    last = chunks(reply)[-1]
    assert ("tuneplex" in last, last["choices"][0]["finish_reason"]) == (False, "length")
    assert money(front) == PRICE.of(len(engine.requests[0].prompt_ids), 9)
    engine.script(Script(error_after_chunks=4))
    failed = await front.post(f"/v1/{CHAT}", BODIES[CHAT])
    assert "error" in json.loads(failed.events[-1])
    assert front.outcomes() == {"complete": 1, "engine_error": 1}


async def test_a_whole_reply_and_other_limits_must_fit(front: Front, engine: FakeEngine) -> None:
    """What is no stream needs all of its money before, and so does a stream under a limit that does not cut."""
    limit(front, 10_100)
    for body in (BODIES[CHAT] | {"stream": False}, BODIES[CHAT]):
        refused = await front.post(f"/v1/{CHAT}", body)
        assert (refused.status, refused.error["code"]) == (429, "request_too_large")
        assert (
            "limited to 0.0000000101 EUR per month, and this request may need 0.0000004000" in refused.error["message"]
        )
        assert refused.headers["x-should-retry"] == "false"
        limit(front, 10_100, cut=False)
    assert not engine.requests
    whole = await front.post(f"/v1/{CHAT}", BODIES[CHAT] | {"stream": False, "max_tokens": 9})
    assert whole.status == 200
    assert money(front) == PRICE.of(whole.json["usage"]["prompt_tokens"], 9)


async def test_a_client_that_leaves_pays_what_the_engine_has_told(front: Front, engine: FakeEngine) -> None:
    """Up to the last event that came, exactly."""
    engine.script(Script(lockstep=True))
    limit(front, 1_000_000)
    http = await front.connect()
    http.post(f"/v1/{CHAT}", BODIES[CHAT])
    record = await asyncio.wait_for(engine.arrived(), 5)
    record.release(5)
    await http.head()
    for _ in range(5):
        await http.chunk()
    await http.close()
    await left(engine)
    while front.gateway.ledger.relays:  # noqa: ASYNC110 - nobody tells when it is over
        await asyncio.sleep(0.01)
    assert money(front) == PRICE.of(len(record.prompt_ids), 4)


# --- OpenAI's own client


@pytest.fixture
async def client(front: Front) -> AsyncIterator[AsyncOpenAI]:
    """Of the gateway."""
    url = f"http://127.0.0.1:{front.port}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        yield client


async def test_openais_client_reads_a_normal_end(front: Front, engine: FakeEngine, client: AsyncOpenAI) -> None:
    """Nothing breaks in it, on any route: the stream is over, and says that it became too long."""
    for _ in range(3):
        engine.script(Script(between_chunks_s=0.005))
    limit(front, 5_100)
    more: dict[str, Any] = {"model": "contacts", "extra_body": {"ignore_eos": True}}
    stream = await client.chat.completions.create(
        messages=[{"role": "user", "content": "hello"}], stream=True, max_tokens=400, **more
    )
    spoken = [chunk async for chunk in stream]
    assert spoken[-1].choices[0].finish_reason == "length"
    assert (spoken[-1].model_extra or {})["tuneplex"]["ended_by"] == "money_per_month"
    limit(front, money(front) + 5_100)
    texts = [one async for one in await client.completions.create(prompt="hello", stream=True, max_tokens=400, **more)]
    assert texts[-1].choices[0].finish_reason == "length"
    limit(front, money(front) + 5_100)
    events = [
        one async for one in await client.responses.create(input="hello", stream=True, max_output_tokens=400, **more)
    ]
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output_text == "".join(one.delta for one in events if one.type == "response.output_text.delta")
    assert front.outcomes() == {"cut": 3}


async def test_openais_client_does_not_try_again_in_vain(front: Front, engine: FakeEngine, client: AsyncOpenAI) -> None:
    """Where no money is left, its first attempt is its last."""
    limit(front, 1)
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="contacts", messages=[{"role": "user", "content": "hello"}])
    assert "tenant default is limited to 0.000000000001 EUR per month" in caught.value.message
    assert front.gateway.report().used["tenant default"].refused == 1
    assert not engine.requests
