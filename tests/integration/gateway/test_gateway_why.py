"""A request that asks for it is told what has become of it."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import msgspec
import pytest

from tests.support.front import VERSIONS, Front, Response, chat, open_front, view_of
from tests.support.identities import access_of, bearer, key_of
from tests.support.returning import fronting
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.relay import Relay
from tuneplex.gateway.why import Why
from tuneplex.identity import Scope
from tuneplex.testing import FakeEngine, Script

PATH = "/v1/chat/completions"
ASKING = {"x_tuneplex_why": "1"}
COMMENT = b": why "


def told(reply: Response) -> dict[str, Any]:
    """What a whole reply tells, in its header."""
    return dict(json.loads(reply.headers["x-tuneplex-why"]))


def told_last(reply: Response) -> dict[str, Any]:
    """What a stream tells, behind its last event."""
    *_, last, rest = reply.body.split(b"\n\n")
    assert rest == b""
    assert last.startswith(COMMENT)
    assert reply.body.count(COMMENT) == 1
    return dict(json.loads(last.removeprefix(COMMENT)))


def ends(why: dict[str, Any]) -> list[tuple[str, str]]:
    """Where it went, and how that ended."""
    return [(one["replica"], one.get("ended", "")) for one in why["attempts"]]


async def test_a_whole_reply_tells_it_in_a_header(front: Front) -> None:
    """Which version, at which replica beside how many others, how long, and how many tokens."""
    reply = await front.post(PATH, chat(max_tokens=5, ignore_eos=True), **ASKING)
    why = told(reply)
    assert why["request_id"] == reply.headers["x-request-id"]
    assert why["model"] == VERSIONS["contacts"]
    assert ends(why) == [("r0", "answers")]
    assert why["attempts"][0]["beside"] == 0
    assert why["attempts"][0]["after_s"] <= why["took_s"]
    usage = reply.json["usage"]
    assert why["tokens"] == {"prompt": usage["prompt_tokens"], "cached": 0, "completion": 5, "exact": True}
    assert why["waited_s"] == 0


async def test_a_stream_tells_it_in_a_comment_at_its_end(front: Front) -> None:
    """Readers of events pass over it; the time to the first token is there, too."""
    reply = await front.post(PATH, chat(stream=True, max_tokens=5, ignore_eos=True), **ASKING)
    why = told_last(reply)
    assert "x-tuneplex-why" not in reply.headers
    assert reply.body.split(b"\n\n")[-3] == b"data: [DONE]"
    assert 0 <= why["first_token_s"] <= why["took_s"]
    assert why["tokens"]["completion"] == 5


async def test_nobody_else_is_told(front: Front) -> None:
    """Neither who does not ask nor who says 0."""
    for more in ({}, {"x_tuneplex_why": "0"}):
        assert "x-tuneplex-why" not in (await front.post(PATH, chat(), **more)).headers
        assert COMMENT not in (await front.post(PATH, chat(stream=True), **more)).body


async def test_retries_are_told(engines: list[FakeEngine], tokenizer: str) -> None:
    """Each attempt with its replica and its end, on success and on failure."""
    async with fronting(engines, tokenizer) as front:
        engines[0].script(Script(status=503))
        assert ends(told(await front.post(PATH, chat(), **ASKING))) == [("r0", "unavailable"), ("r1", "answers")]
        for engine in engines:
            engine.script(*[Script(status=400)] * 3)
        reply = await front.post(PATH, chat(), **ASKING)
        assert reply.status == 400
        (attempt,) = told(reply)["attempts"]
        assert attempt["ended"] == "refused"
        assert attempt["took_s"] >= 0


async def test_moves_of_a_stream_are_told(engines: list[FakeEngine], tokenizer: str) -> None:
    """The attempt that goes on with it says so."""
    async with fronting(engines, tokenizer) as front:
        engines[0].script(Script(reset_after_chunks=4))
        reply = await front.post(PATH, chat(stream=True, max_tokens=9, ignore_eos=True), **ASKING)
        why = told_last(reply)
        assert ends(why) == [("r0", "broken"), ("r1", "answers")]
        assert [one.get("goes_on", False) for one in why["attempts"]] == [False, True]
        assert why["tokens"]["completion"] == 9


@pytest.mark.parametrize(
    "limit, wanted", [({"concurrent": 1}, "a free place"), ({"slots": 1}, "a slot for the adapter")]
)
async def test_waiting_is_told_and_what_for(engine: FakeEngine, limit: dict[str, int], wanted: str) -> None:
    """A place of the engine, or a slot for the adapter."""
    view = view_of([engine])
    (replica,) = view.replicas
    limited = msgspec.structs.replace(replica, **limit)
    async with open_front(msgspec.structs.replace(view, replicas=(limited,))) as front:
        engine.script(Script(before_headers_s=0.3))
        first = asyncio.create_task(front.post(PATH, chat("contacts"), **ASKING))
        await engine.arrived()
        why = told(await front.post(PATH, chat("contacts-v2"), **ASKING))
        assert why["waited_for"] == wanted
        assert 0.1 < why["waited_s"] <= why["took_s"]
        assert told(await first)["waited_s"] == 0


async def test_who_is_refused_while_it_waits_is_told(engine: FakeEngine) -> None:
    """A request that no engine has heard of has no attempts."""
    view = view_of([engine])
    (replica,) = view.replicas
    limited = msgspec.structs.replace(replica, concurrent=1)
    async with open_front(msgspec.structs.replace(view, replicas=(limited,))) as front:
        engine.script(Script(before_headers_s=0.5))
        first = asyncio.create_task(front.post(PATH, chat()))
        await engine.arrived()
        reply = await front.post(PATH, chat(), x_tuneplex_deadline="100ms", **ASKING)
        assert reply.status == 504
        assert "attempts" not in told(reply)
        assert told(reply)["waited_s"] >= 0.05
        assert told(reply)["waited_for"] == "a free place"
        assert (await first).status == 200


async def test_keys_need_a_scope_for_it(engine: FakeEngine) -> None:
    """It tells of replicas and of how busy they are, which is for those who may read the metrics."""
    keys = (key_of("plain"), key_of("seer", scopes=(Scope.USE, Scope.USAGE)))
    async with open_front(view_of([engine]), access_of(*keys)) as front:
        refused = await front.post(PATH, chat(), **ASKING, **bearer("plain"))
        assert (refused.status, refused.json["error"]["code"]) == (403, "scope_missing")
        assert told(await front.post(PATH, chat(), **ASKING, **bearer("seer")))["attempts"]
        assert (await front.post(PATH, chat(), **bearer("plain"))).status == 200


async def test_a_stream_that_is_cut_short_tells_what_it_took(front: Front, engine: FakeEngine) -> None:
    """Its prompt is estimated, as for the one who pays."""
    engine.script(Script(silent_after_chunks=3))
    reply = await front.post(PATH, chat(stream=True), x_tuneplex_deadline="300ms", **ASKING)
    tokens = told_last(reply)["tokens"]
    assert tokens["prompt"] > 0
    assert (tokens["completion"], tokens["exact"]) == (2, False)


async def test_nothing_is_kept_of_it(front: Front) -> None:
    """What knows of a request leads to itself, and would keep prompts of megabytes until somebody looks for that."""
    await front.post(PATH, chat(), **ASKING)
    gc.collect()
    gc.disable()
    try:
        for stream in (False, True):
            await front.post(PATH, chat(stream=stream), **ASKING)
        await front.post(PATH, chat("contacts"), x_tuneplex_deadline="1ms", **ASKING)
        assert not [one for one in gc.get_objects() if isinstance(one, Why | Relay | Asked)]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "more",
    [
        {"x_tuneplex_why": "yes"},
        {"x_tuneplex_why": "1", "idempotency_key": "k"},
        {"x_tuneplex_why": "yes", "idempotency_key": "k"},
    ],
)
async def test_what_makes_no_sense_is_refused(front: Front, engine: FakeEngine, more: dict[str, str]) -> None:
    """Another word than 0 and 1, and a reply that is kept for others."""
    refused = await front.post(PATH, chat(), **more)
    assert (refused.status, refused.json["error"]["code"]) == (400, "invalid_why")
    assert not engine.requests
