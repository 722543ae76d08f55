"""How much may be asked, through a gateway on FakeEngine."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.support.front import Front, Http, Response, chat
from tests.support.identities import access_of, bearer, key_of
from tuneplex.identity import Limits, Tenant
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import Leases

CHAT = "/v1/chat/completions"


class Clocks:
    """The gateway's clocks, which a test can move."""

    def __init__(self, front: Front) -> None:
        self.now, self.wall = 1000.0, 86400 * 20000 + 43200.0
        front.gateway._clock = front.gateway._entrance._clock = lambda: self.now
        front.gateway._wall = front.gateway._entrance._wall = lambda: self.wall

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.wall += seconds


@pytest.fixture
def clocks(front: Front) -> Clocks:
    """Clocks that stand still until they are moved."""
    return Clocks(front)


def limit(front: Front, whose: str, **limits: int) -> None:
    """Limit the tenant, the key or the model of the requests that `ask` sends."""
    given = msgspec.structs.replace(Limits(), **limits)
    tenant = Tenant("acme", limits=given if whose == "tenant" else Limits())
    front.gateway.update_access(access_of(tenant, key_of("one", limits=given if whose == "key" else Limits())))
    models = dict(front.gateway.view.models)
    models["contacts"] = msgspec.structs.replace(models["contacts"], limits=given if whose == "model" else Limits())
    front.gateway.update(msgspec.structs.replace(front.gateway.view, models=models))


async def ask(front: Front, **fields: object) -> Response:
    """One request for a short reply."""
    return await front.post(CHAT, chat() | {"max_tokens": 5, **fields}, **bearer("one"))


def used(front: Front) -> tuple[int, int, int]:
    """Requests, tokens and requests under way of the only subject with limits."""
    (one,) = front.gateway.report().used.values()
    return one.requests, one.tokens, one.concurrent


def limit_headers(response: Response) -> dict[str, str]:
    """What a reply says of limits."""
    return {name.removeprefix("x-ratelimit-"): value for name, value in response.headers.items() if "ratelimit" in name}


async def started(front: Front, engine: FakeEngine) -> Http:
    """A stream whose first event has come, and that goes on until its engine is told."""
    engine.script(Script(lockstep=True))
    http = await front.connect()
    http.post(CHAT, chat(stream=True, max_tokens=5), **bearer("one"))
    while not engine.requests or engine.requests[-1].status is None:  # noqa: ASYNC110 - the engine tells nobody
        await asyncio.sleep(0.005)
    engine.requests[-1].release()
    await http.head()
    await http.chunk()
    return http


@pytest.mark.parametrize("whose", ["tenant", "key", "model"])
@pytest.mark.parametrize(
    "kind, amount", [("requests_per_minute", 2), ("tokens_per_minute", 60), ("tokens_per_day", 60)]
)
async def test_each_limit_of_each_subject(front: Front, clocks: Clocks, whose: str, kind: str, amount: int) -> None:
    """Over it a request is refused; once it was waited as long as was told, it passes."""
    limit(front, whose, **{kind: amount})
    replies: list[Response] = []
    while not replies or replies[-1].status == 200:
        replies.append(await ask(front, max_tokens=30, ignore_eos=True))
        assert len(replies) < 10
    assert len(replies) > 1
    refused = replies[-1]
    assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
    assert refused.error["code"] == "rate_limit_exceeded"
    names = {"tenant": "tenant acme", "key": "key id-one", "model": "model contacts"}
    assert names[whose] in refused.error["message"]
    assert front.answered() == {("contacts", "2xx"): len(replies) - 1, ("contacts", "4xx"): 1}
    clocks.wait(int(refused.headers["retry-after"]))
    assert (await ask(front, max_tokens=30)).status == 200


@pytest.mark.parametrize("whose", ["tenant", "key", "model"])
async def test_requests_under_way(front: Front, engine: FakeEngine, whose: str) -> None:
    """A seat is free at once when its client leaves, and when its reply is complete."""
    limit(front, whose, concurrent=1)
    http = await started(front, engine)
    refused = await ask(front)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    await http.close()
    async with asyncio.timeout(2):
        await engine.requests[-1].left.wait()
    assert used(front)[2] == 0
    engine.script(Script())
    assert [(await ask(front)).status for _ in range(3)] == [200] * 3


async def test_settling_lowers_the_reservation(front: Front) -> None:
    """A short reply leaves room that its reservation had taken, by the engine's own count."""
    limit(front, "key", tokens_per_minute=200)
    first = await ask(front, max_tokens=180)
    told = first.json["usage"]
    assert used(front) == (1, told["total_tokens"], 0)
    assert told["total_tokens"] < 180
    assert int(limit_headers(first)["remaining-tokens"]) < 20
    second = await ask(front, max_tokens=5)
    assert second.status == 200
    assert int(limit_headers(second)["remaining-tokens"]) > 20


async def test_a_stream_is_settled_and_never_cut(front: Front, engine: FakeEngine) -> None:
    """A limit that is lowered, or used up meanwhile, lets a stream go on to its end."""
    limit(front, "tenant", tokens_per_minute=1000, concurrent=2)
    http = await started(front, engine)
    limit(front, "tenant", tokens_per_minute=1, concurrent=1)
    assert (await ask(front)).status == 429
    engine.requests[-1].release(1000)
    rest = b""
    async with asyncio.timeout(5):
        while data := await http.chunk():
            rest += data
    assert rest.endswith(b"data: [DONE]\n\n")
    requests, tokens, under_way = used(front)
    assert (requests, under_way) == (1, 0)
    assert 5 < tokens < 40


async def test_headers(front: Front, clocks: Clocks) -> None:
    """Limited callers hear what is left, also when they are refused; nobody else hears of limits."""
    limit(front, "key", requests_per_minute=2, tokens_per_minute=100)
    first = limit_headers(await ask(front))
    assert first["limit-requests"] == "2"
    assert first["remaining-requests"] == "1"
    assert first["reset-requests"] == "1m1s"
    assert first["limit-tokens"] == "100"
    assert 0 < int(first["remaining-tokens"]) < 95
    clocks.wait(10)
    await ask(front)
    refused = await ask(front)
    assert limit_headers(refused)["remaining-requests"] == "0"
    assert refused.headers["retry-after"] == "51"
    limit(front, "key")
    assert limit_headers(await ask(front)) == {}


async def test_what_can_never_pass(front: Front, engine: FakeEngine) -> None:
    """A request larger than its limit is told so, and not when to come back."""
    limit(front, "tenant", tokens_per_minute=50)
    refused = await ask(front, max_tokens=51)
    assert (refused.status, refused.error["code"]) == (429, "request_too_large")
    assert "retry-after" not in refused.headers
    assert engine.requests == []


@pytest.mark.parametrize("body", [{"model": "nobody"}, {"cache_salt": 3}], ids=["no model", "a wrong field"])
async def test_what_no_engine_hears_of_is_not_counted(
    front: Front, engine: FakeEngine, body: dict[str, object]
) -> None:
    """A request that is refused for another reason takes nothing from any limit."""
    limit(front, "tenant", requests_per_minute=1)
    assert (await ask(front, **body)).status in {400, 404}
    front.gateway.update(msgspec.structs.replace(front.gateway.view, replicas=()))
    assert (await ask(front)).status == 503
    assert front.gateway.report().used == {}
    assert engine.requests == []


async def test_what_an_engine_refuses_is_a_request_without_tokens(front: Front, engine: FakeEngine) -> None:
    """It counts as asked; what was reserved for its reply is given back."""
    limit(front, "tenant", requests_per_minute=9, tokens_per_minute=500)
    engine.script(Script(status=500))
    assert (await ask(front, max_tokens=400)).status == 500
    requests, tokens, under_way = used(front)
    assert (requests, under_way) == (1, 0)
    assert tokens < 100


async def test_a_model_is_limited_where_nobody_needs_a_key(front: Front) -> None:
    """An open fleet's callers share the model's limit, by whichever name they call it; other models are free."""
    models = dict(front.gateway.view.models)
    models["contacts"] = msgspec.structs.replace(models["contacts"], limits=Limits(requests_per_minute=2))
    front.gateway.update(msgspec.structs.replace(front.gateway.view, models=models))
    assert front.gateway.limited
    assert [(await front.chat(name)).status for name in ("contacts", "gpt-4o", "contacts", "gpt-4o")] == [
        200,
        200,
        429,
        429,
    ]
    assert (await front.chat("base")).status == 200
    assert limit_headers(await front.chat("contacts-v2")) == {}


async def test_several_gateways_go_by_their_shares(front: Front) -> None:
    """One of two lets in its part of the even half until it is told another share, and reports what it goes by."""
    limit(front, "tenant", requests_per_minute=8)
    front.gateway.update(msgspec.structs.replace(front.gateway.view, gateways=2))
    assert [(await ask(front)).status for _ in range(3)] == [200, 200, 429]
    limits = Limits(requests_per_minute=8)
    share = Limits(requests_per_minute=3)
    front.gateway.update_leases(Leases(7, {0: {"tenant acme": share}}, {"tenant acme": limits}))
    reply = await ask(front)
    assert (reply.status, limit_headers(reply)["remaining-requests"]) == (200, "0")
    report = front.gateway.report()
    assert (report.leases, report.held) == (7, {"tenant acme": share})
    assert report.used["tenant acme"].wanted == Limits(requests_per_minute=4)
