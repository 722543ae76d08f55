"""A gateway in front of FakeEngines, in this process, and a client that sees every byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Self

import msgspec

from tuneplex.gateway import AdminCall, AdminReply, ConnectionLimits, Gateway, Replies, serve
from tuneplex.identity import Access
from tuneplex.journal import Journal
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import FleetView, GatewaySettings, Model, Replica

__all__ = ["Front", "Http", "Response", "chat", "open_front", "scripted", "view_of"]

VERSIONS = {"contacts": "contacts@0123456789ab", "contacts-v2": "contacts-v2@ba9876543210"}


class Response:
    """A whole reply.

    Attributes:
        status: The HTTP status.
        headers: By lower-case name.
        body: Without chunk framing.
        complete: It ended as HTTP wants.
    """

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.body = b""
        self.complete = False

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever the gateway answers
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def error(self) -> Any:  # noqa: ANN401 - the same
        """The error in the body; its shape is checked."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[str]:
        """The data of the server-sent events."""
        events = self.body.decode().replace("\r\n", "\n").split("\n\n")
        assert events.pop() == "", "the last event is cut"
        return [line.removeprefix("data: ") for event in events for line in event.split("\n") if "data: " in line]

    @property
    def text(self) -> str:
        """What a chat stream says."""
        chunks = [json.loads(event) for event in self.events if event != "[DONE]"]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk.get("choices"))


class Http:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    def post(self, path: str, body: object, **headers: str) -> None:
        """Send a JSON request; underscores in header names stand for dashes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.request("POST", path, data, **headers)

    def request(self, method: str, path: str, data: bytes = b"", **headers: str) -> None:
        """Send a request."""
        lines = [f"{method} {path} HTTP/1.1", "host: gateway", f"content-length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def head(self) -> Response:
        """Read the head of a reply."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if line)
        return Response(int(first.split(" ")[1]), headers)

    async def chunk(self) -> bytes:
        """Read one chunk of a body; the last one is empty."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def response(self, *, body: bool = True) -> Response:
        """Read a whole reply, or what there is of it."""
        response = await self.head()
        if not body or response.status == 204:
            return response
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if "content-length" in response.headers:
                response.body = await self.reader.readexactly(int(response.headers["content-length"]))
            else:
                while data := await self.chunk():
                    response.body += data
            response.complete = True
        return response

    async def closed(self) -> bool:
        """Whether the gateway ends the connection."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        """Leave."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Front:
    """A running gateway.

    Attributes:
        gateway: Itself.
        port: Where it listens on loopback.
        stop: Ends it.
    """

    def __init__(self, gateway: Gateway, port: int, stop: asyncio.Event) -> None:
        self.gateway = gateway
        self.port = port
        self.stop = stop
        self._connections: list[Http] = []

    async def connect(self) -> Http:
        """Open a connection; it is closed at the end of the test."""
        connection = Http(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))
        self._connections.append(connection)
        return connection

    async def post(self, path: str, body: object, **headers: str) -> Response:
        """Send one request on a connection of its own."""
        http = await self.connect()
        http.post(path, body, **headers)
        return await http.response()

    async def get(self, path: str, **headers: str) -> Response:
        """Get one page on a connection of its own."""
        http = await self.connect()
        http.request("GET", path, b"", **headers)
        return await http.response()

    async def chat(self, model: str = "contacts", **fields: object) -> Response:
        """Ask for a chat completion on a connection of its own."""
        return await self.post("/v1/chat/completions", chat(model, **fields))

    def settings(self, **fields: object) -> None:
        """Change the gateway's settings while it runs."""
        view = self.gateway.view
        settings = msgspec.structs.replace(view.settings, **fields)
        self.gateway.update(msgspec.structs.replace(view, settings=settings))

    def outcomes(self) -> dict[str, float]:
        """How many requests for models ended in which way."""
        sums: dict[str, float] = {}
        for labels, count in self.gateway.report().counters["tuneplex_outcomes_total"]:
            sums[labels[2]] = sums.get(labels[2], 0) + count
        return sums

    def answered(self) -> dict[tuple[str, str], float]:
        """How many requests were answered, by model and class of status."""
        sums: dict[tuple[str, str], float] = {}
        for (_route, model, status), count in self.gateway.report().counters["tuneplex_requests_total"]:
            sums[model, status] = sums.get((model, status), 0) + count
        return sums

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections:
            await connection.close()


def scripted(value: object) -> str | None:
    """A short name for a test by its `Script`: what differs from a healthy engine."""
    if not isinstance(value, Script):
        return None
    fields = {name: field for name, field in msgspec.structs.asdict(value).items() if field != getattr(Script(), name)}
    return ",".join(f"{name}={field}"[:40] for name, field in fields.items())


def chat(model: str = "contacts", **fields: object) -> dict[str, object]:
    """A request for a chat completion."""
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, **fields}


def view_of(
    engines: Iterable[FakeEngine], settings: GatewaySettings | None = None, *, tries: int = 1, tokenizer: str = ""
) -> FleetView:
    """A fleet of these engines, each with all models; `gpt-4o` is an alias. What fails is not sent again."""
    settings = settings or GatewaySettings()
    retries = msgspec.structs.replace(settings.retries, tries=tries)
    serves = {"base": "base"} | {version: version for version in VERSIONS.values()}
    models = {name: Model(name, version, "base") for name, version in VERSIONS.items()}
    replicas = [
        Replica(f"r{number}", "default", "vllm", engine.endpoint, serves=serves)
        for number, engine in enumerate(engines)
    ]
    return FleetView(
        generation=1,
        models={"base": Model("base", "base")} | models,
        aliases={"gpt-4o": "contacts"},
        replicas=tuple(replicas),
        settings=msgspec.structs.replace(settings, retries=retries),
        tokenizer=tokenizer,
    )


@contextlib.asynccontextmanager
async def open_front(
    view: FleetView,
    access: Access | None = None,
    *,
    admin: Callable[[AdminCall], Awaitable[AdminReply]] | None = None,
    metrics: Callable[[], Awaitable[bytes]] | None = None,
    replies: Replies | None = None,
    journal: Journal | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    limits: ConnectionLimits | None = None,
    drain_s: int = 1,
) -> AsyncIterator[Front]:
    """Serve `view` on a free port; without `access` there are no keys and nobody needs one."""
    gateway = Gateway(
        0, view, access or Access(), metrics_source=metrics, admin=admin, replies=replies, journal=journal
    )
    stop = asyncio.Event()
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    serving = asyncio.create_task(
        serve(gateway, sock, tls_cert=tls_cert, tls_key=tls_key, stop=stop, drain_s=drain_s, limits=limits)
    )
    try:
        async with Front(gateway, port, stop) as front:
            yield front
    finally:
        stop.set()
        await serving
