"""The admin API on the gateway's port: what reaches control, and what becomes of its answers and faults."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.front import Front, chat, open_front, view_of
from tests.support.identities import access_of, bearer, key_of
from tuneplex.app import control_client
from tuneplex.app.control_client import ControlClient
from tuneplex.gateway import AdminCall, AdminReply
from tuneplex.identity import Scope
from tuneplex.testing import FakeEngine
from tuneplex.testing.wire import Exchange, Wire, bind

ACCESS = access_of(key_of("boss", scopes=(Scope.ADMIN,)), key_of("user"))
BOSS = bearer("boss")


class Control:
    """What listens on the admin socket: it remembers what it was asked, and answers as it is told.

    Attributes:
        asked: Every request so far.
        answer: How the next ones are answered.
        arrived: Set when a request has come.
    """

    def __init__(self) -> None:
        self.asked: list[Exchange] = []
        self.answer: Callable[[Exchange], Awaitable[None]] = json_answer()
        self.arrived = asyncio.Event()

    async def handle(self, exchange: Exchange) -> None:
        """Remember, then answer."""
        self.asked.append(exchange)
        self.arrived.set()
        await self.answer(exchange)


def json_answer(
    status: int = 200, body: bytes = b'{"ok":true}', **headers: str
) -> Callable[[Exchange], Awaitable[None]]:
    """An answer with JSON."""

    async def answer(exchange: Exchange) -> None:
        lines = [("content-type", "application/json"), *((name.replace("_", "-"), v) for name, v in headers.items())]
        exchange.start(status, lines, length=len(body))
        exchange.send(body)

    return answer


@pytest.fixture
def path() -> Iterator[Path]:
    """A path short enough for a socket."""
    with TemporaryDirectory(prefix="tp", dir="/tmp") as directory:
        yield Path(directory) / "admin.sock"


@contextlib.asynccontextmanager
async def listening(control: Control, path: Path) -> AsyncIterator[Wire]:
    """Control's socket is open for as long as the block runs."""
    wire = Wire(control.handle, keep_alive_s=5)
    await wire.listen(bind("", 0, str(path)))
    try:
        yield wire
    finally:
        await wire.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - it takes no time that matters


@pytest.fixture
async def control(path: Path) -> AsyncIterator[Control]:
    """A control that answers."""
    control = Control()
    async with listening(control, path):
        yield control


@pytest.fixture
async def front(engine: FakeEngine, path: Path) -> AsyncIterator[Front]:
    """A gateway that knows the way to control, whether or not anybody is there."""
    async with ControlClient(path) as client, open_front(view_of([engine]), ACCESS, admin=client.admin) as front:
        yield front


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
async def test_a_request_reaches_control_as_it_came(front: Front, control: Control, method: str) -> None:
    """Method, path, query and body go on; control hears which key it was, in a header that clients cannot choose."""
    http = await front.connect()
    body = b'{"name":"acme"}'
    http.request(
        method,
        "/admin/keys/a%2Fb?tenant=acme&all=1&x=%3F",
        body,
        **BOSS,
        content_type="application/json",
        x_tuneplex_actor="id-somebody-else",
        x_request_id="trace-1",
        cookie="a=b",
        te="trailers",
        connection="keep-alive, x-mine",
        x_mine="1",
    )
    reply = await http.response()
    assert (reply.status, reply.json) == (200, {"ok": True})
    asked = control.asked[0]
    assert (asked.method, asked.target, asked.body) == (method, "/keys/a%2Fb?tenant=acme&all=1&x=%3F", body)
    assert asked.headers["x-tuneplex-actor"] == "id-boss"
    assert asked.headers["x-request-id"] == reply.headers["x-request-id"] == "trace-1"
    assert asked.headers["content-type"] == "application/json"
    assert not {"authorization", "cookie", "te", "x-mine"} & set(asked.headers)
    assert "boss" not in str({name: value for name, value in asked.headers.items() if name != "x-tuneplex-actor"})


async def test_a_head_has_the_length_of_the_get(front: Front, control: Control) -> None:
    """Control is asked for the whole page, the client gets its head, and the connection stays usable."""
    http = await front.connect()
    http.request("HEAD", "/admin/status", b"", **BOSS)
    http.request("GET", "/admin/status", b"", **BOSS)
    head = await http.response(body=False)
    assert head.headers["content-length"] == (await http.response()).headers["content-length"] == "11"
    assert [asked.method for asked in control.asked] == ["GET", "GET"]


@pytest.mark.parametrize(
    "status, body", [(201, b'{"secret":"tpx"}'), (204, b""), (400, b"{}"), (404, b"{}"), (409, b"{}"), (503, b"{}")]
)
async def test_an_answer_comes_back_as_it_is(front: Front, control: Control, status: int, body: bytes) -> None:
    """Status, body and what kind of body it is, and when to come back; other headers are control's own business."""
    control.answer = json_answer(status, body, retry_after="7", x_inner="1")
    reply = await front.post("/admin/tenants", {"name": "acme"}, **BOSS)
    assert (reply.status, reply.body) == (status, body)
    assert reply.headers["retry-after"] == "7"
    assert "x-inner" not in reply.headers
    assert reply.headers.get("content-type") == (None if status == 204 else "application/json")


@pytest.mark.parametrize(
    "headers, status, code",
    [({}, 401, "missing_api_key"), (bearer("nobody"), 401, "invalid_api_key"), (bearer("user"), 403, "scope_missing")],
)
async def test_control_hears_nothing_of_those_who_may_not(
    front: Front, control: Control, headers: dict[str, str], status: int, code: str
) -> None:
    """Without a key, with a wrong one or with one for something else a request ends at the gateway."""
    for method in ("GET", "POST", "DELETE"):
        http = await front.connect()
        http.request(method, "/admin/keys", b"", **headers)
        reply = await http.response()
        assert (reply.status, reply.error["code"]) == (status, code)
    assert control.asked == []


async def test_an_open_fleet_has_no_admin_on_its_port(front: Front, control: Control) -> None:
    """Who needs no key to use the fleet still needs one to administer it."""
    front.gateway.update_access(access_of())
    assert (await front.post("/v1/chat/completions", chat())).status == 200
    for headers in ({}, BOSS):
        reply = await front.get("/admin/keys", **headers)
        assert (reply.status, reply.error["code"]) == (401, "missing_api_key")
    assert control.asked == []


async def test_a_control_that_is_away_comes_back(front: Front, path: Path) -> None:
    """While it is away the reply says when to try again, and it is found again as soon as it is there."""
    for control in (Control(), Control()):
        away = await front.post("/admin/keys", {}, **BOSS)
        assert (away.status, away.error["code"]) == (503, "control_away")
        assert int(away.headers["retry-after"]) >= 1
        assert str(path) not in away.body.decode()
        async with listening(control, path):
            assert (await front.post("/admin/keys", {}, **BOSS)).status == 200
        assert len(control.asked) == 1


async def reset(exchange: Exchange) -> None:
    """Break off without a word."""
    exchange.reset()


async def cut(exchange: Exchange) -> None:
    """Break off in the body."""
    exchange.start(200, [("content-type", "application/json")], length=100)
    exchange.send(b'{"half":')
    exchange.close()


async def noise(exchange: Exchange) -> None:
    """Answer something that is not HTTP."""
    exchange.write(b"what?\r\n\r\n")
    exchange.close()


@pytest.mark.parametrize("fault", [reset, cut, noise])
async def test_a_control_that_breaks_off(
    front: Front, control: Control, fault: Callable[[Exchange], Awaitable[None]]
) -> None:
    """The client hears that it may have been done, for repeating it blindly could make a second key."""
    control.answer = fault
    reply = await front.post("/admin/keys", {"tenant": "acme"}, **BOSS)
    assert (reply.status, reply.error["code"]) == (502, "control_broke_off")
    assert "retry-after" not in reply.headers
    control.answer = json_answer()
    assert (await front.get("/admin/keys", **BOSS)).status == 200


async def test_a_control_that_is_silent(front: Front, control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while the client hears so, and other requests do not wait meanwhile."""
    monkeypatch.setattr(control_client, "_ADMIN_TIMEOUT_S", 0.3)
    over = asyncio.Event()

    async def wait(_exchange: Exchange) -> None:
        await over.wait()

    control.answer = wait
    http = await front.connect()
    http.request("GET", "/admin/status", b"", **BOSS)
    await control.arrived.wait()
    assert (await front.post("/v1/chat/completions", chat(), **bearer("user"))).status == 200
    reply = await http.response()
    assert (reply.status, reply.error["code"]) == (504, "control_timeout")
    over.set()


async def test_a_client_that_leaves_does_not_undo_what_it_asked(front: Front, control: Control) -> None:
    """Control goes on with what it has begun, and nothing is left of the request."""
    over = asyncio.Event()

    async def late(exchange: Exchange) -> None:
        await over.wait()
        await json_answer()(exchange)

    control.answer = late
    http = await front.connect()
    http.request("POST", "/admin/keys", b"{}", **BOSS)
    await control.arrived.wait()
    await http.close()
    await asyncio.sleep(0.05)
    assert not control.asked[0].gone.is_set()
    over.set()
    while front.gateway._site.tasks:  # noqa: ASYNC110 - that nothing is left is what is tested
        await asyncio.sleep(0.01)
    assert (await front.get("/health")).status == 200


async def test_bodies_have_the_gateways_limit(front: Front, control: Control) -> None:
    """A body over the limit is refused before control hears of it."""
    front.settings(max_body=1000)
    reply = await front.post("/admin/apply", b"x" * 1001, **BOSS)
    assert reply.status == 413
    assert control.asked == []


async def test_web_pages_may_administer_as_they_may_call(front: Front, control: Control) -> None:
    """A preflight needs no key and allows the methods that admins need; the reply can be read by the page."""
    front.settings(cors_origins=("https://app.example",))
    http = await front.connect()
    http.request("OPTIONS", "/admin/keys/k1", origin="https://app.example", access_control_request_method="DELETE")
    preflight = await http.response()
    assert preflight.status == 204
    assert "DELETE" in preflight.headers["access-control-allow-methods"]
    assert control.asked == []
    reply = await front.get("/admin/keys", origin="https://app.example", **BOSS)
    assert reply.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize(
    "target, expected",
    [
        ("/admin/../metrics", "/metrics"),
        ("/admin//evil.example/x", "//evil.example/x"),
        ("/admin/@evil.example/x", "/@evil.example/x"),
        ("http://gateway/admin/keys?a=b", "/keys?a=b"),
        ("/admin/%e2%82%ac?%41=%e9", "/%e2%82%ac?%41=%e9"),
        ("/admin/keys?", "/keys"),
        ("/admin/keys?a?b", "/keys?a?b"),
    ],
)
async def test_odd_targets_reach_control_and_nobody_else(
    front: Front, control: Control, target: str, expected: str
) -> None:
    """Whatever a path looks like, it goes to the one socket, and control decides what it means."""
    http = await front.connect()
    http.request("GET", target, b"", **BOSS)
    assert (await http.response()).status == 200
    assert control.asked[0].target == expected


async def test_a_gateway_without_a_control(engine: FakeEngine) -> None:
    """A gateway by itself has nobody to ask and says so, and an answer that is none is no answer."""

    async def odd(_call: AdminCall) -> AdminReply:
        return AdminReply(799)

    async def broken(_call: AdminCall) -> AdminReply:
        raise RuntimeError("a defect")

    for source, status in ((None, 503), (odd, 502), (broken, 500)):
        async with open_front(view_of([engine]), ACCESS, admin=source) as front:
            reply = await front.get("/admin/keys", **BOSS)
            assert reply.status == status
            assert reply.error["message"]


async def test_the_fleets_numbers_come_from_control(engine: FakeEngine, control: Control, path: Path) -> None:
    """While control is there its page is shown, and when it fails the gateway's own."""
    async with ControlClient(path) as client, open_front(view_of([engine]), metrics=client.metrics) as front:
        control.answer = json_answer(200, b"fleet 1\n")
        assert (await front.get("/metrics")).body == b"fleet 1\n"
        for answer in (json_answer(500, b""), reset, noise):
            control.answer = answer
            page = await front.get("/metrics")
            assert page.status == 200
            assert b"tuneplex_requests_total" in page.body


async def test_odd_headers_go_on_as_they_came(control: Control, path: Path) -> None:
    """Bytes that are no letters are control's to judge, and no defect of the gateway's."""
    async with ControlClient(path) as client:
        reply = await client.admin(AdminCall("GET", "/status", {"accept": "a\x80\xff"}))
    assert reply.status == 200
    assert control.asked[0].headers["accept"] == "a\x80\xff"


@pytest.mark.parametrize(
    "odd", ['/"', "/<>", "/a/../../b", "//host/keys", "/%00", "/%ff", "/a;b", "/?x={y}", "/\\", "/@h:1/", "/#x"]
)
async def test_no_path_leads_anywhere_but_to_control(front: Front, control: Control, odd: str) -> None:
    """However odd it is, it is asked of control's own socket, or refused."""
    reply = await front.get(f"/admin{odd}", **BOSS)
    assert reply.status in {200, 400}
    if reply.status == 200:
        (asked,) = control.asked
        assert asked.target.startswith("/")
        assert asked.headers["host"] == "control"


async def test_a_path_that_nobody_could_be_asked_is_refused(front: Front, control: Control) -> None:
    """Nothing was done, and the error does not leave that open."""
    for path in ("/admin/" + "a" * 20_000, "/admin/keys?x=" + '"' * 10_000):
        reply = await front.get(path, **BOSS)
        assert reply.status == 431
        assert reply.error["message"] == "The path is too long."
    assert not control.asked
