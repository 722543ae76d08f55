"""Two versions of an adapter behind a gateway: who gets which, and what is told and written of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.support.front import VERSIONS, Front, chat, open_front, view_of
from tests.support.identities import access_of, bearer, key_of
from tests.support.written import Written
from tuneplex.identity import Access
from tuneplex.testing import FakeEngine
from tuneplex.types import FleetView, Model, Trial

OLD, NEW = VERSIONS["contacts"], "contacts@bbbbbbbbbbbb"
WIDE, NARROW = key_of("wide", adapters=("contacts*",)), key_of("narrow", adapters=("contacts",))
replace = msgspec.structs.replace


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """An engine that has both versions."""
    async with FakeEngine("base", adapters=[*VERSIONS.values(), NEW]) as engine:
        yield engine


def view(engine: FakeEngine, *, version: str = OLD, trial: Trial | None = None) -> FleetView:
    """A fleet with both versions, of which requests get one or a share of them the other one."""
    found = view_of([engine])
    (replica,) = found.replicas
    models = found.models | {"contacts": Model("contacts", version, "base", trial=trial)}
    versions = {OLD: "contacts", NEW: "contacts"}
    return replace(
        found, models=models, versions=versions, replicas=(replace(replica, serves=replica.serves | {NEW: NEW}),)
    )


@pytest.fixture
async def front(engine: FakeEngine, written: Written) -> AsyncIterator[Front]:
    """A gateway in the middle of a trial, with a journal."""
    async with open_front(view(engine, trial=Trial(NEW, 0.3, "salt")), journal=written.journal) as front:
        yield front


def asked(engine: FakeEngine) -> Counter[str | None]:
    """How many requests the engine has got for each of its models."""
    return Counter(request.model for request in engine.requests)


async def test_users_are_divided_and_stay_where_they_are(front: Front, engine: FakeEngine) -> None:
    """About the share of them gets the new version, each at each request, and all of them read the same name."""
    users = [f"user-{number}" for number in range(60)]
    replies = await asyncio.gather(*(front.chat(user=user, max_tokens=1) for user in users))
    assert {reply.json["model"] for reply in replies} == {"contacts"}
    first = {request.json["user"]: request.model for request in engine.requests}
    assert 8 <= list(first.values()).count(NEW) <= 30
    engine.requests.clear()
    await asyncio.gather(*(front.chat("gpt-4o", user=user, max_tokens=1) for user in users))
    assert {request.json["user"]: request.model for request in engine.requests} == first


async def test_what_is_written_down_tells_the_versions_apart(
    front: Front, engine: FakeEngine, written: Written
) -> None:
    """The model is the adapter, whoever asked in whichever way; the version is the one that has answered."""
    for number in range(12):
        await front.chat(user=f"user-{number}", max_tokens=1)
    await front.chat(NEW, max_tokens=1)
    await front.chat(OLD, max_tokens=1)
    found = written.finished()
    assert {one.model for one in found} == {"contacts"}
    assert [one.version for one in found] == [request.model for request in engine.requests]
    assert set(asked(engine)) == {OLD, NEW}
    assert [one.version for one in found[-2:]] == [NEW, OLD]
    assert front.answered() == {("contacts", "2xx"): 14}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("stream", [False, True])
async def test_who_names_a_version_gets_it(front: Front, engine: FakeEngine, version: str, *, stream: bool) -> None:
    """Every time, without regard to the trial, and the reply has the name that was asked for."""
    for number in range(6):
        reply = await front.chat(version, user=f"user-{number}", max_tokens=2, stream=stream)
        assert reply.status == 200
        names = (
            [msgspec.json.decode(event)["model"] for event in reply.events[:-1]] if stream else [reply.json["model"]]
        )
        assert set(names) == {version}
    assert asked(engine) == {version: 6}


async def test_a_version_that_nobody_has_is_an_unknown_model(front: Front, engine: FakeEngine) -> None:
    """In the same words as any other name, and no engine is asked."""
    for name in ("contacts@ffffffffffff", "nobody"):
        reply = await front.chat(name)
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert reply.error["message"] == f"The model `{name}` does not exist."
    assert not engine.requests


async def test_versions_are_not_in_the_list_of_models(front: Front) -> None:
    """Clients choose models; each version has a card for those who know its name."""
    listed = {one["id"] for one in (await front.get("/v1/models")).json["data"]}
    assert listed == {"base", "contacts", "contacts-v2", "gpt-4o"}
    card = await front.get(f"/v1/models/{NEW}")
    assert (card.status, card.json["id"]) == (200, NEW)


async def test_a_key_for_the_adapter_alone_names_no_version(engine: FakeEngine) -> None:
    """It gets what is promoted or tried; one whose patterns match the version's id may name it."""
    access: Access = access_of(WIDE, NARROW)
    async with open_front(view(engine, trial=Trial(NEW, 1.0, "salt", "key")), access) as front:
        for secret, name, status in (
            ("wide", "contacts", 200),
            ("wide", OLD, 200),
            ("narrow", "contacts", 200),
            ("narrow", OLD, 404),
            ("narrow", NEW, 404),
        ):
            reply = await front.post("/v1/chat/completions", chat(name, max_tokens=1), **bearer(secret))
            assert reply.status == status, (secret, name)
        card = await front.get(f"/v1/models/{NEW}", **bearer("narrow"))
        assert card.status == 404
    assert [request.model for request in engine.requests] == [NEW, OLD, NEW]


async def test_what_waits_gets_what_is_promoted_meanwhile(engine: FakeEngine, written: Written) -> None:
    """And who has named a version gets that; both are written down with the version that has answered."""
    busy = view(engine)
    (replica,) = busy.replicas
    away = replace(busy, replicas=(replace(replica, serves={}, awaited=frozenset({"base", OLD, NEW})),))
    async with open_front(away, journal=written.journal) as front:
        plain, pinned = await front.connect(), await front.connect()
        plain.post("/v1/chat/completions", chat("contacts", max_tokens=1))
        pinned.post("/v1/chat/completions", chat(OLD, max_tokens=1))
        async with asyncio.timeout(20):
            while front.gateway.report().waiting < 2:  # noqa: ASYNC110 - a gateway tells when it is asked
                await asyncio.sleep(0.01)
        front.gateway.update(view(engine, version=NEW))
        replies = [await plain.response(), await pinned.response()]
        assert [reply.json["model"] for reply in replies] == ["contacts", OLD]
    assert asked(engine) == {NEW: 1, OLD: 1}
    assert {one.version for one in written.finished()} == {OLD, NEW}
