"""Clients that leave, stop reading, send in pieces, pipeline, or send nonsense."""

from __future__ import annotations

import asyncio
import gc
import json
import time

import psutil
import pytest

from tests.support.front import Front, Http, chat, open_front, scripted, view_of
from tuneplex.gateway import ConnectionLimits
from tuneplex.testing import FakeEngine, Script

CHAT = "/v1/chat/completions"


async def leave(http: Http, *, abruptly: bool) -> None:
    """Close the connection, in an orderly way or by a reset."""
    if abruptly:
        http.writer.transport.abort()
    else:
        await http.close()


@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize(
    "script, stream, chunks",
    [
        (Script(silent_before_headers=True), False, 0),
        (Script(silent_before_headers=True), True, 0),
        (Script(silent_after_chunks=0), True, 0),
        (Script(silent_after_chunks=2), True, 1),  # two events, in one piece or in two
        (Script(between_chunks_s=0.02), True, 3),
    ],
    ids=scripted,
)
async def test_the_engine_stops_at_once_when_the_client_leaves(
    front: Front, engine: FakeEngine, script: Script, chunks: int, *, stream: bool, abruptly: bool
) -> None:
    """Before headers, between chunks and while the engine is silent: the upstream connection is closed at once."""
    engine.script(script)
    http = await front.connect()
    http.post(CHAT, chat(stream=stream, max_tokens=1000))
    record = await engine.arrived()
    if chunks:
        await http.head()
        for _ in range(chunks):
            await http.chunk()
    left_at = time.perf_counter()
    await leave(http, abruptly=abruptly)
    await asyncio.wait_for(record.left.wait(), 5)
    assert record.left_at is not None
    assert record.left_at - left_at < 0.1
    assert front.outcomes() == {"client_gone": 1}
    assert not front.gateway.ledger.outstanding


async def test_200_streams_at_once(front: Front, engine: FakeEngine) -> None:
    """No error, and every client gets its own tokens, in order."""

    async def one(number: int) -> None:
        said = " ".join(f"{number}:{word}" for word in range(30))
        body = chat("contacts", stream=True, max_tokens=1000)
        body["fake_fault"] = {"text": said, "cut": 40 if number % 3 == 0 else 0}
        reply = await front.post(CHAT, body)
        assert reply.text == said
        assert reply.events[-1] == "[DONE]"

    await asyncio.gather(*(one(number) for number in range(200)))
    assert len(engine.requests) == 200
    assert front.outcomes() == {"complete": 200}
    assert not front.gateway.ledger.outstanding


async def test_a_reader_that_stops_costs_no_memory(front: Front, engine: FakeEngine) -> None:
    """Of a 100 MB stream less than 10 MB is held anywhere; when the client reads on, it gets all of it."""
    size = 100_000_000
    engine.script(Script(flood=size, flood_event=65536))
    http = await front.connect()
    gc.collect()
    before = psutil.Process().memory_info().rss
    http.post(CHAT, chat(stream=True))
    await http.head()
    record = await engine.arrived()
    sent = -1
    while sent != record.sent_bytes:  # until nothing moves any more
        sent = record.sent_bytes
        await asyncio.sleep(0.3)
    assert sent < size / 4
    assert psutil.Process().memory_info().rss - before < 10_000_000
    total = 0
    while data := await http.chunk():
        total += len(data)
    assert total == record.sent_bytes > size * 0.99


async def test_pipelined_requests_are_answered_in_order(front: Front, engine: FakeEngine) -> None:
    """Sent in one go, or while the first is still under way; pages, errors and streams mixed."""
    http = await front.connect()
    engine.script(Script(before_headers_s=0.05))
    http.post(CHAT, chat("contacts"))
    http.request("GET", "/health")
    http.post(CHAT, chat("nobody"))
    await asyncio.sleep(0.01)
    http.post(CHAT, chat("gpt-4o", stream=True))
    http.request("GET", "/v1/models/base")
    assert (await http.response()).json["model"] == "contacts"
    assert (await http.response()).json == {"status": "ok"}
    assert (await http.response()).status == 404
    assert (await http.response()).events[-1] == "[DONE]"
    assert (await http.response()).json["id"] == "base"


async def test_a_long_pipeline_of_pages_is_answered(front: Front) -> None:
    """Hundreds of requests in one write need no deep recursion."""
    http = await front.connect()
    for _ in range(2000):
        http.request("GET", "/health")
    for _ in range(2000):
        assert (await http.response()).status == 200


async def test_too_much_pipelined_ends_the_connection(front: Front, engine: FakeEngine) -> None:
    """What is under way is answered; what comes in a flood behind it is not kept."""
    engine.script(Script(before_headers_s=0.2))
    http = await front.connect()
    http.post(CHAT, chat("contacts"))
    await engine.arrived()
    for _ in range(40):
        http.post(CHAT, chat("contacts", user="x" * 10_000))
    assert (await http.response()).json["model"] == "contacts"
    assert await http.closed()


async def test_a_connection_is_kept(front: Front, engine: FakeEngine) -> None:
    """Requests follow each other on both sides over the same connections."""
    http = await front.connect()
    for stream in (False, True, True, False):
        http.post(CHAT, chat("contacts", stream=stream))
        assert (await http.response()).status == 200
    assert sum(pool.idle for pool in front.gateway._upstreams._pools.values()) == 1
    assert len(engine.requests) == 4


async def test_a_request_may_come_byte_by_byte(front: Front) -> None:
    """And its body in chunks."""
    http = await front.connect()
    body = b'{"model":"contacts","messages":[{"role":"user","content":"hello"}]}'
    chunks = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in (body[:9], body[9:])) + b"0\r\nt: x\r\n\r\n"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for byte in head + chunks:
        http.send(bytes([byte]))
        await http.writer.drain()
        await asyncio.sleep(0)
    assert (await http.response()).json["model"] == "contacts"


async def test_expect_continue(front: Front) -> None:
    """A client that asks first is told to go on, or gets its error at once, without sending the body."""
    http = await front.connect()
    body = json.dumps(chat()).encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    http.send(head % (CHAT.encode(), len(body)))
    assert (await http.head()).status == 100
    http.send(body)
    assert (await http.response()).status == 200
    http.send(head % (b"/nowhere", 10_000_000))
    assert (await http.response()).status == 404
    assert await http.closed()


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_have_a_limit(front: Front, engine: FakeEngine, *, chunked: bool) -> None:
    """413 in OpenAI's shape, as early as it can be known, even to a client that goes on sending."""
    front.settings(max_body=1000)
    http = await front.connect()
    if chunked:
        http.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(100):
            http.send(b"400\r\n%b\r\n" % (b" " * 1024))
    else:
        http.post(CHAT, b" " * 500_000)
    reply = await http.response()
    assert reply.status == 413
    assert "1000 bytes" in reply.error["message"]
    assert reply.headers["connection"] == "close"
    assert not engine.requests


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: +3\r\n\r\nabc",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n folded\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: x\n\n",
        b"BREW /health HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_requests_that_could_mean_two_things_are_refused(front: Front, request_bytes: bytes) -> None:
    """400 in OpenAI's shape; whatever follows on that connection is not read as a request."""
    http = await front.connect()
    http.send(
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" + request_bytes + b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    assert (await http.response()).json == {"status": "ok"}
    refused = await http.response()
    assert refused.status == 400
    assert refused.error["type"] == "invalid_request_error"
    if refused.headers.get("connection") == "close":
        assert await http.closed()


async def test_an_offer_to_upgrade_is_passed_over(front: Front) -> None:
    """Clients that offer HTTP/2 in the clear, with a body, are answered in HTTP/1.1."""
    http = await front.connect()
    for _ in range(2):
        http.post(CHAT, chat("contacts"), connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAMA")
        assert (await http.response()).json["model"] == "contacts"


async def test_http_1_0(front: Front) -> None:
    """An old client gets its stream without chunks, ended by the end of the connection."""
    http = await front.connect()
    body = json.dumps(chat(stream=True)).encode()
    http.send(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    head = await http.head()
    assert "transfer-encoding" not in head.headers
    assert (await http.reader.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(200)) + b"\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 300_000,
        b"POST /health HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"y" * 300_000,
    ],
    ids=["many", "large", "endless", "trailer"],
)
async def test_heads_have_a_limit(front: Front, request_bytes: bytes) -> None:
    """431, or the error that was due anyhow; the connection ends."""
    http = await front.connect()
    http.send(request_bytes)
    assert (await http.response()).status in {431, 405}


async def test_slow_clients_are_not_waited_for(engine: FakeEngine) -> None:
    """A head or a body that does not come gets 408, an idle connection is closed."""
    limits = ConnectionLimits(head_s=0.5, body_s=0.5, idle_s=0.5)
    async with open_front(view_of([engine]), limits=limits) as front:
        head, body, idle, silent = [await front.connect() for _ in range(4)]
        head.send(b"GET /health HTTP/1.1\r\nho")
        body.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        idle.request("GET", "/health")
        assert (await idle.response()).status == 200
        assert (await head.response()).status == 408
        assert (await body.response()).status == 408
        assert await idle.closed()
        assert await silent.closed()


async def test_a_reader_that_never_reads_on_is_given_up(engine: FakeEngine) -> None:
    """It would hold its place at the engine for ever."""
    async with open_front(view_of([engine]), limits=ConnectionLimits(stalled_s=0.5)) as front:
        engine.script(Script(flood=50_000_000, flood_event=65536))
        http = await front.connect()
        http.post(CHAT, chat(stream=True))
        record = await engine.arrived()
        await asyncio.wait_for(record.left.wait(), 10)
        assert front.outcomes() == {"client_gone": 1}


async def test_large_documents_are_passed_on_as_they_come(front: Front, engine: FakeEngine) -> None:
    """With the model's name exchanged wherever a piece may end, and cut, not ended, when the engine breaks off."""
    text = "x" * 3_000_000
    document = '{"data":"' + text + '","model":"contacts@0123456789ab"}'
    engine.script(Script(content_type="application/json", body=document))
    reply = await front.chat()
    assert reply.headers["transfer-encoding"] == "chunked"
    assert reply.json == {"data": text, "model": "contacts"}
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(document)}\r\n\r\n"
    engine.script(Script(raw=head + document[:-1000]))
    reply = await front.chat()
    assert reply.status == 200
    assert not reply.complete


async def test_streams_under_way_finish_when_the_gateway_stops(engine: FakeEngine) -> None:
    """New connections are refused, the stream gets its end."""
    async with open_front(view_of([engine]), drain_s=10) as front:
        engine.script(Script(lockstep=True))
        http = await front.connect()
        http.post(CHAT, chat("contacts", stream=True, max_tokens=4))
        record = await engine.arrived()
        record.release()
        await http.head()
        front.stop.set()
        await asyncio.sleep(0.4)
        record.release(20)
        text = b""
        while data := await http.chunk():
            text += data
        assert text.endswith(b"data: [DONE]\n\n")
        assert await http.closed()
        with pytest.raises(ConnectionError):
            await front.connect()


async def test_replies_that_take_too_long_at_the_end_are_told_so(engine: FakeEngine) -> None:
    """A stream gets an error event instead of its end, what has not begun gets a status, and it counts as that."""
    async with open_front(view_of([engine]), drain_s=1) as front:
        engine.script(Script(lockstep=True), Script(before_headers_s=30))
        streamed, whole = await front.connect(), await front.connect()
        streamed.post(CHAT, chat("contacts", stream=True, max_tokens=4))
        (await engine.arrived()).release()
        await streamed.head()
        whole.post(CHAT, chat("contacts"))
        await engine.arrived()
        front.stop.set()
        reply = await whole.response()
        assert (reply.status, reply.json["error"]["code"]) == (503, "stopping")
        text = b""
        while data := await streamed.chunk():
            text += data
        *_, last, rest = text.split(b"\n\n")
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "stopping"
        assert rest == b""
        assert await streamed.closed()
        assert front.outcomes() == {"stopped": 2}


async def test_one_failure_at_the_end_is_only_one(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should we fail at telling one client, all others are told, and the gateway ends as it should."""
    async with open_front(view_of([engine]), drain_s=1) as front:
        engine.script(*[Script(before_headers_s=30)] * 3)
        clients = [await front.connect() for _ in range(3)]
        for http in clients:
            http.post(CHAT, chat("contacts"))
            await engine.arrived()
        broken = next(iter(front.gateway.ledger.relays))
        monkeypatch.setattr(broken, "give_up", lambda *_: 1 / 0)
        front.stop.set()
        replies = [(await http.response()).status for http in clients]
        assert sorted(replies) == [500, 503, 503]


async def test_an_endless_pipeline_is_not_collected(front: Front, engine: FakeEngine) -> None:
    """What a client pipelines waits in one bounded place, however fast it sends and however many replies it gets."""
    http = await front.connect()
    request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    for number in range(5):
        engine.script(Script(before_headers_s=0.02))
        http.post(CHAT, chat("contacts", user=str(number)))
        http.send(request * 300)
    for _ in range(5):
        assert (await http.response()).json["model"] == "contacts"
        for _ in range(300):
            assert (await http.response()).status == 200


async def test_an_unfinished_request_does_not_hold_the_gateway_at_its_end(engine: FakeEngine) -> None:
    """Nobody is owed a reply yet."""
    async with open_front(view_of([engine]), drain_s=20) as front:
        http = await front.connect()
        http.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        await http.writer.drain()
        await asyncio.sleep(0.05)
        front.stop.set()
        assert await asyncio.wait_for(http.closed(), 5)
