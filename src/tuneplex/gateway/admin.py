"""The admin API on the gateway's port: what is sent on to control, and what its answer becomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

import msgspec

from tuneplex.errors import HeadTooLarge, Unavailable, UpstreamError, UpstreamTimeout
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.heads import STATUS_LINES
from tuneplex.identity import Principal
from tuneplex.log import get_logger

__all__ = ["AdminCall", "AdminReply", "AdminSource", "admin_call", "ask_control", "reply_lines"]

_log = get_logger(__name__)

_PREFIX = "/admin"
_SENT_ON = (b"accept", b"content-type")
_SENT_BACK = ("allow", "retry-after")
_FIRST_FINAL = 200
_LONGEST_TARGET = 16 * 1024  # escaped; no path of the admin API is nearly as long
# What a path and a query may hold beside letters and digits (RFC 3986), and what is escaped already.
_SAFE = "-._~!$&'()*+,;=:@/?%"


class AdminCall(msgspec.Struct, frozen=True):
    """What control is asked.

    Attributes:
        method: GET, POST …
        target: Path and query, without `/admin`.
        headers: Of the client's own only those that say what the body is and what is wanted; who asks is ours to say.
        body: As it came.
    """

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""


class AdminReply(msgspec.Struct, frozen=True):
    """What control answers; `headers` by lower-case name."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""


# Raises ConnectionError when control was not reached, TimeoutError when it did not answer in time, and any other
# OSError when it broke off, so that nobody knows what it did.
AdminSource = Callable[[AdminCall], Awaitable[AdminReply]]


def admin_call(exchange: Exchange, principal: Principal) -> AdminCall:
    """What a client's request asks of control. A HEAD is asked as a GET, to learn the body's length.

    Raises:
        HeadTooLarge: Nobody could be asked that.
    """
    path = quote(exchange.path.removeprefix(_PREFIX), _SAFE, "latin-1")
    query = quote(exchange.query, _SAFE, "latin-1")
    if len(path) + len(query) > _LONGEST_TARGET:
        raise HeadTooLarge("The path is too long.")
    headers = {name.decode(): exchange.headers[name].decode("latin-1") for name in _SENT_ON if name in exchange.headers}
    return AdminCall(
        method="GET" if exchange.method == "HEAD" else exchange.method,
        target=f"{path}?{query}" if query else path,
        headers={
            **headers,
            "x-request-id": exchange.request_id.decode(),
            "x-tuneplex-actor": principal.key_id,
        },
        body=exchange.body,
    )


async def ask_control(source: AdminSource | None, call: AdminCall) -> AdminReply:
    """Control's answer.

    Raises:
        Unavailable: Control is away; nothing was done.
        UpstreamTimeout: It did not answer in time.
        UpstreamError: It broke off, or answered something that is not an answer.
    """
    try:
        if source is None:
            raise ConnectionRefusedError("this gateway knows no control")
        reply = await source(call)
    except ConnectionError as error:
        _log.warning("control is away", method=call.method, target=call.target, error=error)
        raise Unavailable(
            "The fleet's control process does not answer.", code="control_away", retry_after_s=1
        ) from error
    except TimeoutError as error:
        raise UpstreamTimeout("The fleet's control process did not answer in time.", code="control_timeout") from error
    except OSError as error:
        _log.warning("control broke off", method=call.method, target=call.target, error=error)
        words = "The fleet's control process broke off its answer: it may have done what it was asked, or not."
        raise UpstreamError(words, code="control_broke_off") from error
    if reply.status < _FIRST_FINAL or reply.status not in STATUS_LINES:
        raise UpstreamError("The fleet's control process gave no answer.", code="control_broke_off")
    return reply


def reply_lines(reply: AdminReply) -> bytes:
    """The header lines of control's answer that mean something to the client."""
    lines = (f"{name}: {reply.headers[name]}\r\n" for name in _SENT_BACK if name in reply.headers)
    return "".join(lines).encode("latin-1")
