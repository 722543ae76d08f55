"""Streams of the real vLLM end when the money is gone, and what they cost is vLLM's own usage times the price."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2
import pytest

from tests.support.background import background
from tests.support.gateways import KEY, gateway_of, serving
from tests.support.identities import access_of
from tests.support.real_engine import RealEngine
from tuneplex.gateway import Gateway
from tuneplex.identity import Limits, Tenant
from tuneplex.types import Price

pytestmark = pytest.mark.engine

PRICE = Price(prompt=3, completion=1000, cached=3)
CHAT, COMPLETIONS, RESPONSES = "chat/completions", "completions", "responses"
LIMIT = 20_000  # about twenty tokens
MOST = 400
PATIENCE_S = 20
ALWAYS = {"include_usage": True, "continuous_usage_stats": True}
MESSAGES = [{"role": "user", "content": "Tell me a long story about the sea."}]
SAMPLED = {"temperature": 1, "seed": 5}


def gateway_with_little_money(engine: RealEngine) -> Gateway:
    """A gateway where all callers together have little money, and streams are cut."""
    tenant = Tenant("default", limits=Limits(money_per_month=LIMIT, cut_streams=True))
    return gateway_of(engine.endpoint, engine.secret, access_of(tenant), price=PRICE)


def spent(gateway: Gateway) -> int:
    """What the month has cost."""
    return gateway.report().used["tenant default"].spent["money_per_month"].amount


def streamed(gateway: Gateway, path: str, body: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The events of a stream, and all of its text."""
    headers = {"authorization": f"Bearer {KEY}"}
    with background(serving(gateway)) as url, httpx2.Client(timeout=120, verify=False, headers=headers) as client:
        limit = {"max_output_tokens": MOST} if path == RESPONSES else {"max_tokens": MOST}
        usual = {"model": "base", "temperature": 0, "ignore_eos": True, "stream": True}
        reply = client.post(f"{url}/{path}", json={**usual, **limit, **body})
        assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"], reply.text


def idle(engine: RealEngine) -> bool:
    """Whether vLLM works on nothing any more, within a while."""
    with engine.client() as client:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            page = client.get("/metrics").text.splitlines()
            running = [line for line in page if line.startswith("vllm:num_requests_running{")]
            if running and all(float(line.split()[-1]) == 0 for line in running):
                return True
            time.sleep(0.2)
    return False


@pytest.mark.parametrize(
    "path, body",
    [
        (CHAT, {"messages": MESSAGES}),
        (CHAT, {"messages": MESSAGES, "model": "ada"}),
        (CHAT, {"messages": MESSAGES, "n": 2, **SAMPLED}),
        (COMPLETIONS, {"prompt": "The river runs"}),
        (COMPLETIONS, {"prompt": ["The river runs", "It is"], "n": 2, **SAMPLED}),
    ],
    ids=["chat", "adapter", "choices", "completions", "prompts"],
)
def test_a_stream_is_cut_and_costs_what_vllm_says(real_engine: RealEngine, path: str, body: dict[str, Any]) -> None:
    """The client sees vLLM's own usage up to the end, and exactly that, times the price, is counted."""
    gateway = gateway_with_little_money(real_engine)
    events, text = streamed(gateway, path, body | {"stream_options": ALWAYS})
    choices = body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1)
    ends = [event for event in events if "tuneplex" in event]
    assert {event["choices"][0]["finish_reason"] for event in ends} == {"length"}
    assert len(ends) == choices
    assert text.endswith("data: [DONE]\n\n")
    told: dict[int, dict[str, int]] = {}
    for event in events:
        if "tuneplex" not in event and event.get("choices"):
            told[event["choices"][0]["index"]] = event["usage"]
    completion = sum(usage["completion_tokens"] for usage in told.values())
    prompt = sum(usage["prompt_tokens"] for index, usage in told.items() if index % body.get("n", 1) == 0)
    assert 15 < completion < MOST * choices / 2
    assert spent(gateway) == PRICE.of(prompt, completion)
    last = events[-1]["usage"]
    assert (last["prompt_tokens"], last["completion_tokens"]) == (prompt, completion)
    assert idle(real_engine)


def test_nobody_sees_how_it_is_counted(real_engine: RealEngine) -> None:
    """Without asking, the client sees no usage, and the same is counted: the price of what it got."""
    gateway = gateway_with_little_money(real_engine)
    events, _ = streamed(gateway, CHAT, {"messages": MESSAGES})
    assert all("usage" not in event for event in events)
    with real_engine.client() as client:
        usual = {"model": "base", "messages": MESSAGES, "max_tokens": 1}
        prompt = client.post("/v1/chat/completions", json=usual).json()["usage"]["prompt_tokens"]
    completion, rest = divmod(spent(gateway) - PRICE.of(prompt, 0), PRICE.completion)
    assert rest == 0
    assert len(events) - 2 <= completion <= 2 * len(events)  # vLLM may put tokens together into one event


def test_a_response_is_incomplete(real_engine: RealEngine) -> None:
    """It ends by the event that OpenAI's ends by when it became too long, with all that was said."""
    gateway = gateway_with_little_money(real_engine)
    events, _ = streamed(gateway, RESPONSES, {"input": "Tell me a long story about the sea."})
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    last = events[-1]
    assert last["type"] == "response.incomplete"
    response = last["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["content"][0]["text"] == said
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    usage = response["usage"]
    assert spent(gateway) == PRICE.of(usage["input_tokens"], usage["output_tokens"])
    assert idle(real_engine)
