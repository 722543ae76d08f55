"""What the fuzzers of the engine's side share: a gateway between two connections that have no sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import h11
import msgspec
from uvicorn import Config
from uvicorn.server import ServerState

from tests.support.wire_fuzz import FAR, Wires
from tuneplex.gateway import ConnectionLimits, Gateway
from tuneplex.gateway.estimate import Estimate
from tuneplex.gateway.protocol import ClientConnection
from tuneplex.gateway.tokens import Pending, TokenCounter
from tuneplex.http import Call, Endpoint, Pool
from tuneplex.http.upstream import UpstreamConnection
from tuneplex.identity import Access, Limits
from tuneplex.types import FleetView, GatewaySettings, Model, Replica, Retries, Route

__all__ = ["NAME", "Answered", "Exchanged", "exchange"]

NAME = "legal@0123456789ab"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class EndWires(Wires):
    """A transport to an engine; what closes it tells its protocol, as asyncio would."""

    reading = True

    def is_reading(self) -> bool:
        """Whether it is not paused."""
        return self.reading

    def pause_reading(self) -> None:
        """Let the other side wait."""
        self.reading = False

    def resume_reading(self) -> None:
        """Go on."""
        self.reading = True


class Socketless(Pool):
    """A pool whose connections lead nowhere."""

    def __init__(self) -> None:
        super().__init__(Endpoint(host="engine.invalid", port=1))
        self.made: list[UpstreamConnection] = []

    def _connect(self, call: Call) -> None:
        connection = UpstreamConnection(self)
        connection.connection_made(cast("Any", EndWires()))
        self.made.append(connection)
        connection.begin(call)


class Answered(msgspec.Struct):
    """What the client got.

    Attributes:
        status: Of the reply.
        headers: Of it.
        body: Without framing.
        complete: It ended as HTTP wants.
        interim: Nothing but the reply came.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool

    @property
    def events(self) -> list[bytes]:
        """The data of the events, each with its lines joined."""
        text = self.body.replace(b"\r\n", b"\n")
        found = []
        for event in text.split(b"\n\n")[:-1]:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                found.append(b"\n".join(lines))
        return found


class Exchanged(msgspec.Struct):
    """One request and everything that came of it.

    Attributes:
        answered: What the client got.
        tries: How often the engine was asked.
        kept: How many connections to the engine wait for the next request.
        outcomes: How it was counted.
        asked: The body that the engine got; None when it was not asked.
        gaps: How many there were between the tokens of a stream, as they were counted.
    """

    answered: Answered
    tries: int
    kept: int
    outcomes: dict[str, int]
    asked: bytes | None
    gaps: int = 0


def exchange(
    route: Route,
    fields: dict[str, object] | bytes,
    replies: Sequence[Sequence[bytes]],
    *,
    base: str = "/v1",
    engine: str = "vllm",
    end: str = "eof",
    http: str = "1.1",
) -> Exchanged:
    """Send one request through a gateway to an engine that answers these pieces, and see that nothing is left behind.

    Args:
        route: Which.
        fields: Of its body, beside the model; or all of it.
        replies: What the engine answers, in pieces, to each request that it gets.
        base: Of the URL.
        engine: Its kind.
        end: What the engine does then: `eof`, `reset`, or `silence`.
        http: The version that the client speaks.
    """
    pool, gateway = _stage(engine)
    wires, state = Wires(), ServerState()
    client = ClientConnection(gateway, ConnectionLimits(), config=cast("Config", None), server_state=state)
    client.connection_made(cast("Any", wires))
    body = fields if isinstance(fields, bytes) else json.dumps({"model": "legal", **fields}).encode()
    head = f"POST {base}/{route.value} HTTP/{http}\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    client.data_received(head.encode() + body)
    cast("_Counter", gateway.counter).work()
    for number, pieces in enumerate(replies):
        if number >= len(pool.made):
            break
        _play(pool.made[number], pieces, end)
    gateway.tick(FAR)  # whoever has said nothing for so long is given up
    gateway.tick(2 * FAR)
    _nothing_is_left(gateway, pool)
    answered = _read(bytes(wires.written), http, closed=wires.closed)
    if not wires.closed and not wires.ended:
        before = len(wires.written)
        client.data_received(HEALTH)
        assert bytes(wires.written[before:]).endswith(b'{"status":"ok"}'), "the connection is of no more use"
    client.connection_lost(None)
    assert not state.connections
    msgspec.msgpack.encode(gateway.report())  # control gets it
    counts = gateway.report().counters["tuneplex_outcomes_total"]
    outcomes = {labels[2]: int(count) for labels, count in counts if count}
    assert sum(outcomes.values()) == bool(pool.made), outcomes
    gaps = sum(int(sum(numbers[:-1])) for _, numbers in gateway.report().buckets["tuneplex_inter_token_seconds"])
    return Exchanged(answered, len(pool.made), pool.idle, outcomes, _asked(pool), gaps)


def _stage(engine: str) -> tuple[Socketless, Gateway]:
    replica = Replica("r0", "default", engine, "http://engine.invalid:1", serves={NAME: NAME}, routes=frozenset(Route))
    model = Model("legal", NAME, "base", limits=Limits(concurrent=3, tokens_per_minute=2**50))
    once = GatewaySettings(retries=Retries(tries=1))
    view = FleetView(generation=1, models={"legal": model}, replicas=(replica,), settings=once)
    gateway = Gateway(0, view, Access())
    pool = Socketless()
    gateway._upstreams[replica].pool = pool
    # There is no event loop here: nothing is looked after later, and prompts are counted when it is asked for.
    cast("Any", gateway._doubts).doubt = lambda _: None
    gateway.counter = gateway._entrance._counter = cast("TokenCounter", _Counter())
    return pool, gateway


class _Counter:
    """Counts as the real one does, by the bytes, when `work` is called."""

    def __init__(self) -> None:
        self._due: list[Pending] = []

    def count(
        self,
        route: Route,
        fields: Mapping[str, msgspec.Raw],
        then: Callable[[Estimate], None],
        *,
        most: int | None = None,
    ) -> Pending:
        """Note what is to be counted."""
        self._due.append(Pending(route, fields, then, most))
        return self._due[-1]

    def work(self) -> None:
        """Count all of it."""
        due, self._due = self._due, []
        for pending in due:
            while not pending.step(None):
                pass
            pending.deliver()

    def use(self, path: str) -> None:
        """There is none."""


def _asked(pool: Socketless) -> bytes | None:
    if not pool.made:
        return None
    return bytes(cast("EndWires", pool.made[0].transport).written).partition(b"\r\n\r\n")[2]


def _play(connection: UpstreamConnection, pieces: Sequence[bytes], end: str) -> None:
    wires = cast("EndWires", connection.transport)
    for piece in pieces:
        if wires.closed:
            break
        connection.data_received(piece)
    if wires.closed:
        connection.connection_lost(None)
    elif end == "eof":
        connection.eof_received()
        wires.close()
        connection.connection_lost(None)
    elif end == "reset":
        wires.abort()
        connection.connection_lost(ConnectionResetError("reset by peer"))


def _nothing_is_left(gateway: Gateway, pool: Socketless) -> None:
    assert not gateway.ledger.relays
    assert not gateway.ledger.outstanding
    assert all(account.concurrent == 0 for account in gateway._admission._accounts.values())
    for connection in pool.made:
        assert connection.call is None
        assert connection.transport.is_closing() or connection in pool._idle, "a connection is lost"


def _read(data: bytes, http: str, *, closed: bool) -> Answered:
    """Read the reply with another parser than ours."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    answered = Answered(0, {}, b"", complete=False)
    ended = False
    while True:
        try:
            event = client.next_event()
        except h11.RemoteProtocolError:
            assert ended
            return answered
        if isinstance(event, h11.Response):
            answered.status = event.status_code
            answered.headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            answered.body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            answered.complete = http == "1.1" or "content-length" in answered.headers or closed
            assert not client.trailing_data[0]
            return answered
        elif event is h11.NEED_DATA:
            assert closed, "the client waits for ever"
            client.receive_data(b"")
            ended = True
        else:
            raise AssertionError(event)
