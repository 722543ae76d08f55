"""Prompts are counted before they go anywhere, through a gateway on FakeEngines."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.front import VERSIONS, Front, chat, open_front, view_of
from tests.support.identities import access_of, bearer, key_of
from tests.support.tokenizers import make
from tuneplex.gateway.tokens import Pending
from tuneplex.identity import Limits, Tenant
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import ReplicaState

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORD = "river "


def tokens_of(text: str) -> int:
    """What the tokenizer makes of a text."""
    return len(make("byte level").encode(text))


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A tokenizer as models have it."""
    file = tmp_path / "tokenizer.json"
    make("byte level").save(str(file))
    return file


@contextlib.asynccontextmanager
async def fleet(contexts: Sequence[int | None], tokenizer: Path) -> AsyncIterator[tuple[Front, list[FakeEngine]]]:
    """A gateway in front of engines with these contexts, which they tell unless it is None."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                FakeEngine("base", adapters=VERSIONS.values(), max_model_len=context or 1_000_000)
            )
            for context in contexts
        ]
        view = view_of(engines)
        replicas = tuple(
            msgspec.structs.replace(replica, context=context)
            for replica, context in zip(view.replicas, contexts, strict=True)
        )
        view = msgspec.structs.replace(view, replicas=replicas, tokenizer=str(tokenizer))
        yield await stack.enter_async_context(open_front(view)), engines


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fits_nowhere_is_refused_before_it_goes_anywhere(tokenizer_file: Path, stream: bool) -> None:  # noqa: FBT001 - a parameter
    """The client is told how many tokens it would need and how many there are; no engine hears of it."""
    async with fleet([512, 1024], tokenizer_file) as (front, engines):
        text = WORD * 1_300
        needed = tokens_of(text)
        assert needed > 1_024
        reply = await front.post(COMPLETIONS, {"model": "contacts", "prompt": text, "max_tokens": 5, "stream": stream})
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
        assert f"{needed + 1} tokens" in reply.error["message"]
        assert "1024" in reply.error["message"]
        assert front.answered() == {("contacts", "4xx"): 1}
        assert not engines[0].requests
        assert not engines[1].requests


async def test_what_is_far_too_large_is_not_counted_to_its_end(tokenizer_file: Path) -> None:
    """A prompt of megabytes is refused as soon as it is surely too large, with the number that it has about."""
    async with fleet([512], tokenizer_file) as (front, engines):
        text = WORD * 1_000_000
        reply = await front.post(COMPLETIONS, {"model": "contacts", "prompt": text, "max_tokens": 5})
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        about = int(reply.error["message"].partition("about ")[2].split()[0])
        assert 900_000 < about < 1_100_000
        assert not engines[0].requests


async def test_an_answer_that_fits_nowhere_is_refused(tokenizer_file: Path) -> None:
    """An answer that no context is large enough for is refused, too, as the engines themselves do."""
    async with fleet([512, 1024], tokenizer_file) as (front, engines):
        reply = await front.post(COMPLETIONS, {"model": "contacts", "prompt": "a", "max_tokens": 1025})
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert not engines[0].requests + engines[1].requests


async def test_what_fits_somewhere_goes_there(tokenizer_file: Path) -> None:
    """A prompt that only the larger engine can hold goes to it, and so does one whose answer only it can hold."""
    async with fleet([512, 4096], tokenizer_file) as (front, engines):
        for text, answer in ((WORD * 1_000, 5), (WORD * 100, 500)):
            body = {"model": "contacts", "prompt": text, "max_tokens": answer, "ignore_eos": True}
            for _ in range(3):
                reply = await front.post(COMPLETIONS, body)
                assert (reply.status, reply.json["usage"]["completion_tokens"]) == (200, answer)
        assert len(engines[1].requests) == 6
        assert not engines[0].requests


async def test_where_a_context_is_unknown_a_request_may_fit(tokenizer_file: Path) -> None:
    """An engine that tells nothing of its context is asked."""
    async with fleet([512, None], tokenizer_file) as (front, engines):
        reply = await front.post(COMPLETIONS, {"model": "contacts", "prompt": WORD * 1_000, "max_tokens": 5})
        assert reply.status == 200
        assert len(engines[1].requests) == 1


async def test_a_request_waits_for_an_engine_that_may_be_large_enough(tokenizer_file: Path) -> None:
    """While a replica starts whose context nobody knows, what is too large for the others waits for it."""
    async with fleet([512, 4096], tokenizer_file) as (front, engines):
        view = front.gateway.view
        small, large = view.replicas
        coming = msgspec.structs.replace(
            large, state=ReplicaState.STARTING, serves={}, awaited=frozenset(large.serves), context=None
        )
        front.gateway.update(msgspec.structs.replace(view, generation=2, replicas=(small, coming)))
        asking = asyncio.create_task(front.post(COMPLETIONS, {"model": "contacts", "prompt": WORD * 1_000}))
        await asyncio.sleep(0.1)
        assert not asking.done()
        front.gateway.update(msgspec.structs.replace(view, generation=3))
        assert (await asking).status == 200
        assert not engines[0].requests


@pytest.mark.parametrize("limit, reserved", [(451, 450), (452, 452), (10_000, 452)])
async def test_a_limit_reserves_what_was_counted(tokenizer_file: Path, limit: int, reserved: int) -> None:
    """Tokens are counted by the base's tokenizer; where there is room for a token a byte, that is reserved instead."""
    async with fleet([None], tokenizer_file) as (front, _):
        tenant = Tenant("acme", limits=Limits(tokens_per_minute=limit))
        front.gateway.update_access(access_of(tenant, key_of("one")))
        text = "zq" * 200  # a token for each letter, and 402 bytes with its quotes
        assert tokens_of(text) == 400
        body = {"model": "contacts", "prompt": text, "max_tokens": 50}
        reply = await front.post(COMPLETIONS, body, **bearer("one"))
        assert reply.status == 200
        assert reply.headers["x-ratelimit-remaining-tokens"] == f"{limit - reserved}"


async def test_who_is_refused_anyway_is_not_counted(tokenizer_file: Path) -> None:
    """A caller that hammers at a limit in requests keeps no tokenizer busy."""
    async with fleet([None], tokenizer_file) as (front, _):
        tenant = Tenant("acme", limits=Limits(tokens_per_minute=100, requests_per_minute=1))
        front.gateway.update_access(access_of(tenant, key_of("one")))
        body = {"model": "contacts", "prompt": "x", "max_tokens": 5}
        assert (await front.post(COMPLETIONS, body, **bearer("one"))).status == 200
        counted = []
        front.gateway.counter.count = lambda *_, **__: counted.append(1)  # type: ignore[method-assign, assignment]
        body["prompt"] = "zq" * 200
        assert (await front.post(COMPLETIONS, body, **bearer("one"))).status == 429
        assert not counted


async def test_who_needs_no_counting_pays_for_none(tokenizer_file: Path) -> None:
    """A small request of a caller without limits goes at once, without a thread."""
    async with fleet([512], tokenizer_file) as (front, _):
        counted = []
        front.gateway.counter.count = lambda *_, **__: counted.append(1)  # type: ignore[method-assign, assignment]
        assert (await front.chat(max_tokens=5)).status == 200
        assert not counted


async def test_a_client_that_leaves_while_it_is_counted_is_forgotten(
    tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of its request goes on, and no limit remembers it."""
    async with fleet([None], tokenizer_file) as (front, engines):
        tenant = Tenant("acme", limits=Limits(tokens_per_minute=10_000_000, concurrent=1))
        front.gateway.update_access(access_of(tenant, key_of("one")))
        counted: list[Pending] = []
        count = front.gateway.counter.count

        def noted(*arguments: Any, **named: Any) -> Pending:  # noqa: ANN401 - of `count`
            counted.append(count(*arguments, **named))
            return counted[-1]

        monkeypatch.setattr(front.gateway.counter, "count", noted)
        http = await front.connect()
        http.post(COMPLETIONS, {"model": "contacts", "prompt": WORD * 2_000_000}, **bearer("one"))
        while not counted or counted[0]._tally is None:  # noqa: ASYNC110 - the thread tells nobody
            await asyncio.sleep(0.002)
        await http.close()
        while not counted[0].cancelled:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.002)
        reply = await front.post(CHAT, chat(max_tokens=5), **bearer("one"))
        assert reply.status == 200
        (one,) = front.gateway.report().used.values()
        assert (one.requests, one.concurrent) == (1, 0)
        assert len(engines[0].requests) == 1


async def test_many_large_prompts_and_their_streams_come_through(tokenizer_file: Path) -> None:
    """Requests whose prompts have to be counted are answered like any other, each with its own reply."""
    async with fleet([None], tokenizer_file) as (front, engines):
        front.gateway.update_access(access_of(Tenant("acme", limits=Limits(tokens_per_minute=2**40)), key_of("one")))
        prompts = [f"{number} " + WORD * 3_000 * (number % 5) for number in range(20)]
        bodies = [{"model": "contacts", "prompt": text, "max_tokens": 3, "ignore_eos": True} for text in prompts]
        replies = await asyncio.gather(
            *(
                front.post(COMPLETIONS, body | {"stream": bool(at % 2)}, **bearer("one"))
                for at, body in enumerate(bodies)
            )
        )
        assert {reply.status for reply in replies} == {200}
        assert sorted(json.loads(record.body)["prompt"] for record in engines[0].requests) == sorted(prompts)


async def test_a_small_request_does_not_wait_behind_a_large_one(tokenizer_file: Path) -> None:
    """Though they are one tenant's, for one model: what only one replica can hold must not keep others idle."""
    async with fleet([4096, 512], tokenizer_file) as (front, engines):
        view = front.gateway.view
        replicas = tuple(msgspec.structs.replace(one, concurrent=1) for one in view.replicas)
        front.gateway.update(msgspec.structs.replace(view, replicas=replicas))
        large = {"model": "contacts", "prompt": "zq" * 500, "max_tokens": 5}
        engines[0].script(Script(lockstep=True))
        first = asyncio.create_task(front.post(COMPLETIONS, large | {"stream": True}))
        record = await engines[0].arrived()
        second = asyncio.create_task(front.post(COMPLETIONS, large))
        async with asyncio.timeout(5):
            while front.gateway.report().waiting != 1:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        little = {"model": "contacts", "prompt": "zq", "max_tokens": 5}
        small = await asyncio.wait_for(front.post(COMPLETIONS, little), 5)
        assert (small.status, len(engines[1].requests)) == (200, 1)
        record.release(10)
        assert [(await one).status for one in (first, second)] == [200, 200]
