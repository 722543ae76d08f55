"""The versions of adapters through the admin API."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import msgspec
import pytest

from tests.support.desk import Desk
from tests.support.openapi import read
from tests.support.records import MemoryRecords
from tuneplex.control.versions import promoted
from tuneplex.releases import AdapterRecord
from tuneplex.types import AdapterVersion, Base, FleetSpec, PoolSpec

replace = msgspec.structs.replace
POOLS = (
    PoolSpec("small", launcher="external", max_lora_rank=8),
    PoolSpec("large", launcher="external", max_lora_rank=32),
    PoolSpec("foreign", launcher="external", engine="openai", max_lora_rank=256),
)
SPEC = FleetSpec("fleet", Base("base", "/models/base"), aliases={"gpt-4o": "one"}, pools=POOLS)


def version(digest: str, name: str = "one", **fields: Any) -> AdapterVersion:  # noqa: ANN401 - of the version
    """A version whose digest begins so."""
    return replace(AdapterVersion(name, digest.ljust(64, "0"), f"/adapters/{digest}", 8, ""), **fields)


FILED, NEW = version("aaaa", pool="small"), version("bbbb", pool="small")


def wish(content: AdapterVersion, **fields: object) -> dict[str, object]:
    """A version to be rolled out."""
    return {"version": msgspec.to_builtins(content), **fields}


def problem(reply: httpx2.Response, status: int) -> tuple[str | None, str | None, str]:
    """The field at fault, the code and the message of an error with this status."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["param"], error["code"], error["message"]


@pytest.fixture
async def shop(desk: Desk) -> Desk:
    """A fleet with one adapter in its file."""
    desk.deploying.catalog.apply(replace(SPEC, adapters=(FILED,)))
    return desk


async def add(shop: Desk, content: AdapterVersion = NEW, **fields: object) -> httpx2.Response:
    """Roll a version out."""
    return await shop.client.post("/adapters", json=wish(content, **fields))


async def promote(shop: Desk, wished: str, name: str = "one") -> httpx2.Response:
    """Promote a version."""
    return await shop.client.post(f"/adapters/{name}/promote", json={"version": wished})


async def back(shop: Desk, name: str = "one") -> httpx2.Response:
    """Roll back."""
    return await shop.client.post(f"/adapters/{name}/rollback")


def states(reply: httpx2.Response, status: int = 200) -> dict[str, str]:
    """How the versions stand, by the beginnings of their digests."""
    assert reply.status_code == status, reply.text
    return {one["version"]["digest"][:4]: one["state"] for one in reply.json()["versions"]}


async def test_a_version_is_rolled_out(shop: Desk) -> None:
    """The answer says how it stands and with which terms; the fleet loads it, and its history has begun."""
    before = int(time.time())
    reply = await add(shop, share=0.25, divided_by="key", within_s=60, probes=[{"prompt": "hi"}])
    assert states(reply, 202) == {"aaaa": "promoted", "bbbb": "probed"}
    said = reply.json()
    assert (said["name"], said["promoted"], said["filed"]) == ("one", FILED.id, True)
    rollout = said["rollout"]
    assert (rollout["version"], rollout["share"], rollout["divided_by"], rollout["within_s"]) == (
        NEW.id,
        0.25,
        "key",
        60,
    )
    assert (rollout["tried_since"], rollout["words"], rollout["old"], rollout["score"]) == (
        None,
        "it begins",
        None,
        None,
    )
    assert rollout["since"] >= before
    assert [one.version for one in shop.controller.spec.candidates] == [NEW]
    assert (await shop.client.get("/adapters/one")).json() == said
    assert (await shop.client.get("/adapters")).json() == [said]
    history = (await shop.client.get("/adapters/one/history")).json()
    assert [(one["who"], one["action"], one["version"]) for one in history] == [
        ("fleet file", "promoted", FILED.id),
        ("local", "added", NEW.id),
    ]


async def test_only_the_machine_itself_says_which_files_are_served(shop: Desk) -> None:
    """A key may promote and roll back what is known, under its own name, and add nothing."""
    key = {"x-tuneplex-actor": "k1"}
    reply = await shop.client.post("/adapters", json=wish(NEW), headers=key)
    assert problem(reply, 403)[:2] == (None, "only_on_the_machine")
    assert shop.controller.spec.candidates == ()
    await add(shop)
    reply = await shop.client.post("/adapters/one/promote", json={"version": "bbbb"}, headers=key)
    assert states(reply) == {"aaaa": "known", "bbbb": "promoted"}
    await shop.client.post("/adapters/one/rollback", headers=key)
    history = (await shop.client.get("/adapters/one/history")).json()
    assert [(one["who"], one["action"]) for one in history[-2:]] == [("k1", "promoted"), ("k1", "promoted")]


@pytest.mark.parametrize(
    "content, fields, param, code",
    [
        (version("b", "base"), {}, "version.name", None),
        (version("b", "gpt-4o"), {}, "version.name", None),
        (version("b", "a/b"), {}, "version.name", None),
        (version("b", ""), {}, "version.name", None),
        (version("b", "x\ny"), {}, "version.name", None),
        (replace(NEW, digest="bbbb"), {}, "version.digest", None),
        (replace(NEW, digest="B" * 64), {}, "version.digest", None),
        (replace(NEW, digest="z" * 64), {}, "version.digest", None),
        (replace(NEW, digest="b" * 64 + "\n"), {}, "version.digest", None),
        (replace(NEW, rank=64), {}, "version.rank", "no_pool"),
        (NEW, {"divided_by": "colour"}, "divided_by", None),
        (NEW, {"share": 0}, "share", None),
        (NEW, {"share": 1.5}, "share", None),
        (NEW, {"within_s": 0}, "within_s", None),
        (NEW, {"colour": "red"}, "colour", None),
        (NEW, {"probes": [{"prompt": "a"}, {}]}, "probes[1]", None),
        (NEW, {"probes": [{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}]}, "probes[0]", None),
        (NEW, {"scorer": {}}, "scorer", None),
        (NEW, {"scorer": {"url": "http://x", "command": ["y"]}}, "scorer", None),
    ],
)
async def test_what_cannot_be_served_is_refused(
    shop: Desk, content: AdapterVersion, fields: dict[str, object], param: str, code: str | None
) -> None:
    """With the field at fault; nothing is added."""
    reply = await add(shop, content, **fields)
    assert problem(reply, 400)[:2] == (param, code)
    assert shop.controller.spec.candidates == ()
    assert set(shop.deploying.catalog.records) == {"one"}


async def test_the_largest_rank_is_said(shop: Desk) -> None:
    """Of the pools that can load anything at all."""
    words = problem(await add(shop, replace(NEW, rank=64)), 400)[2]
    assert words == "one has rank 64, and the pools of this fleet take 32 at most"


async def test_a_version_goes_to_the_pool_that_takes_it(shop: Desk) -> None:
    """The adapter's own if that is large enough, the one that is wished for a new one, else the smallest that fits."""
    for content, pool in (
        (NEW, "small"),
        (replace(NEW, rank=16), "large"),
        (version("c", "new"), "small"),
        (version("d", "newer", pool="large"), "large"),
    ):
        await add(shop, content)
        assert shop.controller.spec.candidates[-1].version.pool == pool
        assert {one.version.pool for one in shop.controller.spec.candidates} == {pool}
        await back(shop, content.name)


async def test_what_stands_against_it_is_a_conflict(shop: Desk) -> None:
    """The version in use, one that is being rolled out already, and a second one."""
    problem(await add(shop, FILED), 409)
    await add(shop)
    assert "is being rolled out already" in problem(await add(shop), 409)[2]
    assert "promote it or roll it back first" in problem(await add(shop, version("cccc")), 409)[2]


@pytest.mark.parametrize("wished", ["one@bbbb00000000", "bbbb", "BBBB", NEW.digest, "one@bbbb"])
async def test_a_version_is_promoted_by_what_people_have_of_it(shop: Desk, wished: str) -> None:
    """Its id, its digest or the beginning of that; requests get it, and its rollout is over."""
    await add(shop)
    reply = await promote(shop, wished)
    assert states(reply) == {"aaaa": "known", "bbbb": "promoted"}
    assert (reply.json()["promoted"], reply.json()["rollout"]) == (NEW.id, None)
    assert (shop.controller.spec.adapters, shop.controller.spec.candidates) == ((NEW,), ())
    problem(await promote(shop, wished), 409)


@pytest.mark.parametrize(
    "wished, words",
    [
        ("bbb", "one has no version 'bbb'; there are: one@aaaa00000000, one@bbbb00000000, one@bbbb10000000"),
        ("bbbb", "several versions begin so; there are: "),
        ("", "one has no version ''"),
        ("cccc", "one has no version 'cccc'"),
        ("two@bbbb1", "one has no version 'two@bbbb1'"),
        ("one@", "one has no version 'one@'"),
    ],
)
async def test_what_means_no_version_or_several_is_not_found(shop: Desk, wished: str, words: str) -> None:
    """With all that there are."""
    await add(shop)
    await promote(shop, NEW.id)
    await add(shop, version("bbbb1"))
    assert problem(await promote(shop, wished), 404)[2].startswith(words)


async def test_versions_go_back(shop: Desk) -> None:
    """First the rollout is given up, then the version before comes back, and then there is none."""
    await add(shop)
    await promote(shop, "bbbb")
    await add(shop, version("cccc"))
    assert states(await back(shop)) == {"aaaa": "known", "bbbb": "promoted"}
    assert states(await back(shop)) == {"aaaa": "promoted", "bbbb": "known"}
    assert shop.controller.spec.adapters == (FILED,)
    assert problem(await back(shop), 409)[2] == "one has no earlier version"


async def test_an_adapter_of_its_own_comes_and_goes(shop: Desk) -> None:
    """Rolled back before anybody got it, nothing is left of it; removed, only its history is."""
    new = version("cccc", "new")
    assert states(await add(shop, new), 202) == {"cccc": "probed"}
    gone = (await back(shop, "new")).json()
    assert (gone["promoted"], gone["versions"], gone["rollout"]) == (None, [], None)
    problem(await shop.client.get("/adapters/new"), 404)
    await add(shop, new)
    await promote(shop, "cccc", "new")
    assert [one.name for one in shop.controller.spec.adapters] == ["one", "new"]
    removed = await shop.client.delete("/adapters/new")
    assert (removed.status_code, removed.content) == (204, b"")
    assert [one.name for one in shop.controller.spec.adapters] == ["one"]
    history = (await shop.client.get("/adapters/new/history")).json()
    assert [one["action"] for one in history] == ["added", "rolled back", "added", "promoted", "removed"]


async def test_what_the_file_names_is_removed_there(shop: Desk) -> None:
    """Else it would come back with the next start."""
    assert problem(await shop.client.delete("/adapters/one"), 409)[1] == "in_the_fleet_file"
    assert shop.controller.spec.adapters == (FILED,)


async def test_who_names_no_adapter_is_told_which_there_are(shop: Desk) -> None:
    """In each operation on one; a history of nothing is empty, as an adapter that is gone has one."""
    for reply in (
        await shop.client.get("/adapters/nobody"),
        await shop.client.delete("/adapters/nobody"),
        await promote(shop, "bbbb", "nobody"),
    ):
        assert problem(reply, 404)[2] == "there is no adapter 'nobody'; there are: one"
    problem(await back(shop, "nobody"), 404)
    assert (await shop.client.get("/adapters/nobody/history")).json() == []


async def test_a_store_that_is_down_changes_nothing(shop: Desk, memory: MemoryRecords) -> None:
    """What is known is told all the same."""
    await add(shop)
    memory.down = True
    for reply in (await promote(shop, "bbbb"), await back(shop), await add(shop, version("cccc", "new"))):
        assert problem(reply, 503)[1] == "store_down"
    assert problem(await shop.client.get("/adapters/one/history"), 503)[1] == "store_down"
    assert states(await shop.client.get("/adapters/one")) == {"aaaa": "promoted", "bbbb": "probed"}
    assert [one.version for one in shop.controller.spec.candidates] == [NEW]


async def test_applying_a_file_leaves_what_was_promoted_by_hand(shop: Desk) -> None:
    """What would change is told as it will be: the same file again changes nothing, another content does."""
    await add(shop)
    await promote(shop, "bbbb")
    same, other = replace(SPEC, adapters=(FILED,)), replace(SPEC, adapters=(version("dddd", pool="small"),))
    reply = await shop.client.post("/apply", json=msgspec.to_builtins(same))
    assert (reply.status_code, reply.json()) == (200, [])
    assert shop.controller.spec.adapters == (NEW,)
    dry = await shop.client.post("/apply?dry_run=1", json=msgspec.to_builtins(other))
    assert [change["what"] for change in dry.json()] == ["adapter one"]
    assert shop.controller.spec.adapters == (NEW,)
    await shop.client.post("/apply", json=msgspec.to_builtins(other))
    assert states(await shop.client.get("/adapters/one")) == {"aaaa": "known", "bbbb": "known", "dddd": "promoted"}
    assert shop.saved == [same, other]


async def test_a_trial_is_shown(shop: Desk) -> None:
    """Since when it goes, and the state of its version."""
    await add(shop)
    catalog = shop.deploying.catalog

    def begin(record: AdapterRecord | None) -> tuple[AdapterRecord | None, tuple[()]]:
        assert record is not None
        assert record.rollout is not None
        return replace(record, rollout=replace(record.rollout, tried_since=9.5)), ()

    await catalog.change("one", begin)
    reply = await shop.client.get("/adapters/one")
    assert states(reply) == {"aaaa": "promoted", "bbbb": "tried"}
    assert reply.json()["rollout"]["tried_since"] == 9.5
    record = await catalog.change(
        "one", lambda one: promoted(one or AdapterRecord("one"), NEW.digest, 9, "tuneplex", "")
    )
    assert record is not None
    assert [event.action for event in shop.acted] == ["promoted"]


async def test_the_document_has_these_operations(desk: Desk) -> None:
    """With what they take and give, and every error that they answer with."""
    document = read((await desk.client.get("/openapi.json")).content)
    adding = document.paths["/adapters"].post
    assert adding is not None
    assert set(adding.responses) == {"202", "400", "401", "403", "404", "409", "503", "default"}
    told = {(path, method) for path, item in document.paths.items() for method in item.operations()}
    assert {one for one in told if one[0].startswith("/adapters")} == {
        ("/adapters", "GET"),
        ("/adapters", "POST"),
        ("/adapters/{name}", "GET"),
        ("/adapters/{name}", "DELETE"),
        ("/adapters/{name}/history", "GET"),
        ("/adapters/{name}/probe", "POST"),
        ("/adapters/{name}/promote", "POST"),
        ("/adapters/{name}/rollback", "POST"),
    }
    wished = document.components.schemas["RolloutWish"]
    assert set(wished["properties"]) == {"version", "share", "divided_by", "within_s", "probes", "scorer"}
