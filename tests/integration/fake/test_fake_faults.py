"""How FakeEngine goes wrong when it is told to, and what it remembers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tuneplex.testing import FakeEngine, Record, Script

CHAT = "/v1/chat/completions"


def body(model: str = "base", **fields: object) -> dict[str, Any]:
    """A streaming chat request for ten tokens."""
    messages = [{"role": "user", "content": "Go."}]
    return {"model": model, "messages": messages, "stream": True, "max_tokens": 10, "ignore_eos": True, **fields}


async def read(client: httpx2.AsyncClient, **fields: object) -> list[bytes]:
    """The pieces of a streamed answer, as they arrive."""
    pieces: list[bytes] = []
    async with client.stream("POST", CHAT, json={**body(), **fields}) as response:
        async for piece in response.aiter_raw():
            pieces.append(piece)  # noqa: PERF401 - what came before an error is kept
    return pieces


async def test_a_reset_before_headers(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """The connection breaks off and no response begins."""
    engine.script(Script(reset_before_headers=True))
    with pytest.raises(httpx2.ReadError):
        await read(client)


@pytest.mark.parametrize(
    "script, error",
    [
        (Script(reset_after_chunks=3), httpx2.ReadError),
        (Script(close_after_chunks=3), httpx2.RemoteProtocolError),
        (Script(die_after_chunks=3), httpx2.ReadError),
    ],
)
async def test_a_stream_that_breaks_off(
    client: httpx2.AsyncClient, engine: FakeEngine, script: Script, error: type[Exception]
) -> None:
    """Exactly so many events go out before the connection ends."""
    engine.script(script)
    with pytest.raises(error):
        await read(client)
    record = engine.requests[0]
    await record.ended.wait()
    assert len(record.sent) == 3
    assert record.left_at is None or script.die_after_chunks


async def test_an_event_that_breaks_off(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """Half of it goes out, and then the connection is reset."""
    engine.script(Script(break_in_chunk=2))
    with pytest.raises(httpx2.ReadError):
        await read(client)
    sent = b"".join(piece.data for piece in engine.requests[0].sent)
    assert sent.count(b"\n\n") == 2
    assert not sent.endswith(b"\n")


async def test_events_that_are_not_as_they_should_be(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """One is nonsense, or one comes twice; the others are as always."""
    plain = b"".join(await read(client)).split(b"\n\n")
    engine.script(Script(garble_chunk=2), Script(repeat_chunk=0))
    garbled, repeated = [b"".join(await read(client)).split(b"\n\n") for _ in range(2)]
    assert garbled[2] == b"data: {nonsense"
    assert len(garbled) == len(plain)
    assert repeated[0] == repeated[1]
    assert len(repeated) == len(plain) + 1


async def test_an_error_says_when_to_come_back(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """A scripted status has `retry-after`, and an error event the scripted words."""
    engine.script(Script(status=429, retry_after=2), Script(error_after_chunks=1, body='{"error":{"message":"Gone."}}'))
    assert (await client.post(CHAT, json=body())).headers["retry-after"] == "2"
    assert b"".join(await read(client)).endswith(b'data: {"error":{"message":"Gone."}}\n\ndata: [DONE]\n\n')


async def test_two_engines_share_a_row_of_scripts(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """The next script is for the next request, whichever of the two it reaches."""
    async with FakeEngine() as second, httpx2.AsyncClient(base_url=second.url) as other:
        second.share_scripts(engine)
        engine.script(Script(status=500), Script(status=503))
        statuses = [(await one.post(CHAT, json=body())).status_code for one in (other, client, other)]
        assert statuses == [500, 503, 200]


async def test_death_takes_everything_along(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """An engine that runs out of memory resets every stream and listens no more."""
    engine.script(Script(silent_after_chunks=2), Script(die=True))
    silent = asyncio.create_task(read(client))
    await engine.arrived()
    with pytest.raises(httpx2.ReadError):
        await read(client)
    with pytest.raises(httpx2.ReadError):
        await silent
    with pytest.raises(httpx2.ConnectError):
        await read(client)


async def test_an_engine_without_its_core(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """Streams under way and new requests are told so in vLLM's words, and the server is not well any more."""
    engine.script(Script(between_chunks_s=0.01))
    reading = asyncio.create_task(read(client))
    record = await engine.arrived()
    await record.sent_pieces(3)
    engine.lose_core()
    told = b"".join(await reading)
    assert b"EngineCore encountered an issue" in told
    assert record.finish_reasons == {}
    refused = await client.post(CHAT, json=body())
    assert (refused.status_code, "EngineCore encountered an issue" in refused.text) == (500, True)
    assert (await client.get("/health")).status_code == 503


async def test_an_engine_that_hangs(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """Nothing is said on any connection while it hangs, and all of it afterwards."""
    engine.script(Script(between_chunks_s=0.01))
    reading = asyncio.create_task(read(client))
    record = await engine.arrived()
    await record.sent_pieces(3)
    engine.hang()
    asking = asyncio.create_task(client.get("/health"))
    await asyncio.sleep(0.1)
    sent = record.sent_bytes
    await asyncio.sleep(0.1)
    assert (record.sent_bytes, asking.done(), reading.done()) == (sent, False, False)
    engine.go_on()
    assert (await asking).status_code == 200
    assert (await reading)[-1].endswith(b"data: [DONE]\n\n")


async def test_connections_are_reset_by_chance(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """Those that are chosen break off, the others go on."""
    engine.script(*[Script(between_chunks_s=0.02)] * 2)
    readings = [asyncio.create_task(read(client)) for _ in range(2)]
    await engine.arrived(2)
    engine.reset(iter((True, False)).__next__)
    ends = await asyncio.gather(*readings, return_exceptions=True)
    assert sum(isinstance(end, httpx2.ReadError) for end in ends) == 1


async def test_silence_lasts_until_the_client_leaves(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """A silent engine notices that its client has left, and remembers when."""
    engine.script(Script(silent_before_headers=True), Script(silent_after_chunks=2))
    for count in (1, 2):
        task = asyncio.create_task(read(client))
        record = await engine.arrived(count)
        await record.sent_pieces(2 * (count - 1))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await record.left.wait()
        await record.ended.wait()
    assert engine.scheduler.running == 0


async def test_lockstep(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """Each chunk waits for its release."""
    engine.script(Script(lockstep=True))
    async with client.stream("POST", CHAT, json=body()) as response:
        pieces = response.aiter_raw()
        record = engine.requests[0]
        for count in range(1, 5):
            assert len(record.sent) == count - 1
            record.release()
            await anext(pieces)
        record.release(100)
        rest = [piece async for piece in pieces]
    assert b"[DONE]" in rest[-1]


async def test_odd_pieces(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """Cutting and joining change where the pieces end, never what they say."""
    engine.script(Script(), Script(cut=3), Script(join=4), Script(crlf=True))
    answers = [b"".join(await read(client, temperature=0, request_id="x")) for _ in range(4)]
    texts = [
        [json.loads(line[6:])["choices"] for line in answer.splitlines() if line.startswith(b"data: {")]
        for answer in answers
    ]
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert max(len(sent.data) for sent in engine.requests[1].sent) == 3
    assert len(engine.requests[2].sent) == 3
    assert b"\r\n\r\n" in answers[3]


@pytest.mark.parametrize(
    "script, status, text",
    [
        (Script(status=500), 500, '"type":"InternalServerError"'),
        (Script(status=503, body="<h1>busy</h1>", content_type="text/html"), 503, "<h1>busy</h1>"),
        (Script(status=502, body=""), 502, ""),
        (Script(content_type="text/plain", body="hello"), 200, "hello"),
        (Script(status=500, body='{"detail":"x"}'), 500, '{"detail":"x"}'),
    ],
)
async def test_wrong_answers(
    client: httpx2.AsyncClient, engine: FakeEngine, script: Script, status: int, text: str
) -> None:
    """Any status, body and content type can stand in for the answer."""
    engine.script(script)
    response = await client.post(CHAT, json=body())
    assert response.status_code == status
    assert text in response.text


async def test_garbage(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """Bytes that are not HTTP can be sent as they are."""
    engine.script(Script(raw="\x00\xffnot http\r\n\r\n"))
    with pytest.raises(httpx2.RemoteProtocolError):
        await client.post(CHAT, json=body())


async def test_an_error_event_and_a_missing_done(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """A stream can end with vLLM's error event, or without its last line."""
    engine.script(Script(error_after_chunks=2), Script(drop_done=True))
    failed, short = b"".join(await read(client)), b"".join(await read(client))
    assert b'"type": "InternalServerError"' in failed
    assert failed.endswith(b"data: [DONE]\n\n")
    assert b"[DONE]" not in short


async def test_prescribed_text(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """A script can say what the answer is."""
    engine.script(Script(text="Rome 🙂"))
    answer = (await client.post(CHAT, json=body(stream=False, ignore_eos=False, max_tokens=50))).json()
    assert answer["choices"][0]["message"]["content"] == "Rome 🙂"
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_request_chooses_its_fault(client: httpx2.AsyncClient) -> None:
    """A client can ask for a fault itself, by a header or, through a gateway, by a field of the body."""
    fault = {"x-fake-fault": '{"status": 429}'}
    assert (await client.post(CHAT, json=body(), headers=fault)).status_code == 429
    assert (await client.post(CHAT, json=body(fake_fault={"status": 429}))).status_code == 429
    for wrong in ('{"statuss": 429}', "nonsense"):
        assert (await client.post(CHAT, json=body(), headers={"x-fake-fault": wrong})).status_code == 400


async def test_other_routes_fail_too(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """A script for one path leaves the others alone."""
    engine.script(Script(status=503), path="/health")
    assert (await client.get("/version")).status_code == 200
    assert (await client.get("/health")).status_code == 503
    assert (await client.get("/health")).status_code == 200


async def test_a_flood_waits_for_its_reader(engine: FakeEngine) -> None:
    """A huge stream is made only as fast as it is read."""
    engine.script(Script(flood=100_000_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rsplit(":", 1)[1]), limit=4096)
    content = json.dumps(body()).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    record = await engine.arrived()
    await reader.readline()
    while (before := record.sent_bytes) == 0 or before != await _later(record):
        pass
    assert record.sent_bytes < 20_000_000
    assert record.ended_at is None
    writer.transport.abort()
    await record.left.wait()


async def _later(record: Record) -> int:
    await asyncio.sleep(0.05)
    return record.sent_bytes


async def test_adapters_wait_for_a_slot(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """With one slot, another adapter's request waits while the base and the same adapter go on."""
    engine.script(Script(lockstep=True))
    first = asyncio.create_task(read(client, model="ada"))
    holder = await engine.arrived(1)
    waiting = asyncio.create_task(read(client, model="bob"))
    await engine.arrived(2)
    await read(client, model="base")
    await read(client, model="ada")
    page = (await client.get("/metrics")).text
    assert 'running_lora_adapters="ada",waiting_lora_adapters="bob"' in page
    assert 'vllm:num_requests_waiting{engine="0",model_name="base"} 1.0' in page
    holder.release(100)
    await asyncio.gather(first, waiting)
    assert engine.scheduler.waiting == 0


async def test_two_hundred_streams(engine: FakeEngine) -> None:
    """200 streams at a time come out whole and in order."""
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=engine.url, limits=limits, timeout=60) as client:
        answers = await asyncio.gather(*(read(client, return_token_ids=True) for _ in range(200)))
    for pieces, record in zip(answers, engine.requests, strict=True):
        lines = b"".join(pieces).splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        ids = [token_id for chunk in chunks for token_id in chunk["choices"][0].get("token_ids", [])]
        assert len(ids) == 10
        assert lines[-2] == b"data: [DONE]"
        assert record.finish_reasons == {0: "length"}


async def test_a_unix_socket(socket_path: Path) -> None:
    """The engine can listen on a Unix socket instead of a port."""
    async with FakeEngine(uds=str(socket_path)) as engine:
        assert engine.endpoint == f"unix:{socket_path}"
        transport = httpx2.AsyncHTTPTransport(uds=str(socket_path))
        async with httpx2.AsyncClient(base_url=engine.url, transport=transport) as client:
            assert (await client.get("/health")).status_code == 200


async def test_send_times_are_true(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """The times of the pieces are those of their sending, delays included."""
    engine.script(Script(before_first_chunk_s=0.03, between_chunks_s=0.01))
    await read(client)
    record = engine.requests[0]
    times = [sent.at for sent in record.sent]
    assert times[0] - record.received_at >= 0.03
    assert all(later - earlier >= 0.01 for earlier, later in itertools.pairwise(times))
    assert record.ended_at is not None
    assert record.ended_at >= times[-1]


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/completions", b'{"model":"base","prompt":[[{},true]]}'),
        ("/v1/completions", b'{"model":"base","prompt":[["a"],[1]]}'),
        ("/v1/chat/completions", b'{"model":"base","messages":[{"fake_fault":1}]}'),
        ("/v1/chat/completions", b'{"model":"base","messages":' + b"[" * 100_000),
        ("/v1/chat/completions", b'{"fake_fault"'),
    ],
)
async def test_no_body_breaks_the_engine(client: httpx2.AsyncClient, path: str, body: bytes) -> None:
    """What makes no sense is refused, or answered, and never a lost connection."""
    reply = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code in {200, 400}
