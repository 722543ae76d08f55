"""Stands in front of an object store, notes what is asked of it, and lets it fail on demand."""

from __future__ import annotations

import contextlib
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Asked", "Proxy", "proxy"]


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        method: `GET` and so on.
        path: With the query.
        range: As the header says it, without `bytes=`.
        size: Of its body, bytes.
    """

    method: str
    path: str
    range: str
    size: int


@dataclass
class Proxy:
    """What was asked, and what fails.

    Attributes:
        url: Its address.
        asked: All requests in their order.
        cuts: End of a path -> after how many bytes of a reply's body the connection breaks, once each.
        refused: Method and end of a path -> a status that is answered instead, for as long as it stands here.
        damaged: Ends of paths whose bodies arrive with a wrong first byte.
        hidden: Headers of replies that are left out, in lower case.
        before: Called with each request before it is passed on; may return a status that is answered instead.
    """

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    refused: dict[tuple[str, str], int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    before: Callable[[Asked], int | None] = lambda _: None

    def gets(self, name: str) -> list[str]:
        """The ranges that were asked for of an object."""
        return [one.range for one in self.asked if one.method == "GET" and _path(one).endswith(f"/{name}")]

    def puts(self, name: str) -> list[Asked]:
        """What was sent of an object, part by part."""
        return [one for one in self.asked if one.method == "PUT" and _path(one).endswith(f"/{name}")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    front: Proxy
    target: str

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Keep quiet."""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        asked = Asked(self.command, self.path, self.headers.get("Range", "").removeprefix("bytes="), len(body))
        self.front.asked.append(asked)
        if status := self.front.before(asked):
            return self._reply(status, [], b"")
        for (method, end), status in self.front.refused.items():
            if method == self.command and _path(asked).endswith(end):
                return self._reply(status, [], b"")
        connection = HTTPConnection(urllib.parse.urlsplit(self.target).netloc, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            return self._answer(asked, reply.status, reply.getheaders(), reply.read())

    def _answer(self, asked: Asked, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        path = _path(asked)
        if body and any(path.endswith(f"/{name}") for name in self.front.damaged):
            body = bytes([body[0] ^ 1]) + body[1:]
        cuts = next((one for end, one in self.front.cuts.items() if path.endswith(f"/{end}") and one), None)
        if cuts and asked.method == "GET":
            self._head(status, headers, len(body))
            self.wfile.write(body[: cuts.pop(0)])
            self.close_connection = True
            return
        self._reply(status, headers, body)

    def _reply(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), len(body))
        self._head(status, headers, length if self.command == "HEAD" else len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: list[tuple[str, str]], length: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"content-length", "transfer-encoding", "connection"} | self.front.hidden:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


@contextlib.contextmanager
def proxy(target: str) -> Iterator[Proxy]:
    """One that passes everything on to `target` until it is told otherwise."""
    front = Proxy()
    methods = {f"do_{method}": _Handler._pass_on for method in ("GET", "HEAD", "PUT", "POST", "DELETE")}
    handler = type("Handler", (_Handler,), {"front": front, "target": target, **methods})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients that leave are part of the tests
        front.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield front
        server.shutdown()
        thread.join()


def _path(asked: Asked) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(asked.path).path)
