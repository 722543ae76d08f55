"""What engines that speak OpenAI's API have in common: bodies and errors as bytes."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from tuneplex.errors import ApiError, EngineRefused, Unavailable, UpstreamError
from tuneplex.policy import End

__all__ = ["engine_error", "error_end", "stream_end", "stream_error", "with_fields"]

_TEXT_LIMIT = 2000
_STATUS_DIGITS = 3

_BAD_REQUEST = 400
_CREDENTIALS = frozenset({401, 403})
_NOT_FOUND = 404
_UNPROCESSABLE = 422
_TOO_MANY = 429
_CLIENT_ERRORS = range(400, 500)
_FAILURES_PASSED_ON = frozenset({500, 501})
_NOT_IMPLEMENTED = 501
_UNAVAILABLE = 503
_UNAVAILABLES = frozenset({502, 503, 504})
_STATUSES = frozenset(status.value for status in HTTPStatus)

# vLLM's `EngineDeadError`: its API server ends soon after it has said so.
_DEAD = "EngineCore encountered an issue"
# What is said of a prompt that is too long; some servers say it with a 500.
_TOO_LONG = ("maximum context length", "maximum model length", "context window", "prompt is too long")

_object = msgspec.json.Decoder(dict[str, object])


# --- requests


def with_fields(fields: dict[str, msgspec.Raw], **new: str) -> bytes:
    """The JSON object with these fields, of which some are set to other values.

    The other fields are copied as they came. A field that was repeated or spelt unusually is gone for good, so the
    model that was checked is the only one that the engine can find.
    """
    return msgspec.json.encode({**fields, **new})


# --- errors


class _Told(msgspec.Struct):
    """What an error reply tells, whichever shape it has."""

    message: str = ""
    kind: str | None = None
    param: str | None = None
    code: str | None = None


def engine_error(status: int, body: bytes, *, name: str, shown: str) -> ApiError:
    """Put an engine's error reply into OpenAI's shape; see `Dialect.error`."""
    told = _renamed(_told(body), name, shown)
    if status in _CREDENTIALS:
        return UpstreamError("The engine refused the gateway's own credentials.", code="engine_credentials")
    if status == _NOT_FOUND:
        return _not_found(told, shown)
    if status in _CLIENT_ERRORS:
        return _refusal(status, told)
    if status == _UNAVAILABLE:
        return Unavailable("The engine cannot take requests at the moment.", code="engine_unavailable", retry_after_s=1)
    if status in _FAILURES_PASSED_ON:
        return EngineRefused(status, "server_error", "The engine failed at this request.", code="engine_error")
    return UpstreamError(f"The engine answered with the unexpected status {status}.", code="engine_error")


def error_end(status: int, body: bytes) -> End:
    """How a try ended that was answered with this error; see `Dialect.error_end`."""
    if status == _TOO_MANY:
        return End.BUSY
    if status in _UNAVAILABLES:
        return End.UNAVAILABLE
    if status in _CLIENT_ERRORS or status == _NOT_IMPLEMENTED:
        return End.REFUSED
    return _failure(_told(body).message)


def stream_end(event: bytes) -> End:
    """How a try ended that had this error event in its stream; see `Dialect.stream_end`."""
    status, body = _event(event)
    return error_end(status, body)


def _failure(message: str) -> End:
    if _DEAD in message:
        return End.DEAD
    return End.REFUSED if any(words in message for words in _TOO_LONG) else End.FAILED


def _event(event: bytes) -> tuple[int, bytes]:
    """Of an error event the status that it holds, or 0, and its JSON."""
    body = event.partition(b"\n")[0].partition(b":")[2].strip()
    code = _told(body).code or ""
    return int(code) if code.isdecimal() and len(code) == _STATUS_DIGITS else 0, body


def stream_error(event: bytes, *, name: str, shown: str) -> ApiError:
    """Put an error event of a stream, `data: {…}`, into OpenAI's shape; see `Dialect.stream_error`."""
    status, body = _event(event)
    if status in _CLIENT_ERRORS:
        return engine_error(status, body, name=name, shown=shown)
    return EngineRefused(500, "server_error", "The engine failed during this reply.", code="engine_error")


def _not_found(told: _Told, shown: str) -> ApiError:
    """A model that has just gone can come back; a route that the engine does not have cannot."""
    if "does not exist" in told.message:
        return Unavailable(
            f"The model `{shown}` is not loaded at the moment.", code="model_not_loaded", retry_after_s=1
        )
    return EngineRefused(
        _NOT_FOUND,
        "invalid_request_error",
        f"The engine does not offer this route for the model `{shown}`.",
        code="route_not_offered",
    )


def _refusal(status: int, told: _Told) -> ApiError:
    """A request that the engine finds wrong: its own words help."""
    if status == _UNPROCESSABLE or status not in _STATUSES:
        status = _BAD_REQUEST
    return EngineRefused(
        status,
        "rate_limit_error" if status == _TOO_MANY else "invalid_request_error",
        told.message or f"The engine refused the request with the status {status}.",
        param=told.param,
        code=None if told.code is None or told.code.isdecimal() else told.code,
        retry_after_s=1 if status == _TOO_MANY else None,
    )


def _renamed(told: _Told, name: str, shown: str) -> _Told:
    return msgspec.structs.replace(told, message=told.message.replace(name, shown))


def _told(body: bytes) -> _Told:
    """Read OpenAI's shape, the flat one, FastAPI's `detail`, or plain text."""
    try:
        reply = _object.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return _Told()  # HTML or text of some other server: not for clients
    error = reply.get("error", reply)
    if isinstance(error, str):
        return _Told(message=error[:_TEXT_LIMIT])
    if not isinstance(error, dict):
        return _Told()
    return _Told(
        message=(_text(error.get("message")) or _detail(error.get("detail")))[:_TEXT_LIMIT],
        kind=_text(error.get("type")) or None,
        param=_text(error.get("param")) or None,
        code=_text(error.get("code")) or None,
    )


def _text(value: object) -> str:
    return str(value) if isinstance(value, (str, int)) else ""


def _detail(value: object) -> str:
    """FastAPI's `detail`: a text, or a list of `{"loc": […], "msg": "…"}`."""
    if not isinstance(value, list):
        return _text(value)
    entries = (entry for entry in value if isinstance(entry, dict))
    return "; ".join(f"{_place(entry.get('loc'))}: {entry.get('msg', '')}" for entry in entries)


def _place(loc: object) -> str:
    return ".".join(map(str, loc)) if isinstance(loc, list) else _text(loc)
