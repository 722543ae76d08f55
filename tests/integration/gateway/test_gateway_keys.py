"""What each key reaches, through a gateway on FakeEngine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.support.front import VERSIONS, Front, Response, chat, open_front, view_of
from tests.support.identities import access_of, bearer, key_of
from tuneplex.identity import Access, Limits, Scope, Tenant
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import FleetView

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"

ALL = key_of("all")
ONE = key_of("one", adapters=("contacts",), base=False)
BASE_ONLY = key_of("base", adapters=())
OTHER = key_of("other", "zeta")


@pytest.fixture
async def keyed(front: Front) -> Front:
    """A gateway that knows some keys."""
    front.gateway.update_access(access_of(ALL, ONE, BASE_ONLY, OTHER, Tenant("zeta", adapters=("*-v2",), base=True)))
    return front


async def listed(front: Front, secret: str) -> list[str]:
    """The models that a key sees."""
    return [card["id"] for card in (await front.get(MODELS, **bearer(secret))).json["data"]]


def shown(response: Response) -> tuple[int, dict[str, str], bytes]:
    """All that a client sees of a reply but the request's own id and the time."""
    headers = {name: value for name, value in response.headers.items() if name not in {"x-request-id", "date"}}
    return response.status, headers, response.body


@pytest.mark.parametrize(
    "secret, names",
    [
        ("all", ["base", "contacts", "contacts-v2", "gpt-4o"]),
        ("one", ["contacts", "gpt-4o"]),
        ("base", ["base"]),
        ("other", ["base", "contacts-v2"]),
    ],
)
async def test_a_key_sees_and_calls_its_models_only(
    keyed: Front, engine: FakeEngine, secret: str, names: list[str]
) -> None:
    """The list, each card and each call agree; an alias follows its target."""
    assert await listed(keyed, secret) == names
    for name in ("base", "contacts", "contacts-v2", "gpt-4o"):
        card = await keyed.get(f"{MODELS}/{name}", **bearer(secret))
        answers = [
            await keyed.post(CHAT, chat(name), **bearer(secret)),
            await keyed.post(f"/d/{name}/v1/chat/completions", chat("any"), **bearer(secret)),
        ]
        assert {reply.status for reply in (card, *answers)} == ({200} if name in names else {404})
    assert len(engine.requests) == 2 * len(names)


@pytest.mark.parametrize("name", ["base", "contacts-v2"])
async def test_a_forbidden_model_looks_as_one_that_does_not_exist(keyed: Front, name: str) -> None:
    """Every byte is the same but for the name that the client itself sent, so that names cannot be found out."""
    missing = "x" * len(name)
    for path, body in ((CHAT, chat), (CHAT, lambda model: chat(model, stream=True)), ("/v1/embeddings", chat)):
        forbidden = await keyed.post(path, body(name), **bearer("one"))
        unknown = await keyed.post(path, body(missing), **bearer("one"))
        assert forbidden.status == 404
        assert shown(forbidden) == shown(_renamed(unknown, missing, name)), (
            "a forbidden model can be told from an unknown one"
        )
    forbidden = await keyed.get(f"{MODELS}/{name}", **bearer("one"))
    unknown = await keyed.get(f"{MODELS}/{missing}", **bearer("one"))
    assert shown(forbidden) == shown(_renamed(unknown, missing, name))


def _renamed(response: Response, old: str, new: str) -> Response:
    response.body = response.body.replace(old.encode(), new.encode())
    return response


async def test_a_model_that_nobody_serves_is_no_different_to_who_may_not_call_it(keyed: Front) -> None:
    """Without any engine, who may call a model hears 503 and who may not hears 404 all the same."""
    keyed.gateway.update(msgspec.structs.replace(keyed.gateway.view, replicas=()))
    assert (await keyed.post(CHAT, chat("contacts-v2"), **bearer("all"))).status == 503
    assert (await keyed.post(CHAT, chat("contacts-v2"), **bearer("one"))).status == 404


async def test_the_list_follows_the_fleet_and_the_keys(keyed: Front) -> None:
    """It is kept between requests, and made anew when models or permissions change."""
    assert await listed(keyed, "one") == ["contacts", "gpt-4o"]
    keyed.gateway.update(msgspec.structs.replace(keyed.gateway.view, aliases={}))
    assert await listed(keyed, "one") == ["contacts"]
    keyed.gateway.update_access(access_of(msgspec.structs.replace(ONE, base=True)))
    assert await listed(keyed, "one") == ["base", "contacts"]


@pytest.mark.parametrize("scope", list(Scope))
async def test_each_scope_opens_its_own_routes(front: Front, scope: Scope) -> None:
    """A key that is for one thing is refused for the others, with the reason; health is for everybody."""
    front.gateway.update_access(access_of(key_of("one", scopes=(scope,))))
    replies = {
        Scope.USE: [await front.get(MODELS, **bearer("one")), await front.post(CHAT, chat("nobody"), **bearer("one"))],
        Scope.ADMIN: [await front.get("/admin/keys", **bearer("one"))],
    }
    for needed, answers in replies.items():
        for reply in answers:
            assert (reply.status == 403) == (needed is not scope)
            assert reply.status != 403 or reply.error["code"] == "scope_missing"
    assert (await front.get("/health", **bearer("one"))).status == 200


@pytest.mark.parametrize(
    "secret, status, code",
    [
        (None, 401, "missing_api_key"),
        ("unknown", 401, "invalid_api_key"),
        ("use", 403, "scope_missing"),
        ("usage", 200, ""),
        ("admin", 200, ""),
    ],
)
async def test_metrics_from_elsewhere_need_a_key(
    front: Front, monkeypatch: pytest.MonkeyPatch, secret: str | None, status: int, code: str
) -> None:
    """Whoever reads the fleet's numbers from another machine needs a key for usage or to administer."""
    monkeypatch.setattr("tuneplex.gateway.core.is_loopback", lambda _peer: False)
    front.gateway.update_access(access_of(*(key_of(scope.value, scopes=(scope,)) for scope in Scope)))
    reply = await front.get("/metrics", **(bearer(secret) if secret else {}))
    assert reply.status == status
    assert not code or reply.error["code"] == code


@pytest.mark.parametrize(
    "change, code",
    [
        (access_of(OTHER), "invalid_api_key"),
        (access_of(msgspec.structs.replace(ALL, expires=int(time.time()) - 1)), "expired_api_key"),
        (access_of(ALL, Tenant("acme", disabled=True)), "invalid_api_key"),
    ],
    ids=["revoked", "expired", "tenant disabled"],
)
async def test_a_key_that_ends_opens_nothing_more(keyed: Front, engine: FakeEngine, change: object, code: str) -> None:
    """The next request is refused at once, while a stream that was let in before goes on to its end."""
    engine.script(Script(lockstep=True))
    http = await keyed.connect()
    http.post(CHAT, chat(stream=True, max_tokens=8, ignore_eos=True), **bearer("all"))
    record = await engine.arrived()
    keyed.gateway.update_access(change)  # type: ignore[arg-type]
    for reply in (
        await keyed.post(CHAT, chat(), **bearer("all")),
        await keyed.get(MODELS, **bearer("all")),
        await keyed.get("/admin/status", **bearer("all")),
    ):
        assert (reply.status, reply.error["code"]) == (401, code)
    record.release(100)
    reply = await http.response()
    assert reply.events[-1] == "[DONE]"


@pytest.mark.parametrize(
    "change, code",
    [
        (access_of(OTHER), "invalid_api_key"),
        (access_of(ALL, Tenant("acme", disabled=True)), "invalid_api_key"),
        (access_of(msgspec.structs.replace(ALL, scopes=(Scope.USAGE,))), "scope_missing"),
    ],
    ids=["revoked", "tenant disabled", "scope"],
)
@pytest.mark.parametrize("how", ["slow body", "pipelined"])
async def test_what_was_not_let_in_before_a_key_ended_is_refused(
    keyed: Front, engine: FakeEngine, change: Access, code: str, how: str
) -> None:
    """A request is judged by the keys of the moment in which it is answered, however long its head has been there."""
    engine.script(Script(lockstep=True))
    http = await keyed.connect()
    body = json.dumps(chat(stream=True, max_tokens=8, ignore_eos=True)).encode()
    whole = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer all\r\ncontent-length: {len(body)}\r\n\r\n"
    if how == "pipelined":
        http.send(2 * (whole.encode() + body))
        record = await engine.arrived()
        keyed.gateway.update_access(change)
        record.release(100)
        assert (await http.response()).events[-1] == "[DONE]"
    else:
        http.send(whole.encode() + body[:-1])
        await asyncio.sleep(0.05)
        keyed.gateway.update_access(change)
        http.send(body[-1:])
    reply = await http.response()
    assert (reply.status, reply.error["code"]) == (403 if code == "scope_missing" else 401, code)
    assert len(engine.requests) == (how == "pipelined")


async def test_a_request_that_was_long_on_its_way_goes_by_the_limits_of_now(keyed: Front) -> None:
    """Not by those that its key had when its head came."""
    body = json.dumps(chat()).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer all\r\ncontent-length: {len(body)}\r\n\r\n"
    http = await keyed.connect()
    http.send(head.encode() + body[:-1])
    await asyncio.sleep(0.05)
    limited = msgspec.structs.replace(ALL, limits=Limits(requests_per_minute=1))
    keyed.gateway.update_access(access_of(limited))
    assert (await keyed.post(CHAT, chat(), **bearer("all"))).status == 200
    http.send(body[-1:])
    assert (await http.response()).status == 429


async def test_a_key_expires_without_any_news(front: Front) -> None:
    """The gateway looks at the clock by itself for each request, also on a connection that is kept."""
    front.gateway.update_access(access_of(key_of("brief", expires=int(time.time()) + 1)))
    http = await front.connect()
    statuses = []
    while 401 not in statuses:
        http.request("GET", MODELS, b"", **bearer("brief"))
        statuses.append((await http.response()).status)
        await asyncio.sleep(0.05)
    assert statuses[0] == 200
    assert set(statuses) == {200, 401}


async def test_keys_change_under_load(front: Front) -> None:
    """While keys come and go a hundred times, no request with a key that stays is ever refused."""
    front.gateway.update_access(access_of(ALL))
    over = asyncio.Event()
    seen: set[int] = set()
    number = 0

    async def call() -> None:
        nonlocal number
        http = await front.connect()
        while not over.is_set():
            http.post(CHAT, chat(), **bearer("all"))
            seen.add((await http.response()).status)
            http.request("GET", MODELS, b"", **bearer("all"))
            seen.add((await http.response()).status)
            number += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(call())
        for generation in range(100):
            others = (key_of(f"k{generation + other}", f"t{other}") for other in range(20))
            front.gateway.update_access(access_of(*others, ALL, generation=generation))
            await asyncio.sleep(0.005)
        over.set()
    assert seen == {200}
    assert number > 10


async def test_a_gateway_without_keys_says_that_it_is_starting(engine: FakeEngine) -> None:
    """A view alone opens nothing, whatever key is sent: who may call is not known before control has said so."""
    async with open_front(view_of([engine])) as front:
        front.gateway.access = None
        front.gateway.update(FleetView())
        front.gateway.update(view_of([engine]))
        for reply in (
            await front.post(CHAT, chat()),
            await front.get(MODELS, **bearer("all")),
            await front.get("/admin/keys", **bearer("all")),
            await front.get("/ready"),
        ):
            assert (reply.status, reply.error["code"]) == (503, "starting")
            assert int(reply.headers["retry-after"]) >= 1
        assert (await front.get("/health")).status == 200
        front.gateway.update_access(access_of(ALL))
        assert (await front.get("/ready")).status == 200
        assert (await front.post(CHAT, chat(), **bearer("all"))).status == 200


async def test_an_odd_header_is_no_key(keyed: Front) -> None:
    """Another scheme, nothing at all, only spaces, other alphabets or a very long text: 401, and the gateway lives."""
    for header, code in (
        ("Basic YTpi", "missing_api_key"),
        ("", "missing_api_key"),
        ("   ", "missing_api_key"),
        ("Bearer", "missing_api_key"),
        ("Bearer ключ", "invalid_api_key"),
        (f"Bearer {'x' * 50_000}", "invalid_api_key"),
        ("Bearer all, Bearer all", "invalid_api_key"),
    ):
        reply = await keyed.get(MODELS, authorization=header)
        assert (reply.status, reply.error["code"]) == (401, code), header[:20]
    assert (await keyed.get(MODELS, authorization="bearer   all  ")).status == 200


# --- what engines get


@contextlib.asynccontextmanager
async def fleet(*tenants: frozenset[str], kind: str = "vllm") -> AsyncIterator[tuple[Front, list[FakeEngine]]]:
    """A gateway with an engine for each pool, reserved for these tenants."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine("base", adapters=VERSIONS.values())) for _pool in tenants]
        view = view_of(engines)
        replicas = tuple(
            msgspec.structs.replace(replica, tenants=reserved, engine=kind)
            for replica, reserved in zip(view.replicas, tenants, strict=True)
        )
        front = await stack.enter_async_context(open_front(msgspec.structs.replace(view, replicas=replicas)))
        yield front, engines


OPEN: frozenset[str] = frozenset()


async def test_reserved_pools_serve_their_tenants_only() -> None:
    """A pool's tenants go there or to the shared one, an isolated one goes there only, and nobody else does."""
    async with fleet(frozenset({"acme", "lone"}), OPEN) as (front, (own, shared)):
        front.gateway.update_access(
            access_of(key_of("a", "acme"), key_of("l", "lone"), key_of("z", "zeta"), Tenant("lone", isolated=True))
        )
        for _ in range(3):
            for secret in ("l", "z"):
                assert (await front.post(CHAT, chat(), **bearer(secret))).status == 200
        assert (len(own.requests), len(shared.requests)) == (3, 3)
        only_shared = tuple(replica for replica in front.gateway.view.replicas if not replica.tenants)
        front.gateway.update(msgspec.structs.replace(front.gateway.view, replicas=only_shared))
        refused = await front.post(CHAT, chat(), **bearer("l"))
        assert (refused.status, refused.error["code"]) == (503, "no_ready_engine")
        assert (await front.post(CHAT, chat(), **bearer("a"))).status == 200


async def test_a_pool_that_is_reserved_later_takes_nobody_else_from_then_on() -> None:
    """What the view says of a pool counts for the next request."""
    async with fleet(OPEN) as (front, (engine,)):
        front.gateway.update_access(access_of(key_of("a", "acme"), key_of("z", "zeta")))
        assert (await front.post(CHAT, chat(), **bearer("z"))).status == 200
        view = front.gateway.view
        reserved = msgspec.structs.replace(view.replicas[0], tenants=frozenset({"acme"}))
        front.gateway.update(msgspec.structs.replace(view, replicas=(reserved,)))
        assert (await front.post(CHAT, chat(), **bearer("z"))).status == 503
        assert (await front.post(CHAT, chat(), **bearer("a"))).status == 200
        assert len(engine.requests) == 2


SALTED = access_of(
    key_of("a", "acme"),
    key_of("a2", "acme"),
    key_of("g", "gamma"),
    key_of("h", "hal"),
    key_of("z", "zeta"),
    Tenant("gamma", cache_group="both"),
    Tenant("hal", cache_group="both"),
)


async def salts(front: Front, engine: FakeEngine, *secrets: str, **fields: object) -> list[str | None]:
    """What the engine keeps the prompts of these keys apart by."""
    before = len(engine.requests)
    for secret in secrets:
        assert (await front.post(CHAT, chat("contacts", **fields), **bearer(secret))).status == 200
    return [record.cache_salt for record in engine.requests[before:]]


@pytest.mark.parametrize("tenants", [OPEN, frozenset({"acme", "gamma", "hal", "zeta"})], ids=["shared", "reserved"])
async def test_tenants_do_not_share_the_prefix_cache(tenants: frozenset[str]) -> None:
    """Keys of one tenant and tenants of one group have the same salt, all others another one."""
    async with fleet(tenants) as (front, (engine,)):
        front.gateway.update_access(SALTED)
        acme, again, gamma, hal, zeta = await salts(front, engine, "a", "a2", "g", "h", "z")
        assert acme == again
        assert gamma == hal
        assert len({acme, gamma, zeta, None}) == 4
        own = await salts(front, engine, "a", "z", cache_salt="mine")
        assert len({*own, acme, zeta, "mine"}) == 5


async def test_nothing_is_salted_where_nobody_is_to_be_kept_apart(front: Front, engine: FakeEngine) -> None:
    """In an open fleet, and without a secret to make salts from, the body is the client's."""
    front.gateway.update_access(access_of())
    assert await salts(front, engine, "any") == [None]
    assert await salts(front, engine, "any", cache_salt="mine") == ["mine"]
    front.gateway.update_access(access_of(ALL, salt=""))
    assert await salts(front, engine, "all") == [None]


async def test_a_pool_of_ones_own_is_salted_too() -> None:
    """A reserved pool may be given to another tenant while its engines, and what they have cached, stay."""
    async with fleet(frozenset({"acme"})) as (front, (alone,)):
        front.gateway.update_access(SALTED)
        assert len((await salts(front, alone, "a"))[0] or "") == 43


async def test_other_engines_are_sent_no_salt() -> None:
    """A server that only speaks OpenAI's API may refuse a field that it does not know."""
    async with fleet(OPEN, kind="openai") as (front, (engine,)):
        front.gateway.update_access(SALTED)
        assert await salts(front, engine, "a") == [None]
        assert "cache_salt" not in engine.requests[0].json


@pytest.mark.parametrize("path, field", [("completions", "prompt"), ("responses", "input"), ("embeddings", "input")])
async def test_every_route_is_salted(front: Front, engine: FakeEngine, path: str, field: str) -> None:
    """Whatever the route, what reaches the engine has the tenant's salt, and a client's wrong one is refused."""
    front.gateway.update_access(SALTED)
    await front.post(f"/v1/{path}", {"model": "contacts", field: "hello"}, **bearer("a"))
    assert len(engine.requests[0].json["cache_salt"]) == 43
    wrong = await front.post(f"/v1/{path}", {"model": "contacts", field: "hello", "cache_salt": ""}, **bearer("a"))
    assert (wrong.status, wrong.error["param"]) == (400, "cache_salt")
    assert len(engine.requests) == 1
    assert front.gateway.ledger.outstanding == {}
