"""A collector of traces that takes OTLP over HTTP, as a real one does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

__all__ = ["Receiver", "receiving"]


class Receiver:
    """What has come.

    Attributes:
        url: Where to send it.
        spans: All of them.
        resource: What they say of who has sent them.
        status: What is answered.
        headers: Of the last request.
    """

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.resource: dict[str, str] = {}
        self.status = 200
        self.headers: dict[str, str] = {}

    def take(self, data: bytes) -> None:
        """Take a request's body."""
        for told in ExportTraceServiceRequest.FromString(data).resource_spans:
            self.resource = {one.key: one.value.string_value for one in told.resource.attributes}
            for scope in told.scope_spans:
                self.spans.extend(scope.spans)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A collector, for as long as the block runs."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            receiver.headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path == "/v1/traces" and receiver.status == 200:
                receiver.take(data)
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
