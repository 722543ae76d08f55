"""HTTP as the gateway speaks it: endpoints, a client for the hot path, SSE framing."""

from tuneplex.http.endpoint import Endpoint
from tuneplex.http.pool import Call, Pool
from tuneplex.http.sse import EventFramer, EventTooLargeError, end_of_events
from tuneplex.http.upstream import Broken, Receiver, Unreachable, UpstreamFault

__all__ = [
    "Broken",
    "Call",
    "Endpoint",
    "EventFramer",
    "EventTooLargeError",
    "Pool",
    "Receiver",
    "Unreachable",
    "UpstreamFault",
    "end_of_events",
]
