"""Requests that wait, over real sockets, with FakeEngine behind the gateway."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest
from openai import APIError, APIStatusError, AsyncOpenAI

from tests.support.front import VERSIONS, Front, Http, Response, chat, open_front, view_of
from tests.support.identities import access_of, bearer, key_of
from tuneplex.gateway.estimate import Estimate
from tuneplex.gateway.tokens import Pending, TokenCounter
from tuneplex.identity import Limits, Tenant
from tuneplex.testing import FakeEngine, Record, Script
from tuneplex.types import GatewaySettings, Model, ReplicaState, Route, Timeouts, Turns, Waiting

CHAT = "/v1/chat/completions"


def change(front: Front, number: int = 0, **fields: Any) -> None:  # noqa: ANN401 - of `Replica`
    """What control sees of one replica is another thing now."""
    view = front.gateway.view
    replicas = list(view.replicas)
    replicas[number] = msgspec.structs.replace(replicas[number], **fields)
    front.gateway.update(msgspec.structs.replace(view, replicas=tuple(replicas)))


def waiting(front: Front, **fields: Any) -> None:  # noqa: ANN401 - of `Waiting`
    """Change the room's bounds."""
    front.settings(waiting=Waiting(**fields))


@pytest.fixture
async def narrow(engine: FakeEngine) -> AsyncIterator[Front]:
    """A gateway in front of a replica that takes one request at a time; who waits is told ten times a second."""
    async with open_front(view_of([engine], GatewaySettings(waiting=Waiting(comment_s=0.1)))) as front:
        change(front, concurrent=1)
        yield front


async def occupied(front: Front, engine: FakeEngine, **headers: str) -> tuple[asyncio.Task[Response], Record]:
    """A stream that has the only place, until its record is released."""
    engine.script(Script(lockstep=True))
    asking = asyncio.create_task(front.post(CHAT, chat(stream=True, max_tokens=3), **headers))
    return asking, await engine.arrived(len(engine.requests) + 1)


async def until_waiting(front: Front, count: int) -> None:
    """Wait until so many requests wait."""
    async with asyncio.timeout(5):
        while front.gateway.report().waiting != count:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


def events(response: Response) -> list[str]:
    """The data of a stream's events, without its comments."""
    return [event for event in response.events if event]


def nothing_left(front: Front) -> bool:
    """Whether the gateway holds nothing of any request."""
    gateway, report = front.gateway, front.gateway.report()
    assert (report.waiting, report.outstanding, report.busy, report.demand) == (0, {}, {}, {})
    assert (gateway._room.bytes, len(gateway._room._queue), gateway.ledger.relays) == (0, 0, set())
    assert not len(gateway._entrance)
    assert all(used.concurrent == 0 for used in report.used.values())
    return True


# --- order


async def test_tenants_share_a_replica_by_weight(engine: FakeEngine) -> None:
    """With weights 3 and 1, of the first turns three in four are the heavier tenant's, whoever came first."""
    access = access_of(
        Tenant("big", weight=3), Tenant("small"), key_of("b", "big"), key_of("s", "small"), key_of("x", "other")
    )
    async with open_front(view_of([engine]), access) as front:
        change(front, concurrent=1)
        first, record = await occupied(front, engine, **bearer("x"))
        asking = []
        for number, secret in enumerate("s" * 16 + "b" * 16, 1):
            body = chat(max_tokens=8, ignore_eos=True, user=secret)
            asking.append(asyncio.create_task(front.post(CHAT, body, **bearer(secret))))
            await until_waiting(front, number)
        record.release(10)
        replies = await asyncio.gather(first, *asking)
        assert {reply.status for reply in replies} == {200}
        order = [one.json.get("user") for one in engine.requests[1:]]
        assert 11 <= Counter(order[:16])["b"] <= 13
        assert all(float(reply.headers["x-tuneplex-waited"]) >= 0 for reply in replies[1:])
        assert nothing_left(front)


async def test_a_wrong_priority_or_deadline_is_refused(front: Front, engine: FakeEngine) -> None:
    """400 that names the header."""
    for header in ("x-tuneplex-priority", "x-tuneplex-deadline"):
        reply = await front.post(CHAT, chat(), **{header.replace("-", "_"): "whatever"})
        assert (reply.status, header in reply.error["message"]) == (400, True)
    assert engine.requests == []


# --- what clients see while they wait


async def test_openais_client_reads_over_comments(narrow: Front, engine: FakeEngine) -> None:
    """It sees the position in the head, no comment, and then the same chunks as ever; the estimate is left out."""
    first, record = await occupied(narrow, engine)
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{narrow.port}/v1", api_key="none", max_retries=0) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="contacts", messages=[{"role": "user", "content": "hello"}], stream=True, temperature=0
        )
        assert raw.headers["x-tuneplex-queue-position"] == "1"
        assert "x-tuneplex-estimated-wait" not in raw.headers
        record.release(10)
        said = [chunk.choices[0].delta.content or "" async for chunk in raw.parse() if chunk.choices]
    plain = await narrow.chat(temperature=0)
    assert "".join(said) == plain.json["choices"][0]["message"]["content"]
    assert (await first).complete
    assert nothing_left(narrow)


async def test_responses_that_wait_get_comments_too(narrow: Front, engine: FakeEngine) -> None:
    """The stream of `/v1/responses` is, after its comments, what it would have been without them."""
    first, record = await occupied(narrow, engine)
    body = {"model": "contacts", "input": "hello", "stream": True, "temperature": 0}
    asking = asyncio.create_task(narrow.post("/v1/responses", body))
    await until_waiting(narrow, 1)
    await asyncio.sleep(0.25)
    record.release(10)
    reply = await asking
    assert reply.body.startswith(b": waiting, position 1 of 1\n\n")
    names = [line for line in reply.body.decode().split("\n") if line.startswith("event: ")]
    assert (names[0], names[-1]) == ("event: response.created", "event: response.completed")
    assert (await first).complete


async def test_other_replies_begin_when_they_are_there(narrow: Front, engine: FakeEngine) -> None:
    """A request that wants no stream gets one whole reply, with the time that it waited."""
    first, record = await occupied(narrow, engine)
    asking = asyncio.create_task(narrow.chat())
    await until_waiting(narrow, 1)
    await asyncio.sleep(0.3)
    record.release(10)
    reply = await asking
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert float(reply.headers["x-tuneplex-waited"]) >= 0.3
    await first


async def test_http_1_0_clients_wait_too(narrow: Front, engine: FakeEngine) -> None:
    """Without chunks, until the connection ends."""
    first, record = await occupied(narrow, engine)
    http = await narrow.connect()
    body = json.dumps(chat(stream=True, max_tokens=3)).encode()
    http.send(b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
    head = await http.head()
    assert (head.status, "transfer-encoding" in head.headers) == (200, False)
    record.release(10)
    text = (await http.reader.read()).decode()
    assert text.startswith(": waiting, position 1 of 1\n\n")
    assert text.endswith("data: [DONE]\n\n")
    await first


async def test_browsers_may_read_the_headers(narrow: Front) -> None:
    """A page of an allowed origin sees how its request stands."""
    narrow.settings(cors_origins=("https://example.org",))
    reply = await narrow.post(CHAT, chat(), origin="https://example.org")
    exposed = reply.headers["access-control-expose-headers"]
    assert all(name in exposed for name in ("queue-position", "estimated-wait", "waited"))


async def test_estimates_are_told(engine: FakeEngine) -> None:
    """Once some requests are over, those that wait are told about how long it takes."""
    settings = GatewaySettings(waiting=Waiting(comment_s=2.5))
    slow = FakeEngine("base", adapters=VERSIONS.values(), default=Script(before_headers_s=0.15))
    async with slow, open_front(view_of([slow], settings)) as front:
        change(front, concurrent=1)
        asking = [asyncio.create_task(front.chat(stream=True, max_tokens=5)) for _ in range(24)]
        replies = await asyncio.gather(*asking)
    told = [one.headers["x-tuneplex-estimated-wait"] for one in replies if "x-tuneplex-estimated-wait" in one.headers]
    assert told
    assert all(0 < int(one) < 10 for one in told)
    assert any(b", about " in one.body for one in replies)
    assert all(one.events[-1] == "[DONE]" for one in replies)
    assert engine.requests == []


# --- bounds


async def test_a_full_room_refuses_whoever_has_most(engine: FakeEngine) -> None:
    """503 with `retry-after` for the newest of the tenant with most waiting, though another one came last."""
    access = access_of(key_of("a", "crowd"), key_of("b", "late"))
    async with open_front(view_of([engine], GatewaySettings(waiting=Waiting(requests=2))), access) as front:
        change(front, concurrent=1)
        first, record = await occupied(front, engine, **bearer("a"))
        crowd = []
        for number in (1, 2):
            crowd.append(asyncio.create_task(front.post(CHAT, chat(), **bearer("a"))))
            await until_waiting(front, number)
        late = asyncio.create_task(front.post(CHAT, chat(), **bearer("b")))
        refused = await crowd[1]
        assert (refused.status, refused.error["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        record.release(10)
        assert [(await one).status for one in (first, crowd[0], late)] == [200] * 3
        reasons = front.gateway.report().counters["tuneplex_refused_waiting_total"]
        assert reasons == [(("contacts", "overloaded"), 1.0)]
        assert nothing_left(front)


async def test_bodies_that_wait_are_bounded(narrow: Front, engine: FakeEngine) -> None:
    """More bytes than may wait are refused, and nothing else."""
    waiting(narrow, bytes=50_000)
    first, record = await occupied(narrow, engine)
    small = asyncio.create_task(narrow.chat())
    await until_waiting(narrow, 1)
    large = await narrow.chat(user="x" * 60_000)
    assert (large.status, large.error["code"]) == (503, "overloaded")
    record.release(10)
    assert [(await one).status for one in (first, small)] == [200] * 2


async def test_a_long_chain_of_those_that_give_way(narrow: Front, engine: FakeEngine) -> None:
    """On each of many connections a second request follows a first one that has to give way, and makes another."""
    many = 200
    waiting(narrow, requests=many)
    first, record = await occupied(narrow, engine)
    crowd = []
    for number in range(1, many + 1):
        http = await narrow.connect()
        http.post(CHAT, chat(max_tokens=1), x_tuneplex_priority="low")
        http.post(CHAT, chat(max_tokens=1), x_tuneplex_priority="high")
        crowd.append(http)
        await until_waiting(narrow, number)
    last = asyncio.create_task(narrow.post(CHAT, chat(max_tokens=1), x_tuneplex_priority="high"))
    assert [(await http.response()).status for http in crowd] == [503] * many
    record.release(10)
    statuses = Counter([(await http.response()).status for http in crowd] + [(await last).status])
    assert statuses == {200: many, 503: 1}
    assert (await first).complete
    assert nothing_left(narrow)


# --- time


async def test_a_deadline_that_passes_while_waiting(narrow: Front, engine: FakeEngine) -> None:
    """504, or an error event where the head has left already; no engine hears of it."""
    first, record = await occupied(narrow, engine)
    plain, stream = await asyncio.gather(
        narrow.post(CHAT, chat(), x_tuneplex_deadline="300ms"),
        narrow.post(CHAT, chat(stream=True), x_tuneplex_deadline="0.3"),
    )
    assert (plain.status, plain.error["code"]) == (504, "deadline_exceeded")
    assert (stream.status, json.loads(events(stream)[-1])["error"]["code"]) == (200, "deadline_exceeded")
    assert stream.complete
    assert len(engine.requests) == 1
    record.release(10)
    await first
    assert nothing_left(narrow)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_deadline_that_passes_at_an_engine(front: Front, engine: FakeEngine, *, stream: bool) -> None:
    """The engine is stopped at once; the client gets an error event, or 504 where nothing has been said."""
    engine.script(Script(silent_after_chunks=2) if stream else Script(silent_before_headers=True))
    reply = await front.post(CHAT, chat(stream=stream, max_tokens=50), x_tuneplex_deadline="400ms")
    error = json.loads(events(reply)[-1])["error"] if stream else reply.error
    assert (reply.status, error["code"]) == (200 if stream else 504, "deadline_exceeded")
    assert reply.complete
    assert "[DONE]" not in reply.body.decode()
    await asyncio.wait_for(engine.requests[0].left.wait(), 5)
    assert front.outcomes() == {"deadline": 1}
    assert nothing_left(front)


async def test_openais_client_does_not_miss_a_deadline_three_times(front: Front, engine: FakeEngine) -> None:
    """By itself it repeats what failed with 504; a deadline that has passed is no reason for that."""
    engine.script(Script(silent_before_headers=True))
    url = f"http://127.0.0.1:{front.port}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        with pytest.raises(APIStatusError, match="before the request's deadline") as caught:
            await client.chat.completions.create(
                model="base",
                messages=[{"role": "user", "content": "Go."}],
                extra_headers={"x-tuneplex-deadline": "0.2"},
            )
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(engine.requests) == 1


async def test_a_reply_in_time_ends_as_ever(front: Front) -> None:
    """A deadline that is kept changes nothing."""
    reply = await front.post(CHAT, chat(stream=True, max_tokens=5), x_tuneplex_deadline="30s")
    assert reply.events[-1] == "[DONE]"


async def test_waiting_has_an_end(narrow: Front, engine: FakeEngine) -> None:
    """After the longest time it is 503 with what was waited for."""
    waiting(narrow, longest_s=0.3)
    first, record = await occupied(narrow, engine)
    reply = await narrow.chat()
    assert (reply.status, reply.error["code"]) == (503, "waited_too_long")
    assert "No place got free" in reply.error["message"]
    assert int(reply.headers["retry-after"]) >= 1
    assert float(reply.headers["x-tuneplex-waited"]) >= 0.3
    record.release(10)
    await first


# --- ends


@pytest.mark.parametrize("abruptly", [False, True])
async def test_a_client_that_leaves_while_waiting(narrow: Front, engine: FakeEngine, *, abruptly: bool) -> None:
    """Its place is free at once, its limits have never heard of it, and no engine does."""
    tenant = Tenant("acme", limits=Limits(requests_per_minute=3, concurrent=3))
    narrow.gateway.update_access(access_of(tenant, key_of("one")))
    first, record = await occupied(narrow, engine, **bearer("one"))
    http = await narrow.connect()
    http.post(CHAT, chat(stream=True), **bearer("one"))
    await http.head()
    assert narrow.gateway.report().used["tenant acme"].requests == 2
    if abruptly:
        http.writer.transport.abort()
    else:
        await http.close()
    await until_waiting(narrow, 0)
    used = narrow.gateway.report().used["tenant acme"]
    assert (used.requests, used.concurrent) == (1, 1)
    record.release(10)
    await first
    assert len(engine.requests) == 1
    assert narrow.gateway.report().counters["tuneplex_left_waiting_total"] == [(("contacts",), 1.0)]
    assert nothing_left(narrow)


@pytest.mark.parametrize(
    "script",
    [Script(status=500), Script(status=400), Script(reset_before_headers=True), Script(raw="SSH-2.0\r\n")],
    ids=["500", "400", "reset", "no HTTP"],
)
async def test_an_engine_that_fails_after_comments(narrow: Front, engine: FakeEngine, script: Script) -> None:
    """The head has left: the error is the stream's last event, in OpenAI's shape; there is no second head."""
    first, record = await occupied(narrow, engine)
    engine.script(script, script)  # what a kept connection breaks is sent once more
    asking = asyncio.create_task(narrow.chat(stream=True))
    await until_waiting(narrow, 1)
    await asyncio.sleep(0.25)
    record.release(10)
    reply = await asking
    assert (reply.status, reply.complete) == (200, True)
    assert b"HTTP/1.1" not in reply.body
    assert "[DONE]" not in reply.events
    error = json.loads(events(reply)[-1])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    await first
    assert nothing_left(narrow)


async def test_openais_client_raises_for_an_error_after_comments(narrow: Front, engine: FakeEngine) -> None:
    """An error event is an exception there, whether it follows chunks or comments only."""
    first, record = await occupied(narrow, engine)
    engine.script(Script(status=500))
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{narrow.port}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="contacts", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        record.release(10)
        with pytest.raises(APIError):
            async for _ in stream:
                pass
    await first


async def test_a_response_that_fails_after_comments_has_a_typed_event(narrow: Front, engine: FakeEngine) -> None:
    """Events of `/v1/responses` have a type and a number, also the only one."""
    first, record = await occupied(narrow, engine)
    engine.script(Script(status=500))
    asking = asyncio.create_task(narrow.post("/v1/responses", {"model": "contacts", "input": "hello", "stream": True}))
    await until_waiting(narrow, 1)
    await asyncio.sleep(0.25)
    record.release(10)
    event = json.loads(events(await asking)[-1])
    assert (event["type"], event["sequence_number"]) == ("error", 0)
    await first


async def test_a_silent_engine_after_comments(engine: FakeEngine) -> None:
    """Its timeout is an event of the stream."""
    settings = GatewaySettings(waiting=Waiting(comment_s=0.1), timeouts=Timeouts(first_byte_s=0.4))
    async with open_front(view_of([engine], settings)) as front:
        change(front, concurrent=1)
        engine.script(Script(before_headers_s=0.3), Script(silent_before_headers=True))
        first = asyncio.create_task(front.chat())
        await engine.arrived()
        reply = await front.chat(stream=True)
        assert json.loads(events(reply)[-1])["error"]["code"] == "engine_timeout"
        assert (await first).status == 200
        assert nothing_left(front)


async def test_the_time_for_an_engine_begins_when_it_gets_the_request(engine: FakeEngine) -> None:
    """Who has waited longer than an engine may be silent is not given up at once."""
    settings = GatewaySettings(timeouts=Timeouts(first_byte_s=0.6))
    async with open_front(view_of([engine], settings)) as front:
        change(front, concurrent=1)
        engine.script(*(Script(before_headers_s=0.35) for _ in range(4)))
        replies = await asyncio.gather(*(front.chat() for _ in range(4)))
        assert [reply.status for reply in replies] == [200] * 4


async def test_a_gateway_that_stops_refuses_what_waits(narrow: Front, engine: FakeEngine) -> None:
    """503 with `retry-after` at once; what is under way has its time."""
    first, record = await occupied(narrow, engine)
    asking = asyncio.create_task(narrow.chat())
    await until_waiting(narrow, 1)
    narrow.stop.set()
    refused = await asking
    assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "stopping", "1")
    record.release(10)
    assert (await first).events[-1] == "[DONE]"


# --- what is on its way


async def test_an_adapter_that_gets_loaded_is_waited_for(narrow: Front) -> None:
    """Its requests wait while the base answers, and go when a replica has it."""
    version = VERSIONS["contacts"]
    serves = dict(narrow.gateway.view.replicas[0].serves)
    change(narrow, serves={name: one for name, one in serves.items() if name != version}, awaited=frozenset({version}))
    asking = asyncio.create_task(narrow.chat("contacts"))
    await until_waiting(narrow, 1)
    assert (await narrow.chat("base")).status == 200
    change(narrow, serves=serves, awaited=frozenset())
    reply = await asking
    assert (reply.status, reply.json["model"]) == (200, "contacts")
    assert "x-tuneplex-waited" in reply.headers
    assert nothing_left(narrow)


async def test_an_adapter_that_does_not_come(narrow: Front) -> None:
    """After the longest time the error says that no engine got ready for it; given up, it is 503 at once."""
    version = VERSIONS["contacts"]
    waiting(narrow, longest_s=0.3)
    change(narrow, serves={"base": "base"}, awaited=frozenset({version}))
    reply = await narrow.chat("contacts")
    assert (reply.status, reply.error["code"]) == (503, "waited_too_long")
    assert "No engine got ready for the model `contacts`" in reply.error["message"]
    asking = asyncio.create_task(narrow.chat("contacts"))
    await until_waiting(narrow, 1)
    change(narrow, awaited=frozenset())
    assert (await asking).error["code"] == "no_ready_engine"


async def test_an_adapter_that_is_replaced_while_its_requests_wait(narrow: Front, engine: FakeEngine) -> None:
    """They are answered by the version that the fleet has when their turn comes."""
    first, record = await occupied(narrow, engine)
    asking = asyncio.create_task(narrow.chat("contacts"))
    await until_waiting(narrow, 1)
    models = dict(narrow.gateway.view.models)
    models["contacts"] = msgspec.structs.replace(models["contacts"], version=VERSIONS["contacts-v2"])
    narrow.gateway.update(msgspec.structs.replace(narrow.gateway.view, models=models))
    record.release(10)
    assert (await asking).json["model"] == "contacts"
    await first
    assert engine.requests[-1].json["model"] == VERSIONS["contacts-v2"]


async def test_an_engine_that_is_started_again_is_waited_for(engine: FakeEngine) -> None:
    """Whatever waits when an engine dies is not sent before control has seen it, and is answered by the next."""
    dying = FakeEngine("base", adapters=VERSIONS.values())
    await dying.__aenter__()
    async with open_front(view_of([dying])) as front:
        change(front, concurrent=1)
        first, _ = await occupied(front, dying)
        asking = [asyncio.create_task(front.chat()) for _ in range(3)]
        await until_waiting(front, 3)
        dying.die()
        assert "[DONE]" not in (await first).body.decode()
        await asyncio.sleep(0.5)  # control has not seen it yet
        assert front.gateway.report().waiting == 3
        change(front, state=ReplicaState.STARTING, awaited=frozenset({"base", *VERSIONS.values()}), serves={})
        await asyncio.sleep(0.05)
        assert front.gateway.report().waiting == 3
        front.gateway.update(view_of([engine]))
        assert [(await one).status for one in asking] == [200] * 3
        assert nothing_left(front)
    await dying.__aexit__(None, None, None)


async def test_one_broken_reply_does_not_stop_a_healthy_engine(narrow: Front, engine: FakeEngine) -> None:
    """The engine is asked whether it is there, is, and goes on at once."""
    first, record = await occupied(narrow, engine)
    engine.script(Script(close_after_chunks=2))
    asking = [asyncio.create_task(narrow.chat(stream=True)) for _ in range(4)]
    await until_waiting(narrow, 4)
    record.release(10)
    await first
    ends = Counter([(await one).events[-1] == "[DONE]" for one in asking])
    assert ends == {True: 3, False: 1}


# --- keys, limits, slots, several gateways


async def test_a_key_that_is_revoked_while_its_request_waits(narrow: Front, engine: FakeEngine) -> None:
    """It opens nothing any more, also not what has waited with it."""
    narrow.gateway.update_access(access_of(key_of("one"), key_of("two")))
    first, record = await occupied(narrow, engine, **bearer("two"))
    asking = asyncio.create_task(narrow.post(CHAT, chat(), **bearer("one")))
    await until_waiting(narrow, 1)
    narrow.gateway.update_access(access_of(key_of("two"), generation=2))
    assert (await asking).status == 401
    record.release(10)
    await first


async def test_a_key_that_expires_while_its_request_waits(narrow: Front, engine: FakeEngine) -> None:
    """When its turn comes it is 401, as if it came then."""
    expires = time.time() + 2
    narrow.gateway.update_access(access_of(key_of("brief", expires=expires), key_of("other")))
    first, record = await occupied(narrow, engine, **bearer("other"))
    asking = asyncio.create_task(narrow.post(CHAT, chat(), **bearer("brief")))
    await until_waiting(narrow, 1)
    await asyncio.sleep(expires + 0.05 - time.time())
    record.release(10)
    reply = await asking
    assert (reply.status, reply.error["code"]) == (401, "expired_api_key")
    assert (await first).complete
    assert len(engine.requests) == 1
    assert nothing_left(narrow)


async def test_a_tenant_that_is_isolated_while_its_request_waits(narrow: Front, engine: FakeEngine) -> None:
    """From then on nothing of it goes to shared ones, also not what has waited for them."""
    narrow.gateway.update_access(access_of(key_of("one"), key_of("two", "other")))
    first, record = await occupied(narrow, engine, **bearer("two"))
    asking = asyncio.create_task(narrow.post(CHAT, chat(), **bearer("one")))
    await until_waiting(narrow, 1)
    apart = Tenant("acme", isolated=True)
    narrow.gateway.update_access(access_of(apart, key_of("one"), key_of("two", "other"), generation=2))
    refused = await asking
    assert (refused.status, refused.error["code"]) == (503, "no_ready_engine")
    record.release(10)
    await first


async def test_tokens_are_counted_before_a_limited_request_waits(narrow: Front, engine: FakeEngine) -> None:
    """A limit in tokens refuses before the room does; what waits keeps what it has reserved."""
    tenant = Tenant("acme", limits=Limits(tokens_per_minute=200))
    narrow.gateway.update_access(access_of(tenant, key_of("one")))
    first, record = await occupied(narrow, engine, **bearer("one"))
    asking = asyncio.create_task(narrow.post(CHAT, chat(max_tokens=100), **bearer("one")))
    await until_waiting(narrow, 1)
    assert (await narrow.post(CHAT, chat(max_tokens=100), **bearer("one"))).status == 429
    record.release(10)
    assert (await asking).status == 200
    await first
    assert narrow.gateway.report().used["tenant acme"].tokens < 100


class Slow(TokenCounter):
    """A counter that tells nothing before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.counting: list[tuple[Callable[[Estimate], None], Pending]] = []

    def count(
        self,
        route: Route,
        fields: Mapping[str, msgspec.Raw],
        then: Callable[[Estimate], None],
        *,
        most: int | None = None,
    ) -> Pending:
        """Keep it."""
        pending = Pending(route, fields, then, most)
        self.counting.append((then, pending))
        return pending

    async def one(self) -> tuple[Callable[[Estimate], None], Pending]:
        """The next one that is being counted."""
        async with asyncio.timeout(5):
            while not self.counting:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        return self.counting.pop()


@pytest.fixture
def slow(narrow: Front) -> Slow:
    """The gateway counts as slowly as the test wants, and the caller has a limit in tokens."""
    narrow.gateway.update_access(access_of(Tenant("acme", limits=Limits(tokens_per_minute=200)), key_of("one")))
    narrow.gateway.counter = slow = Slow()
    narrow.gateway._entrance._counter = slow
    return narrow.gateway.counter


async def test_a_fleet_that_changes_while_tokens_are_counted(narrow: Front, engine: FakeEngine, slow: Slow) -> None:
    """What is counted then goes by the fleet as it is, not as it was."""
    asking = asyncio.create_task(narrow.post(CHAT, chat(), **bearer("one")))
    then, _ = await slow.one()
    narrow.gateway.update(msgspec.structs.replace(narrow.gateway.view, models={"base": Model("base", "base")}))
    then(Estimate(10, 10))
    assert (await asking).status == 404
    assert engine.requests == []
    assert nothing_left(narrow)


async def test_a_client_that_leaves_while_its_tokens_are_counted(narrow: Front, slow: Slow) -> None:
    """Nothing more is counted, and nothing is reserved."""
    http = await narrow.connect()
    http.post(CHAT, chat(), **bearer("one"))
    _, pending = await slow.one()
    await http.close()
    async with asyncio.timeout(5):
        while not pending.cancelled:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
    assert narrow.gateway.report().used == {}
    assert nothing_left(narrow)


async def test_a_deadline_that_passes_while_tokens_are_counted(narrow: Front, engine: FakeEngine, slow: Slow) -> None:
    """504, however much else there is to count, and what is counted later comes to nothing."""
    asking = asyncio.create_task(narrow.post(CHAT, chat(), x_tuneplex_deadline="100ms", **bearer("one")))
    _, pending = await slow.one()
    reply = await asking
    assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (504, "deadline_exceeded", "5")
    assert pending.cancelled
    assert engine.requests == []
    assert nothing_left(narrow)


async def test_counting_has_an_end(narrow: Front, slow: Slow) -> None:
    """What cannot be counted within the longest time that a request may wait is 503."""
    waiting(narrow, longest_s=0.1)
    reply = await narrow.post(CHAT, chat(), **bearer("one"))
    assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "waited_too_long", "5")
    assert slow.counting[0][1].cancelled
    assert nothing_left(narrow)


async def test_a_cold_adapter_gets_its_turn_beside_a_hot_one() -> None:
    """With one slot and a hot adapter that never pauses, the other one is answered, and then the hot one goes on."""
    default = Script(before_headers_s=0.05)
    engine = FakeEngine("base", adapters=VERSIONS.values(), max_loras=1, default=default)
    async with engine, open_front(view_of([engine])) as front:
        change(front, concurrent=4, slots=1)
        busy = True

        async def hot() -> None:
            while busy:
                assert (await front.chat("contacts", max_tokens=2)).status == 200

        heat = [asyncio.create_task(hot()) for _ in range(8)]
        await engine.arrived(8)
        reply = await asyncio.wait_for(front.chat("contacts-v2", max_tokens=2), 20)
        await engine.arrived(len(engine.requests) + 4)
        busy = False
        await asyncio.gather(*heat)
        assert reply.status == 200
        assert nothing_left(front)


async def test_a_gateway_among_others_reports_and_obeys(narrow: Front, engine: FakeEngine) -> None:
    """It tells what is under way and wanted, and takes no more places than it was told."""
    change(narrow, concurrent=4)
    narrow.gateway.update(msgspec.structs.replace(narrow.gateway.view, gateways=2))
    narrow.gateway.update_turns(Turns(1, places={0: {"r0": 1}}, weights={0: {"default": 0.5}}))
    first, record = await occupied(narrow, engine)
    asking = asyncio.create_task(narrow.chat("base"))
    await until_waiting(narrow, 1)
    report = narrow.gateway.report()
    assert report.busy == {"r0": {VERSIONS["contacts"]: 1}}
    assert report.demand == {"r0": {"default": 2.0}}
    narrow.gateway.update_turns(Turns(2, places={0: {"r0": 2}}))
    assert (await asking).status == 200
    record.release(10)
    await first
    assert nothing_left(narrow)


async def test_control_hears_what_is_asked_for(narrow: Front, engine: FakeEngine) -> None:
    """The report tells what was sent where, the last one last, and what waits, of what a replica still serves."""
    for model in ("contacts", "contacts-v2", "base", "contacts"):
        assert (await narrow.chat(model)).status == 200
    newer, older = VERSIONS["contacts-v2"], VERSIONS["contacts"]
    first, record = await occupied(narrow, engine)
    asking = asyncio.create_task(narrow.chat("contacts-v2"))
    await until_waiting(narrow, 1)
    report = narrow.gateway.report()
    assert list(report.begun["r0"].items()) == [(newer, 1), ("base", 1), (older, 3)]
    assert report.wanted == {newer: 1}
    record.release(10)
    await asyncio.gather(first, asking)
    change(narrow, serves={"base": "base"})
    report = narrow.gateway.report()
    assert (report.begun, report.wanted) == ({"r0": {"base": 1}}, {})


async def test_an_adapter_that_another_gateway_closed_is_open_when_control_is_lost(
    narrow: Front, engine: FakeEngine
) -> None:
    """Nobody would say any more that it is open again."""
    change(narrow, concurrent=4, slots=1)
    narrow.gateway.update_turns(Turns(1, closing={"r0": (VERSIONS["contacts"],)}))
    asking = asyncio.create_task(narrow.chat("contacts"))
    await until_waiting(narrow, 1)
    narrow.gateway.control_lost()
    assert (await asking).status == 200
    assert len(engine.requests) == 1
    assert nothing_left(narrow)


async def test_the_room_is_on_the_metrics_page(narrow: Front, engine: FakeEngine) -> None:
    """How many wait, and how long those did that have their turn."""
    first, record = await occupied(narrow, engine)
    asking = asyncio.create_task(narrow.chat())
    await until_waiting(narrow, 1)
    assert "tuneplex_waiting_requests 1.0" in (await narrow.get("/metrics")).body.decode()
    record.release(10)
    await asyncio.gather(first, asking)
    page = (await narrow.get("/metrics")).body.decode()
    assert "tuneplex_waiting_requests 0.0" in page
    assert 'tuneplex_waited_seconds_count{model="contacts"} 1.0' in page


async def test_waiting_in_vain_is_on_the_metrics_page_too(narrow: Front, engine: FakeEngine) -> None:
    """Who had no place in time has waited as well, and of who is answered it is told in which pool that was."""
    first, record = await occupied(narrow, engine)
    assert (await narrow.post(CHAT, chat(), x_tuneplex_deadline="300ms")).status == 504
    record.release(10)
    await first
    page = (await narrow.get("/metrics")).body.decode()
    assert 'tuneplex_waited_seconds_count{model="contacts"} 1.0' in page
    assert 'outcome="complete",pool="default",route="chat/completions"} 1.0' in page


async def test_a_route_that_nobody_will_offer_is_not_waited_for(narrow: Front) -> None:
    """Loading an adapter gives no engine a route that it has not."""
    change(narrow, routes=frozenset({Route.CHAT}), serves={"base": "base"}, awaited=frozenset(VERSIONS.values()))
    reply = await narrow.post("/v1/embeddings", {"model": "contacts", "input": "hello"})
    assert reply.status in {404, 503}


async def test_a_reader_that_stops_while_waiting(narrow: Front, engine: FakeEngine) -> None:
    """It costs its place and nothing more, and what comes after it is answered."""
    first, record = await occupied(narrow, engine)
    http: Http = await narrow.connect()
    http.post(CHAT, chat(stream=True, max_tokens=3))
    await until_waiting(narrow, 1)
    (asked,) = narrow.gateway._room._waiters
    asked.exchange._owner.paused = True
    await asyncio.sleep(0.5)
    assert asked.exchange.sent == 0
    asked.exchange._owner.paused = False
    record.release(10)
    reply = await http.response()
    assert reply.events[-1] == "[DONE]"
    await first
