"""The gateway's count of tokens is that of the real vLLM, and its clients see what vLLM's own would."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.background import background
from tests.support.gateways import KEY, open_gateway
from tests.support.real_engine import RealEngine
from tests.support.thinned import thinned

pytestmark = pytest.mark.engine

PATIENCE_S = 20
ATTEMPTS = 4  # on a busy machine vLLM puts tokens together into one event, and that is chance
CHAT, COMPLETIONS, RESPONSES = "chat/completions", "completions", "responses"
MESSAGES = [{"role": "user", "content": "What is the weather in Rome?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"]}
FUNCTION = {"name": "weather", "parameters": CITY}
TOOLS = [{"type": "function", "function": FUNCTION}]
SAMPLED = {"temperature": 1, "seed": 5}

# Requests of every route and kind; each is sent whole and as a stream.
KINDS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES}),
    (CHAT, {"messages": MESSAGES, "model": "ada"}),
    (CHAT, {"messages": [{"role": "user", "content": "Say only: yes"}], "max_tokens": 60, "ignore_eos": False}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 1}),
    (CHAT, {"messages": MESSAGES, "n": 2, **SAMPLED}),
    (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": MESSAGES, "return_token_ids": True}),
    (CHAT, {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "max_tokens": 60, "ignore_eos": False}),
    (CHAT, {"messages": MESSAGES, "stop": ["e"], "max_tokens": 40}),
    (COMPLETIONS, {"prompt": "The river runs"}),
    (COMPLETIONS, {"prompt": ["The river runs", "It is"], "n": 2, **SAMPLED}),
    (COMPLETIONS, {"prompt": "The river runs", "max_tokens": 1, "echo": True, "logprobs": 1}),
    (RESPONSES, {"input": "What is the weather in Rome?"}),
    (RESPONSES, {"input": "Hello", "model": "bob"}),
]
OPTIONS = [None, {"include_usage": False, "continuous_usage_stats": True}, {"include_usage": True}]


def body_of(path: str, fields: dict[str, Any], **more: object) -> dict[str, Any]:
    """A request for a few tokens."""
    limit = {"max_output_tokens": 12} if path == RESPONSES else {"max_tokens": 12}
    return {"model": "base", "temperature": 0, "ignore_eos": True, **limit, **fields, **more}


class Counts:
    """Tokens of prompts and of replies, as a page of metrics tells them."""

    def __init__(self, client: httpx2.Client, path: str, names: tuple[str, str]) -> None:
        self._client = client
        self._path = path
        self._names = names

    def now(self) -> tuple[int, int]:
        """Since the start."""
        page = self._client.get(self._path).text.splitlines()
        prompt, completion = (
            round(sum(float(line.split()[-1]) for line in page if line.startswith(f"{name}{{"))) for name in self._names
        )
        return prompt, completion


@pytest.fixture(scope="module")
def gateway(real_engine: RealEngine) -> Iterator[httpx2.Client]:
    """A gateway in front of a real vLLM."""
    key = {"authorization": f"Bearer {KEY}"}
    with (
        background(open_gateway(real_engine.endpoint, real_engine.secret)) as url,
        httpx2.Client(base_url=url.removesuffix("/v1"), timeout=120, verify=False, headers=key) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def direct(real_engine: RealEngine) -> Iterator[httpx2.Client]:
    """A client of the engine itself."""
    with real_engine.client() as client:
        yield client


@pytest.fixture
def theirs(direct: httpx2.Client) -> Counts:
    """What vLLM has counted."""
    return Counts(direct, "/metrics", ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"))


@pytest.fixture
def ours(gateway: httpx2.Client) -> Counts:
    """What the gateway has counted."""
    return Counts(gateway, "/metrics", ("tuneplex_prompt_tokens_total", "tuneplex_completion_tokens_total"))


def since(counts: Counts, before: tuple[int, int]) -> tuple[int, int]:
    """What was counted since."""
    now = counts.now()
    return now[0] - before[0], now[1] - before[1]


def test_the_totals_are_those_of_the_engine(gateway: httpx2.Client, theirs: Counts, ours: Counts) -> None:
    """Over every route and kind of request the gateway's counts are vLLM's own, to the token.

    vLLM's counter counts a prompt once for each of its choices, where the `usage` that it tells clients, and so the
    gateway, counts it once.
    """
    started, repeated, sent = (theirs.now(), ours.now()), 0, 0
    for number, (path, fields) in enumerate(KINDS):
        for stream in (False, True):
            more: dict[str, object] = {"stream": True} if stream else {}
            if stream and path != RESPONSES:
                more["stream_options"] = OPTIONS[number % len(OPTIONS)]
            before = ours.now()
            reply = gateway.post(f"/v1/{path}", json=body_of(path, fields, **more))
            assert reply.status_code == 200, reply.text
            prompt, completion = since(ours, before)
            assert prompt > 0
            assert completion > 0
            repeated += (fields.get("n", 1) - 1) * prompt
            sent += 1
    assert sent == 28
    wanted = since(ours, started[1])
    wanted = (wanted[0] + repeated, wanted[1])
    deadline = time.monotonic() + PATIENCE_S
    while since(theirs, started[0]) != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    assert since(theirs, started[0]) == wanted


def without_chance(body: bytes) -> bytes:
    """A reply without what differs between two replies: ids, times, and the name, which tests elsewhere are about."""
    body = re.sub(rb'"(id|item_id|call_id)":"[^"]*"', b'"id":"x"', body)
    body = re.sub(rb"chatcmpl-tool-\w+", b"x", body)
    return re.sub(rb'"(created|created_at)":\d+', b'"created":0', body)


# Responses tell their usage to everybody, so there is nothing to ask for.
STREAMS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [(path, fields, {}) for path, fields in KINDS]
STREAMS += [(path, fields, {"stream_options": how}) for path, fields in KINDS if path != RESPONSES for how in OPTIONS]


@pytest.mark.parametrize("path, fields, more", thinned(STREAMS, 3), ids=lambda value: str(value)[:60])
def test_streams_are_what_vllm_sends(
    gateway: httpx2.Client, direct: httpx2.Client, path: str, fields: dict[str, Any], more: dict[str, Any]
) -> None:
    """Event for event and byte for byte, whether the client asks for the usage or not."""
    body = body_of(path, fields, stream=True, **more)
    for _ in range(ATTEMPTS):
        expected = direct.post(f"/v1/{path}", json=body)
        found = gateway.post(f"/v1/{path}", json=body)
        assert found.status_code == expected.status_code == 200
        if in_order(found.content) == in_order(expected.content):
            return
    assert in_order(found.content) == in_order(expected.content)


def in_order(body: bytes) -> list[bytes]:
    """The events; those of several choices, which come as the engine computes them, by their choice."""
    events = without_chance(body).split(b"\n\n")
    return sorted(events, key=lambda event: found[1] if (found := re.search(rb'"index":(\d+)', event)) else b"~")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_what_a_client_leaves_is_counted_up_to_there(
    gateway: httpx2.Client, theirs: Counts, ours: Counts, path: str
) -> None:
    """Never less than the client has got, never more than the engine has done, and near to that."""
    said: dict[str, dict[str, Any]] = {
        CHAT: {"messages": MESSAGES},
        COMPLETIONS: {"prompt": "The river runs"},
        RESPONSES: {"input": "Hello"},
    }
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    body = body_of(path, said[path], stream=True, **{limit: 400})
    before, got = (theirs.now(), ours.now()), 0
    with gateway.stream("POST", f"/v1/{path}", json=body) as reply:
        for line in reply.iter_lines():
            got += line.startswith("data:") and ('"token_ids":null' in line or '_text.delta"' in line)
            if got == 20:
                break
    (our_prompt, our_completion), (their_prompt, their_completion) = settled(theirs, ours, before)
    assert 0 < our_prompt <= 2 * their_prompt
    assert 20 <= our_completion <= their_completion
    assert their_completion - our_completion <= 20, "the engine goes on for a few tokens until it hears of it"


def settled(theirs: Counts, ours: Counts, before: tuple[tuple[int, int], tuple[int, int]]) -> list[tuple[int, int]]:
    """What both have counted since, once neither counts any more."""
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        last, found = found, [since(ours, before[1]), since(theirs, before[0])]
        if last == found and found[0][1]:
            return found
        time.sleep(1)
    raise AssertionError(found)
