"""Requests with an `Idempotency-Key`: sent again, they hear the first one's reply and cost nothing more."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from tests.support.front import Front, Http, Response, chat, open_front, view_of
from tests.support.identities import access_of, bearer, key_of
from tuneplex.gateway import Replies
from tuneplex.gateway.replies import ENTRY, RepliesError, is_alive
from tuneplex.identity import Limits, Tenant
from tuneplex.testing import FakeEngine, Record, Script
from tuneplex.types import GatewaySettings, Idempotency, Waiting

CHAT = "/v1/chat/completions"
SLOW = Script(lockstep=True)
REPLAYED, ORIGINAL = "idempotent-replayed", "x-tuneplex-original-request-id"


@contextlib.asynccontextmanager
async def process(
    engines: list[FakeEngine], place: Path, name: str = "a", alive: Callable[[str], bool] = is_alive
) -> AsyncIterator[Front]:
    """A gateway as a process of its own would be: with the store of a directory, and a socket for the others."""
    replies = Replies(place / "replies", str(place / f"{name}.sock"), alive)
    async with open_front(view_of(engines), replies=replies) as front, front.gateway.idempotency.listening():
        yield front


def long() -> dict[str, object]:
    """A request for a stream of some length."""
    return chat(stream=True, max_tokens=30, ignore_eos=True)


async def begun(front: Front, body: object, key: str = "k1", **headers: str) -> Http:
    """A request that was sent; nobody has read its reply."""
    http = await front.connect()
    http.post(CHAT, body, idempotency_key=key, **headers)
    return http


async def rest(http: Http) -> bytes:
    """What else comes of a body, to its end or to where it breaks."""
    body = b""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while data := await http.chunk():
            body += data
    return body


async def first_chunk(http: Http) -> bytes:
    """What comes right behind the head."""
    await http.head()
    return await http.chunk()


async def keyed(front: Front, body: object, key: str = "k1", path: str = CHAT, **headers: str) -> Response:
    """A request with a key, and its whole reply."""
    return await front.post(path, body, idempotency_key=key, **headers)


def requests(engine: FakeEngine) -> list[Record]:
    """What the engine was asked to generate."""
    return [record for record in engine.requests if record.method == "POST"]


def counted(front: Front, name: str) -> dict[str, float]:
    """A counter, by its last label."""
    sums: dict[str, float] = {}
    for labels, value in front.gateway.report().counters[f"tuneplex_{name}_total"]:
        sums[labels[-1]] = sums.get(labels[-1], 0) + value
    return {label: value for label, value in sums.items() if value}


async def until(condition: Callable[[], object]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in many places
            await asyncio.sleep(0.01)


async def settled(front: Front) -> None:
    """Wait until every reply was put away, or forgotten."""
    idempotency = front.gateway.idempotency
    await until(lambda: not idempotency._works)
    await idempotency._in_thread(lambda: None)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_retry_after_the_end_gets_the_stored_reply(front: Front, engine: FakeEngine, *, stream: bool) -> None:
    """Byte for byte, with ids of its own, while the engine and the counters hear of one request only."""
    body = chat(stream=stream, max_tokens=12)
    first = await keyed(front, body, x_request_id="first")
    await settled(front)
    tokens = counted(front, "completion_tokens")
    again = await keyed(front, body, x_request_id="second")
    assert (again.status, again.body, again.complete) == (200, first.body, True)
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers.get("cache-control") == first.headers.get("cache-control")
    assert (REPLAYED in first.headers, again.headers[REPLAYED]) == (False, "true")
    assert (again.headers["x-request-id"], again.headers[ORIGINAL]) == ("second", "first")
    assert len(requests(engine)) == 1
    assert counted(front, "completion_tokens") == tokens
    assert counted(front, "replayed") == {"stored": 1}
    assert front.outcomes() == {"complete": 1}


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/completions", {"model": "base", "prompt": "hello", "max_tokens": 4, "stream": True}),
        ("/v1/completions", {"model": "base", "prompt": "hello", "max_tokens": 4}),
        ("/v1/responses", {"model": "base", "input": "hello", "max_output_tokens": 4, "stream": True}),
        ("/v1/responses", {"model": "base", "input": "hello", "max_output_tokens": 4}),
        ("/d/base/v1/completions", {"prompt": "hello", "max_tokens": 4, "stream": True}),
    ],
)
async def test_all_routes_that_generate_have_it(
    front: Front, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    """Streaming or not, and below a deployment's own base URL."""
    first = await keyed(front, body, path=path)
    await settled(front)
    again = await keyed(front, body, path=path)
    assert (first.status, again.body, again.headers[REPLAYED]) == (200, first.body, "true")
    assert len(requests(engine)) == 1


async def test_a_retry_joins_the_stream_that_runs(front: Front, engine: FakeEngine) -> None:
    """Both get all of it, whoever reads how fast, and the engine has one request."""
    engine.script(SLOW)
    one = await begun(front, long())
    record = await engine.arrived()
    record.release(10)
    head = await one.head()
    got = b"".join([await one.chunk() for _ in range(5)])
    other = await begun(front, long())
    assert (await other.head()).headers[REPLAYED] == "true"
    joined = b""
    while len(joined) < len(got):
        joined += await other.chunk()
    record.release(100)
    got += await rest(one)
    joined += await rest(other)
    assert joined == got
    assert got.endswith(b"data: [DONE]\n\n")
    assert head.status == 200
    assert len(requests(engine)) == 1
    assert counted(front, "replayed") == {"running": 1}
    assert front.outcomes() == {"complete": 1}


async def test_many_retries_at_once_are_one_request(front: Front, engine: FakeEngine) -> None:
    """Also before anybody knows who is first."""
    replies = await asyncio.gather(*(keyed(front, chat(max_tokens=20, stream=True)) for _ in range(20)))
    assert len({reply.body for reply in replies}) == 1
    assert sum(REPLAYED in reply.headers for reply in replies) == 19
    assert len(requests(engine)) == 1


async def test_the_work_goes_on_when_the_client_leaves(front: Front, engine: FakeEngine) -> None:
    """Its retry finds it, and gets all of it."""
    engine.script(SLOW)
    http = await begun(front, long())
    record = await engine.arrived()
    record.release(5)
    await http.head()
    await http.close()
    record.release(5)
    await until(lambda: record.sent and len(record.sent) >= 8)
    retry = await begun(front, long())
    record.release(100)
    reply = await retry.response()
    assert reply.events[-1] == "[DONE]"
    assert reply.headers[REPLAYED] == "true"
    assert front.outcomes() == {"complete": 1}
    assert not record.left.is_set()


async def test_what_nobody_wants_any_more_ends(
    front: Front, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A while after its last reader has left it is aborted, and a later retry begins anew."""
    engine.script(SLOW)
    http = await begun(front, long())
    record = await engine.arrived()
    record.release(3)
    await http.head()
    await http.close()
    (work,) = front.gateway.idempotency._works.values()
    await until(lambda: work.recording.alone_since is not None)
    assert not record.left.is_set()
    monkeypatch.setattr("tuneplex.gateway.idempotency._ALONE_S", 0.0)
    await asyncio.wait_for(record.left.wait(), 5)
    await settled(front)
    assert front.outcomes() == {"client_gone": 1}
    assert (await keyed(front, long())).events[-1] == "[DONE]"
    assert len(requests(engine)) == 2


async def test_a_client_that_reads_nothing_slows_nobody(front: Front, engine: FakeEngine) -> None:
    """It gets all of it later."""
    engine.script(Script(flood=20_000_000, flood_event=65536))
    lazy = await begun(front, chat(stream=True))
    await engine.arrived()
    busy = await keyed(front, chat(stream=True))
    assert busy.complete
    assert len(busy.body) > 19_000_000
    assert (await lazy.response()).body == busy.body


@pytest.mark.parametrize(
    "script, status",
    [
        (Script(status=400), 400),
        (Script(status=500), 500),
        (Script(error_after_chunks=3), 200),
        (Script(close_after_chunks=3), 200),
    ],
)
async def test_an_error_is_not_kept(front: Front, engine: FakeEngine, script: Script, status: int) -> None:
    """Whoever comes again really tries again."""
    engine.script(script)
    failed = await keyed(front, long())
    assert (failed.status, b"[DONE]" in failed.body) == (status, False)
    good = await keyed(front, long())
    assert (good.events[-1], REPLAYED in good.headers) == ("[DONE]", False)
    assert len(requests(engine)) == 2


async def test_all_who_wait_hear_of_an_error(front: Front, engine: FakeEngine) -> None:
    """With its status and its message."""
    engine.script(Script(status=400, before_headers_s=0.3))
    replies = await asyncio.gather(*(keyed(front, chat()) for _ in range(3)))
    assert [reply.status for reply in replies] == [400] * 3
    assert len({reply.body for reply in replies}) == 1
    assert len(requests(engine)) == 1


async def test_all_who_wait_are_told_how_they_stand(engine: FakeEngine) -> None:
    """Comments go to those who read at the time, and what is kept has none."""
    view = view_of([engine], GatewaySettings(waiting=Waiting(comment_s=0.05)))
    replicas = tuple(msgspec.structs.replace(replica, concurrent=1) for replica in view.replicas)
    engine.script(SLOW)
    async with open_front(msgspec.structs.replace(view, replicas=replicas)) as front:
        await begun(front, long(), key="first")
        record = await engine.arrived()
        one = await begun(front, chat(max_tokens=5, stream=True))
        assert (await first_chunk(one)).startswith(b": waiting")
        other = await begun(front, chat(max_tokens=5, stream=True))
        assert (await first_chunk(other)).startswith(b": waiting")
        record.release(100)
        bodies = [await rest(one), await rest(other)]
        await settled(front)
        kept = (await keyed(front, chat(max_tokens=5, stream=True))).body
    assert kept.startswith(b"data: ")
    assert kept.endswith(b"data: [DONE]\n\n")
    assert all(body.endswith(kept) for body in bodies)


async def test_another_request_may_not_have_the_key(front: Front, engine: FakeEngine) -> None:
    """Another body, route or deployment is refused, while the first runs and after it."""
    engine.script(SLOW)
    http = await begun(front, long())
    record = await engine.arrived()
    refused = [await keyed(front, chat(max_tokens=3))]
    record.release(100)
    await http.response()
    await settled(front)
    refused.append(await keyed(front, chat(max_tokens=3)))
    refused.append(await keyed(front, long(), path="/d/contacts/v1/chat/completions"))
    refused.append(await keyed(front, {"model": "base", "prompt": "x"}, path="/v1/completions"))
    assert [(reply.status, reply.error["code"]) for reply in refused] == [(422, "idempotency_key_reused")] * 4
    assert len(requests(engine)) == 1


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a\tb"])
async def test_a_bad_key_is_refused(front: Front, engine: FakeEngine, key: str) -> None:
    """Empty, too long, or with control characters."""
    refused = await keyed(front, chat(), key=key)
    assert (refused.status, refused.error["code"]) == (400, "invalid_idempotency_key")
    assert not requests(engine)


async def test_a_full_store_refuses_before_anything_runs(front: Front, engine: FakeEngine) -> None:
    """503 with the time until there is room again; requests without a key, and known keys, are not touched."""
    front.settings(idempotency=Idempotency(bytes=70_000, keep_s=100))
    assert (await keyed(front, chat(max_tokens=4))).status == 200
    await settled(front)
    front.settings(idempotency=Idempotency(bytes=66_000, keep_s=100))
    refused = await keyed(front, chat(max_tokens=4), key="k2")
    assert (refused.status, refused.error["code"]) == (503, "idempotency_store_full")
    assert 90 <= int(refused.headers["retry-after"]) <= 100
    assert (await keyed(front, chat(max_tokens=4))).headers[REPLAYED] == "true"
    assert (await front.chat()).status == 200
    assert len(requests(engine)) == 2


async def test_what_has_expired_makes_room(engine: FakeEngine, tmp_path: Path) -> None:
    """And its key is new again."""
    async with process([engine], tmp_path) as front:
        front.settings(idempotency=Idempotency(bytes=66_000, keep_s=0.2))
        for _ in range(2):
            reply = await keyed(front, chat(max_tokens=4))
            assert (reply.status, REPLAYED in reply.headers) == (200, False)
            await settled(front)
            await asyncio.sleep(0.3)
        assert (await keyed(front, chat(max_tokens=4), key="k2")).status == 200
    assert len(requests(engine)) == 3


async def test_a_reply_that_is_too_large_goes_on_for_its_client(front: Front, engine: FakeEngine) -> None:
    """It is not kept, holds no memory, and whoever comes again is told so, while it runs and after it."""
    front.settings(idempotency=Idempotency(bytes=200_000))
    engine.script(Script(flood=30_000_000, flood_event=65536))
    http = await begun(front, chat(stream=True))
    await http.head()
    (work,) = front.gateway.idempotency._works.values()
    await until(lambda: not work.recording.kept)
    assert work.recording._held < 5_000_000
    late = [await keyed(front, chat(stream=True))]
    size = 0
    while data := await http.chunk():
        size += len(data)
    assert size > 29_000_000
    await settled(front)
    late.append(await keyed(front, chat(stream=True)))
    assert [(one.status, one.error["code"]) for one in late] == [(409, "idempotency_reply_too_large")] * 2
    assert [one.headers["x-should-retry"] for one in late] == ["false"] * 2
    assert len(requests(engine)) == 1
    assert counted(front, "unkept") == {"full": 1}
    assert front.gateway.idempotency._replies.used() == ENTRY


async def test_a_retry_is_in_no_limit(front: Front, engine: FakeEngine) -> None:
    """One request a minute is enough for any number of replays; a new key is refused."""
    front.gateway.update_access(access_of(Tenant("default", limits=Limits(requests_per_minute=1))))
    assert (await keyed(front, chat(max_tokens=4))).status == 200
    await settled(front)
    assert [(await keyed(front, chat(max_tokens=4))).status for _ in range(3)] == [200] * 3
    refused = await keyed(front, chat(max_tokens=4), key="k2")
    assert refused.status == 429
    assert front.gateway.report().used["tenant default"].requests == 1
    assert len(requests(engine)) == 1


async def test_keys_belong_to_tenants_and_need_leave(engine: FakeEngine) -> None:
    """Another tenant's request with the same key is its own; a key that may no longer call the model gets no reply."""
    ann, bob = key_of("ann", "acme"), key_of("bob", "other")
    async with open_front(view_of([engine]), access_of(ann, bob)) as front:
        for who, replayed in (("ann", False), ("bob", False), ("ann", True)):
            assert (REPLAYED in (await keyed(front, chat(), **bearer(who))).headers) is replayed
            await settled(front)
        narrowed = msgspec.structs.replace(ann, adapters=("nothing",))
        front.gateway.update_access(access_of(narrowed, bob))
        assert (await keyed(front, chat(), **bearer("ann"))).status == 404
        assert (await keyed(front, chat(), **bearer("eve"))).status == 401
    assert len(requests(engine)) == 2


async def test_a_large_request_can_be_sent_again(front: Front, engine: FakeEngine) -> None:
    """Its fingerprint is taken elsewhere than on the event loop, and tells as much."""
    bodies = [chat(user=letter * 300_000) for letter in "xxy"]
    engine.script(Script(before_headers_s=0.2), Script())
    replies = await asyncio.gather(*(keyed(front, body) for body in bodies))
    assert [reply.status for reply in replies] == [200, 200, 422]
    assert len(requests(engine)) == 1


async def test_a_process_that_lives_is_never_taken_over_from(engine: FakeEngine, tmp_path: Path) -> None:
    """It may only have too much to do: whoever cannot hear what it records is told to come again."""
    busy = Replies(tmp_path / "replies", str(tmp_path / "busy.sock"))
    server = await asyncio.start_unix_server(lambda _, writer: writer.close(), busy.owner)
    async with server, process([engine], tmp_path) as front:
        body = json.dumps(chat()).encode()
        print_ = hashlib.sha256(b"chat/completions\0\0" + body).digest()
        busy.claim(hashlib.sha256(b"default\0k1").digest(), print_, 0.0, Idempotency(), None)
        busy.close()
        refused = await keyed(front, body)
        assert (refused.status, refused.error["code"]) == (503, "idempotency_unknown")
    assert not requests(engine)


async def test_two_processes_share_what_they_know(engine: FakeEngine, tmp_path: Path) -> None:
    """A retry at the other one hears the running stream from its beginning, and later gets the stored one."""
    engine.script(SLOW)
    async with process([engine], tmp_path, "a") as one, process([engine], tmp_path, "b") as other:
        first = await begun(one, long(), x_request_id="first")
        record = await engine.arrived()
        record.release(5)
        await first.head()
        got = await first.chunk()
        retry = await begun(other, long(), x_request_id="second")
        head = await retry.head()
        assert (head.headers[REPLAYED], head.headers[ORIGINAL]) == ("true", "first")
        assert head.headers["x-request-id"] == "second"
        assert head.headers["content-type"].startswith("text/event-stream")
        refused = await keyed(other, chat(max_tokens=1))
        assert refused.error["code"] == "idempotency_key_reused"
        record.release(100)
        joined = b""
        while data := await first.chunk():
            got += data
        while data := await retry.chunk():
            joined += data
        assert joined == got
        assert joined.endswith(b"[DONE]\n\n")
        await settled(one)
        assert (await keyed(other, long())).body == got
        assert counted(other, "replayed") == {"elsewhere": 1, "stored": 1}
    async with process([engine], tmp_path, "c") as next_one:
        assert (await keyed(next_one, long())).body == got
    assert len(requests(engine)) == 1


async def test_whole_replies_and_errors_pass_between_processes(engine: FakeEngine, tmp_path: Path) -> None:
    """With their status, length and headers."""
    async with process([engine], tmp_path, "a") as one, process([engine], tmp_path, "b") as other:
        for script in (Script(before_headers_s=0.3), Script(before_headers_s=0.3, status=429)):
            engine.script(script)
            first = await begun(one, chat(), key=str(script.status))
            await until(lambda: one.gateway.ledger.relays)
            again = await keyed(other, chat(), key=str(script.status))
            reply = await first.response()
            assert (again.status, again.body) == (reply.status, reply.body)
            assert again.headers.get("retry-after") == reply.headers.get("retry-after")
            assert again.headers["content-length"] == reply.headers["content-length"]
    assert len(requests(engine)) == 2


async def test_a_client_that_leaves_the_other_process_frees_it(engine: FakeEngine, tmp_path: Path) -> None:
    """The owner notices that nobody reads any more."""
    engine.script(SLOW)
    async with process([engine], tmp_path, "a") as one, process([engine], tmp_path, "b") as other:
        first = await begun(one, long())
        record = await engine.arrived()
        retry = await begun(other, long())
        record.release(3)
        await retry.head()
        await first.close()
        (work,) = one.gateway.idempotency._works.values()
        assert work.recording.alone_since is None
        await retry.close()
        await until(lambda: work.recording.alone_since is not None)
        record.release(100)
        await settled(one)
    assert not record.left.is_set()


async def test_the_claim_of_a_process_that_is_gone_is_taken_over(engine: FakeEngine, tmp_path: Path) -> None:
    """The request runs anew, once, although several come at a time; an upkeep round frees what nobody asks for."""
    dead = Replies(tmp_path / "replies", str(tmp_path / "dead.sock"))
    limits = Idempotency()
    async with process([engine], tmp_path) as front:
        body = json.dumps(chat()).encode()
        asked = hashlib.sha256(b"chat/completions\0\0" + body).digest()
        for key in (b"k1", b"k2"):
            dead.claim(hashlib.sha256(b"default\0" + key).digest(), asked, 0.0, limits, None)
        dead.close()
        replies = await asyncio.gather(*(keyed(front, body) for _ in range(3)))
        assert sorted(REPLAYED in reply.headers for reply in replies) == [False, True, True]
        await settled(front)
        front.gateway.idempotency._sweep_at = 0.0
        store = Replies(tmp_path / "replies")
        await until(lambda: store.used() < 64 * 1024)
        store.close()
    assert len(requests(engine)) == 1


async def test_a_process_that_has_lost_its_recording_is_passed_over(engine: FakeEngine, tmp_path: Path) -> None:
    """It says that it has none; then the request runs where it came."""
    async with process([engine], tmp_path, "a") as one, process([engine], tmp_path, "b") as other:
        one.gateway.idempotency._release = lambda *_: None  # type: ignore[method-assign]
        engine.script(Script(status=500))
        assert (await keyed(one, chat())).status == 500
        assert (await keyed(other, chat())).status == 200
        assert (await keyed(one, chat())).headers[REPLAYED] == "true"
    assert len(requests(engine)) == 2


async def test_a_stream_breaks_when_its_process_ends(engine: FakeEngine, tmp_path: Path) -> None:
    """Its readers elsewhere are cut off, as its own are, and a retry runs anew."""
    engine.script(SLOW)
    async with process([engine], tmp_path, "b") as other:
        async with process([engine], tmp_path, "a") as one:
            first = await begun(one, long())
            record = await engine.arrived()
            record.release(3)
            await first.head()
            retry = await begun(other, long())
            await retry.head()
        assert b"[DONE]" not in await rest(retry)
        assert (await keyed(other, long())).events[-1] == "[DONE]"
    assert len(requests(engine)) == 2


class Failing(Replies):
    """A store whose disk is full: it can be read, and nothing can be put away."""

    def keep(self, *_: Any) -> bool:  # noqa: ANN401 - whatever
        """Fail."""
        raise RepliesError("database or disk is full")


async def test_a_reply_goes_out_although_it_cannot_be_kept(engine: FakeEngine, tmp_path: Path) -> None:
    """Its client sees nothing of it; whoever comes again tries again, and a counter tells."""
    async with open_front(view_of([engine]), replies=Failing(tmp_path)) as front:
        for _ in range(2):
            reply = await keyed(front, chat(stream=True))
            assert (reply.events[-1], REPLAYED in reply.headers) == ("[DONE]", False)
            await settled(front)
        assert counted(front, "unkept") == {"failed": 2}
        assert front.gateway.idempotency._replies.used() == 0
    assert len(requests(engine)) == 2


async def test_a_store_that_cannot_be_opened_keeps_nobody_from_answers(engine: FakeEngine, tmp_path: Path) -> None:
    """Requests run as if they had no key, and a counter tells."""
    (tmp_path / "file").write_text("in the way")
    async with open_front(view_of([engine]), replies=Replies(tmp_path / "file")) as front:
        for _ in range(2):
            reply = await keyed(front, chat())
            assert (reply.status, REPLAYED in reply.headers) == (200, False)
        assert counted(front, "unkept") == {"failed": 2}


async def test_what_is_stored_is_for_this_user_and_names_no_keys(engine: FakeEngine, tmp_path: Path) -> None:
    """Files are 0600 in a directory that is 0700, and neither kind of key is in them."""
    settings_key = "sk-secret-key"
    digest = hashlib.sha256(settings_key.encode()).hexdigest()
    async with process([engine], tmp_path) as front:
        front.settings(key_sha256=digest)
        said = await keyed(front, chat(), key="my-idempotency-key", authorization=f"Bearer {settings_key}")
        assert said.status == 200
        await settled(front)
        directory = tmp_path / "replies"
        assert directory.stat().st_mode & 0o777 == 0o700
        files = list(directory.iterdir())
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        content = b"".join(path.read_bytes() for path in files)
        assert said.json["id"].encode() in content
        assert not [secret for secret in (settings_key, digest, "my-idempotency-key") if secret.encode() in content]


async def test_openai_client_retries_for_free(engine: FakeEngine, tmp_path: Path) -> None:
    """OpenAI's own client, whose connection was lost, gets the whole answer under the key it has sent."""
    async with process([engine], tmp_path) as front:
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="none", max_retries=0)
        async with client:
            texts = []
            for _ in range(2):
                done = await client.chat.completions.create(
                    model="contacts",
                    messages=[{"role": "user", "content": "hello"}],
                    max_tokens=8,
                    extra_headers={"Idempotency-Key": "order-17"},
                )
                texts.append((done.id, done.choices[0].message.content))
                await settled(front)
    assert texts[0] == texts[1]
    assert len(requests(engine)) == 1


async def test_a_broken_file_is_made_anew(engine: FakeEngine, tmp_path: Path) -> None:
    """Nothing in it can be trusted, so nothing of it is answered."""
    (tmp_path / "replies").mkdir()
    path = tmp_path / "replies" / "replies-1.db"
    path.write_bytes(b"no database" * 1000)
    async with process([engine], tmp_path) as front:
        assert (await keyed(front, chat())).status == 200
        await settled(front)
        assert (await keyed(front, chat())).headers[REPLAYED] == "true"
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
