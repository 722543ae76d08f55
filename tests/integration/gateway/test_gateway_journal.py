"""What the gateway writes down of its requests, as somebody reads it afterwards."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.support.front import VERSIONS, Front, chat, open_front, view_of
from tests.support.identities import access_of, bearer, key_of
from tests.support.returning import fronting
from tests.support.written import Written
from tuneplex.identity import Limits, Scope, Tenant
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import Retries, Waiting

STRICT = Tenant("strict", recorded=True)


@pytest.fixture
async def front(engines: list[FakeEngine], tokenizer: str, written: Written) -> AsyncIterator[Front]:
    """A gateway before two engines, with a journal."""
    async with fronting(engines, tokenizer, journal=written.journal) as front:
        yield front


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_written_down(front: Front, written: Written, *, stream: bool) -> None:
    """A request is one that is over, with who, what, where, when and the engine's own count of its tokens."""
    reply = await front.post(
        "/v1/chat/completions", chat(max_tokens=20, stream=stream, user="u-1"), x_request_id="mine", traceparent="00-x"
    )
    (one,) = written.finished()
    assert (one.request_id, one.model, one.version, one.pool) == ("mine", "contacts", VERSIONS["contacts"], "default")
    assert (one.outcome, one.status, one.route, one.stream) == ("complete", 200, "chat/completions", stream)
    assert (one.completion, one.estimated) == (20, False)
    assert one.prompt > 0
    assert one.arrived <= one.attempts[0].at <= one.closed
    assert (one.first_token_s is not None) == stream
    assert [(tried.replica, tried.outcome, tried.completion) for tried in one.attempts] == [
        (one.replica, "complete", 20)
    ]
    assert len(one.session) == 16
    assert "u-1" not in str(msgspec.to_builtins(one))
    assert reply.status == 200


async def test_nothing_of_a_prompt_is_written(front: Front, written: Written) -> None:
    """No byte of a prompt or of a reply is in the journal."""
    body = chat(max_tokens=30, stream=True) | {"messages": [{"role": "user", "content": "a secret kept well"}]}
    reply = await front.post("/v1/chat/completions", body)
    data = written.bytes()
    assert written.finished()
    assert b"secret" not in data
    assert reply.text[:12].encode() not in data


async def test_a_long_stream_tells_how_far_it_is(front: Front, written: Written, engines: list[FakeEngine]) -> None:
    """About each 64 tokens the journal learns how far a stream is, so a crash costs little more than that."""
    for engine in engines:
        engine.script(Script(between_chunks_s=0.001))
    http = await front.connect()
    http.post("/v1/chat/completions", chat(max_tokens=2000, ignore_eos=True, stream=True))
    await http.head()
    events = 0
    while events < 300:
        events += (await http.chunk()).count(b"data: ")
    (one,) = written.finished(crashed=True)
    assert (one.outcome, one.estimated) == ("gateway_crashed", True)
    assert max(63, events - 300) < one.completion < events + 300
    assert written.entries().count("Progress") > 1


async def test_a_prompt_is_read_once_for_each_choice(front: Front, written: Written) -> None:
    """A request for several choices pays its prompt once, and its attempt says that the engine has read it as often."""
    await front.post("/v1/chat/completions", chat(max_tokens=3, n=2) | {"temperature": 1, "seed": 3})
    (one,) = written.finished()
    assert one.attempts[0].prompt == 2 * one.prompt > 0


async def test_a_client_that_leaves_pays_for_what_came(
    front: Front, written: Written, engines: list[FakeEngine]
) -> None:
    """A stream whose client leaves is over as such, with the tokens that were made until then."""
    for engine in engines:
        engine.script(Script(between_chunks_s=0.005))
    http = await front.connect()
    http.post("/v1/chat/completions", chat(max_tokens=5000, ignore_eos=True, stream=True))
    await http.head()
    events = 0
    while events < 20:
        events += (await http.chunk()).count(b"data: ")
    await http.close()
    await written.until(lambda: bool(written.finished()))
    (one,) = written.finished()
    assert one.outcome == "client_gone"
    assert one.completion >= 18


async def test_each_attempt_is_written_down(engines: list[FakeEngine], tokenizer: str, written: Written) -> None:
    """A stream that breaks off and goes on elsewhere is one request with two attempts, and each with its tokens."""
    engines[0].script(Script(reset_after_chunks=12))
    async with fronting(engines, tokenizer, journal=written.journal) as front:
        for _ in range(2):  # one of them begins at the first engine
            await front.chat(max_tokens=40, ignore_eos=True, stream=True)
    broken = [one for one in written.finished() if len(one.attempts) > 1]
    assert broken
    for one in broken:
        assert (one.outcome, one.completion) == ("complete", 40)
        assert [tried.outcome for tried in one.attempts] == ["broken", "complete"]
        assert sum(tried.completion for tried in one.attempts) == 40
        assert one.attempts[0].completion >= 8
        assert one.attempts[1].prompt == one.prompt + one.attempts[0].completion


async def test_the_slower_of_two_is_written_down(engines: list[FakeEngine], tokenizer: str, written: Written) -> None:
    """Of two engines that were asked, one answers and the other one is known to have been stopped."""
    engines[0].script(Script(silent_before_headers=True))
    async with fronting(engines, tokenizer, journal=written.journal, retries=Retries(hedge_after_s=0.2)) as front:
        for _ in range(2):
            await front.chat(max_tokens=5, stream=True)
    outcomes = [[tried.outcome for tried in one.attempts] for one in written.finished()]
    assert ["stopped", "complete"] in outcomes


async def test_refusals_are_written_down(engine: FakeEngine, written: Written) -> None:
    """Who was refused is known with tenant, key, model, status and code."""
    access = access_of(key_of("sk-1", limits=Limits(requests_per_minute=1)))
    async with open_front(view_of([engine]), access, journal=written.journal) as front:
        for _ in range(2):
            await front.post("/v1/chat/completions", chat(max_tokens=1), **bearer("sk-1"))
        await front.post("/v1/chat/completions", chat("nothing"), **bearer("sk-1"))
    _, limited, unknown = written.finished()
    assert (limited.outcome, limited.tenant, limited.key_id, limited.model) == (
        "rejected",
        "acme",
        "id-sk-1",
        "contacts",
    )
    assert (limited.model, limited.status, limited.code) == ("contacts", 429, "rate_limit_exceeded")
    assert (unknown.status, unknown.model) == (404, "")


async def test_callers_without_a_key_are_counted(engine: FakeEngine, written: Written) -> None:
    """Requests of unknown callers are put together, so that nobody can fill the disk with them."""
    async with open_front(view_of([engine]), access_of(key_of("sk-1")), journal=written.journal) as front:
        for _ in range(5):
            await front.post("/v1/chat/completions", chat(), **bearer("sk-wrong"))
            await front.get("/nowhere")
    found = written.finished()
    assert sum(one.count for one in found) == 10
    assert {(one.tenant, one.status) for one in found} == {("", 401), ("", 404)}
    assert len(found) < 10


async def test_who_leaves_while_waiting_is_written_down(engine: FakeEngine, tokenizer: str, written: Written) -> None:
    """A client that leaves before its turn is over as such, and has taken nothing."""
    engine.script(Script(silent_before_headers=True))
    view = view_of([engine], tokenizer=tokenizer)
    view = msgspec.structs.replace(view, replicas=(msgspec.structs.replace(view.replicas[0], concurrent=1),))
    async with open_front(view, journal=written.journal) as front:
        first, second = await front.connect(), await front.connect()
        first.post("/v1/chat/completions", chat())
        await written.until(lambda: "Opened" in written.entries())
        second.post("/v1/chat/completions", chat())
        await asyncio.sleep(0.1)
        await second.close()
        await written.until(lambda: bool(written.finished()))
        (one,) = written.finished()
        assert (one.outcome, one.status, one.completion) == ("client_gone", 499, 0)


# --- tenants that require it


async def test_a_tenant_that_requires_it_waits_for_the_disk(
    engine: FakeEngine, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine hears of a request before it is on the disk that it was let in."""
    may_sync, real = threading.Event(), os.fdatasync

    def slow(file: int) -> None:
        may_sync.wait(1)
        real(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    access = access_of(STRICT, key_of("sk-1", "strict"))
    async with open_front(view_of([engine]), access, journal=written.journal) as front:
        asking = asyncio.create_task(front.post("/v1/chat/completions", chat(max_tokens=2), **bearer("sk-1")))
        await written.until(lambda: "Entered" in written.entries())
        await asyncio.sleep(0.1)
        assert not engine.requests
        may_sync.set()
        assert (await asking).status == 200
    (one,) = written.finished()
    assert (one.id, one.outcome, one.completion) == ("g-1/1", "complete", 2)


async def test_a_disk_that_hangs_is_an_error(
    engine: FakeEngine, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant that requires records is refused when the disk takes too long, and others are not."""
    release, real = threading.Event(), os.fdatasync

    def hanging(file: int) -> None:
        release.wait(30)
        real(file)

    monkeypatch.setattr(os, "fdatasync", hanging)
    access = access_of(STRICT, key_of("sk-1", "strict"), key_of("sk-2"))
    async with open_front(view_of([engine]), access, journal=written.journal) as front:
        refused = await front.post("/v1/chat/completions", chat(max_tokens=2), **bearer("sk-1"))
        served = await front.post("/v1/chat/completions", chat(max_tokens=2), **bearer("sk-2"))
        assert not front.gateway.ledger.outstanding
    release.set()
    assert (refused.status, refused.json["error"]["code"]) == (503, "not_recorded")
    assert served.status == 200
    assert [(one.tenant, one.status) for one in written.finished()] == [("strict", 503), ("acme", 200)]


async def test_without_a_journal_such_a_tenant_is_refused(engine: FakeEngine) -> None:
    """Where nothing can be written, a tenant that requires it gets an error and no answer."""
    async with open_front(view_of([engine]), access_of(STRICT, key_of("sk-1", "strict"))) as front:
        refused = await front.post("/v1/chat/completions", chat(max_tokens=2), **bearer("sk-1"))
    assert (refused.status, refused.json["error"]["code"]) == (503, "not_recorded")
    assert not engine.requests


async def test_what_waits_after_it_was_kept_is_one_request(
    engine: FakeEngine, tokenizer: str, written: Written
) -> None:
    """A request that was on the disk and then refused in the waiting room is one request."""
    engine.script(Script(silent_before_headers=True))
    view = view_of([engine], tokenizer=tokenizer)
    settings = msgspec.structs.replace(view.settings, waiting=Waiting(longest_s=0.3))
    replica = msgspec.structs.replace(view.replicas[0], concurrent=1)
    view = msgspec.structs.replace(view, replicas=(replica,), settings=settings)
    async with open_front(view, access_of(STRICT, key_of("sk-1", "strict")), journal=written.journal) as front:
        first = await front.connect()
        first.post("/v1/chat/completions", chat(), **bearer("sk-1"))
        await written.until(lambda: "Opened" in written.entries())
        late = await front.post("/v1/chat/completions", chat(), **bearer("sk-1"))
        (one,) = written.finished()
        assert (one.id, one.status, late.status) == ("g-1/2", 503, 503)


async def test_a_key_that_ends_while_it_is_kept_holds_nothing(
    engine: FakeEngine, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is refused after it was on the disk gives back what it had of its tenant's limits."""
    may_sync, real = threading.Event(), os.fdatasync

    def slow(file: int) -> None:
        may_sync.wait(1)
        real(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    tenant = Tenant("strict", recorded=True, limits=Limits(concurrent=1))
    first, second = key_of("sk-1", "strict"), key_of("sk-2", "strict")
    async with open_front(view_of([engine]), access_of(tenant, first, second), journal=written.journal) as front:
        asking = asyncio.create_task(front.post("/v1/chat/completions", chat(max_tokens=2), **bearer("sk-1")))
        await written.until(lambda: "Entered" in written.entries())
        front.gateway.update_access(access_of(tenant, second))
        may_sync.set()
        assert (await asking).status == 401
        assert (await front.post("/v1/chat/completions", chat(max_tokens=2), **bearer("sk-2"))).status == 200


async def test_a_stream_that_waits_too_long_was_not_well(engine: FakeEngine, tokenizer: str, written: Written) -> None:
    """A stream that was told that it waits, and is refused then, ends with the error and how long it waited."""
    engine.script(Script(silent_before_headers=True))
    view = view_of([engine], tokenizer=tokenizer)
    settings = msgspec.structs.replace(view.settings, waiting=Waiting(longest_s=0.6, comment_s=0.2))
    replica = msgspec.structs.replace(view.replicas[0], concurrent=1)
    view = msgspec.structs.replace(view, replicas=(replica,), settings=settings)
    async with open_front(view, journal=written.journal) as front:
        first = await front.connect()
        first.post("/v1/chat/completions", chat())
        await written.until(lambda: "Opened" in written.entries())
        late = await front.post("/v1/chat/completions", chat(stream=True))
        (one,) = written.finished()
    assert (late.status, one.outcome, one.stream) == (200, "rejected", True)
    assert one.status >= 500
    assert one.waited_s > 0.5


async def test_a_known_key_without_the_scope_is_known(engine: FakeEngine, written: Written) -> None:
    """Who tries what a key is not for is written down with tenant and key."""
    access = access_of(key_of("sk-1", scopes=(Scope.USAGE,)))
    async with open_front(view_of([engine]), access, journal=written.journal) as front:
        await front.post("/v1/chat/completions", chat(), **bearer("sk-1"))
    (one,) = written.finished()
    assert (one.status, one.tenant, one.key_id) == (403, "acme", "id-sk-1")
