"""W3C trace context: what a client says of its trace is passed on to the engine, which may add its spans to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

__all__ = ["trace_lines"]

_IDS = rb"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_PARENT = re.compile(rb"00-%b|(?!00|ff)[0-9a-f]{2}-%b(?:-[!-~]{1,64})?" % (_IDS, _IDS))
_TRACE, _FLAGS, _FLAG = slice(2, 36), slice(52, 55), 54
_SAMPLED = b"13579bdf"
_STATE = re.compile(rb"[ -~]{1,512}")


def trace_lines(headers: Mapping[bytes, bytes], span: Callable[[], int] | None = None) -> bytes:
    """The header lines for a request to an engine; none where the client's make no sense (Trace Context, 3.2.2).

    Args:
        headers: The client's.
        span: Gives the id of the span that stands between, where there is one: the engine's are below that then.
    """
    parent = headers.get(b"traceparent")
    if parent is None or _PARENT.fullmatch(parent) is None:
        return b""
    if span is not None and parent[_FLAG] in _SAMPLED:
        parent = b"00" + parent[_TRACE] + b"%016x" % span() + parent[_FLAGS]
    state = headers.get(b"tracestate", b"")
    more = b"tracestate: %b\r\n" % state if _STATE.fullmatch(state) else b""
    return b"traceparent: %b\r\n%b" % (parent, more)
