"""Response heads as bytes."""

from __future__ import annotations

from http import HTTPStatus

__all__ = ["EVENT_STREAM", "JSON", "STATUS_LINES", "TEXT"]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
