"""Response heads as bytes."""

from __future__ import annotations

from http import HTTPStatus

from tuneplex.errors import (
    ApiError,
    Conflict,
    DeadlineExceeded,
    MethodNotAllowed,
    Quarantined,
    RateLimited,
    Unauthorized,
)

__all__ = ["EVENT_STREAM", "JSON", "STATUS_LINES", "error_lines"]

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def error_lines(error: ApiError) -> bytes:
    """The header lines that belong to an error: when to come back or not to, what is allowed, what is needed."""
    lines = b"" if error.retry_after_s is None else b"retry-after: %d\r\n" % error.retry_after_s
    if isinstance(error, Conflict | DeadlineExceeded | Quarantined) or (isinstance(error, RateLimited) and not lines):
        lines += b"x-should-retry: false\r\n"  # OpenAI's clients would, twice, also after a 409, 502 or 504
    if isinstance(error, MethodNotAllowed) and error.allowed:
        lines += b"allow: %b\r\n" % ", ".join(error.allowed).encode()
    elif isinstance(error, Unauthorized):
        lines += b"www-authenticate: Bearer\r\n"
    return lines
