"""The exchange of a request whose reply is recorded: whoever answers it notices no difference."""

from __future__ import annotations

import re

from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.heads import EVENT_STREAM, JSON
from tuneplex.gateway.keyed import KEY
from tuneplex.gateway.recording import Recording
from tuneplex.types import Route

__all__ = ["Recorder", "is_proper"]

_OK = 200
_BORDER = b"\n\n"
_DONE = re.compile(rb"^data: ?\[DONE\]\s*\Z", re.MULTILINE)
_FAILED = re.compile(rb'^(?:event: ?(?:error|response\.failed)\r?$|data: ?\{"(?:error|type":"error")")', re.MULTILINE)
_CLOSED = re.compile(
    rb'^(?:event: ?response\.(?:completed|incomplete)\r?$|data: ?\{"type": ?"response\.(?:completed|incomplete)")',
    re.MULTILINE,
)


class Recorder(Exchange):
    """Takes the place of a client's exchange, and writes to a recording what the client would have got.

    Its client leaves when nobody reads the recording any more.
    """

    def __init__(self, exchange: Exchange, recording: Recording) -> None:
        headers = {name: value for name, value in exchange.headers.items() if name != KEY}
        super().__init__(recording, exchange.method, exchange.path, headers)
        self.query = exchange.query
        self.body, self.received = exchange.body, exchange.received
        self.request_id, self.extra = exchange.request_id, exchange.extra
        self.target, self.principal, self.callers = exchange.target, exchange.principal, exchange.callers
        self.started_s = exchange.started_s
        self.complete = True
        self._recording = recording
        self._beginning: tuple[int, bytes, bytes] | None = None
        recording.works = lambda: self.listener

    def leave(self) -> None:
        """Nobody wants the reply any more: stop working on it."""
        self.gone = True
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.client_gone()
        self._recording.end(broken=True)

    def reply(self, status: int, body: bytes, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """See `Exchange`."""
        self.status = status
        self.sent = len(body)
        self._head = b""
        self.listener = None
        self._recording.extra = self.extra
        self._recording.say(status, content_type, headers, body)

    def start(self, status: int, content_type: bytes, headers: bytes = b"") -> None:
        """See `Exchange`."""
        super().start(status, content_type, headers)
        self._beginning = (status, content_type, headers)

    def write(self, data: bytes, more: bytes = b"") -> None:
        """See `Exchange`. Comments are for those who wait now, so they are not kept."""
        data += more
        self.sent += len(data)
        self._begin()
        if data.startswith(b":") and self._recording.content_type == EVENT_STREAM and _is_one(data):
            self._recording.remark(data)
        else:
            self._recording.add(data)

    def finish(self, data: bytes = b"") -> None:
        """See `Exchange`."""
        self.sent += len(data)
        self.listener = None
        self._begin()
        if data:
            self._recording.add(data)
        self._recording.end()

    def cut(self) -> None:
        """See `Exchange`."""
        self.listener = None
        self._recording.end(broken=True)

    def _begin(self) -> None:
        """The head leaves with the first bytes of the body."""
        if self._beginning is not None:
            self._recording.extra = self.extra
            self._recording.begin(*self._beginning)
            self._beginning = None
            self._head = b""


def is_proper(route: Route, recording: Recording) -> bool:
    """Whether a recording that is over is a complete reply that has not failed, by what its readers see."""
    if recording.status != _OK or recording.broken:
        return False
    if recording.content_type != EVENT_STREAM:
        return True
    tail = b"".join(recording.tail)
    if _FAILED.search(tail) is not None:
        return False
    return _DONE.search(tail) is not None or (route is Route.RESPONSES and _CLOSED.search(tail) is not None)


def _is_one(data: bytes) -> bool:
    return data.find(_BORDER) == len(data) - len(_BORDER)
