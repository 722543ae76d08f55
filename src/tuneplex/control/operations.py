"""One operation of the admin API: what it takes and gives, and how a request becomes a call of it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tuneplex.errors import (
    ApiError,
    BadRequest,
    MethodNotAllowed,
    NotFound,
    StoreConflict,
    StoreError,
    StoreMissing,
    Unavailable,
)

__all__ = ["JSON", "LOCAL_ACTOR", "Call", "Conflict", "Noted", "Operation", "Query", "handlers", "not_kept", "routes"]

JSON = "application/json"
LOCAL_ACTOR = "local"  # whoever can open the Unix socket runs the fleet
_ACTOR_HEADER = "x-tuneplex-actor"
_LONGEST_ACTOR = 64
_METHOD_NOT_ALLOWED = 405
_NO_CONTENT = 204
_DEFECT = 500
_RETRY_AFTER_S = 2
_AT_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_MONEY = "limits.money_per_month"
_AT_FIELD = re.compile(r"(?:unknown|missing required) field `(?P<name>[^`]*)`")


class Conflict(ApiError):
    """Something stands against it as things are now."""

    status = 409
    kind = "invalid_request_error"


class Query(msgspec.Struct, frozen=True):
    """One parameter in a URL's query: `1` for yes where it is a flag, else any text."""

    name: str
    summary: str
    flag: bool = False


class Call(msgspec.Struct, frozen=True):
    """One request for an operation.

    Attributes:
        path: The variable parts of the path.
        query: The query's parameters.
        body: The decoded body, of the type that the operation takes.
        actor: Who asks: the id of a key, or `LOCAL_ACTOR`.
    """

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    actor: str

    def flag(self, name: str) -> bool:
        """Whether a flag of the query is set.

        Raises:
            BadRequest: It is neither yes nor no.
        """
        given = self.query.get(name, "")
        if given not in {"", "0", "1"}:
            raise BadRequest(f"`{name}` is 0 or 1, not {given!r}", param=name)
        return given == "1"


class Operation(msgspec.Struct, frozen=True):
    """One method on one path.

    Attributes:
        method: `GET`, `POST`, …
        path: Variable parts in braces.
        name: Unique; what clients generated from the document call it.
        summary: One line for people.
        run: Does it. What it returns is the answer: a value to be written as JSON, or bytes.
        body: The type of the request's body, if it has one.
        answer: The type of the answer, if it has one.
        status: Of a success.
        errors: Statuses of the failures that belong to it.
        query: The parameters that it knows.
        media: The answer's media type.
        tells: What the audit log is told of a call and its answer (None if it failed) besides path and query.
    """

    method: str
    path: str
    name: str
    summary: str
    run: Callable[[Call], Awaitable[Any]]
    body: Any = None
    answer: Any = None
    status: int = 200
    errors: tuple[int, ...] = ()
    query: tuple[Query, ...] = ()
    media: str = JSON
    tells: Callable[[Call, Any], dict[str, str]] | None = None


Noted = Callable[[Operation, Call, int, Any], Awaitable[None]]
"""Called with each call of an operation when it is over, and with its status and answer; None if it failed."""


def routes(operations: Iterable[Operation], noted: Noted | None = None) -> list[Route]:
    """A route for each path: with one for each method, `allow` would name only the first one's."""
    told = noted or _not_noted
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [Route(path, _endpoint(methods, told), methods=list(methods)) for path, methods in by_path.items()]


async def _not_noted(*_: object) -> None:
    """Nobody wants to know."""


def _endpoint(methods: Mapping[str, Operation], noted: Noted) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        operation = methods["GET" if request.method == "HEAD" else request.method]
        call = await _call(operation, request)
        try:
            answer = await operation.run(call)
        except Exception as error:
            await noted(operation, call, _status_of(error), None)
            raise
        await noted(operation, call, operation.status, answer)
        return _response(operation, answer)

    return endpoint


async def _call(operation: Operation, request: Request) -> Call:
    known = {query.name for query in operation.query}
    for name in request.query_params:
        if name not in known:
            raise BadRequest(f"{operation.method} {operation.path} knows no parameter {name!r}", param=name)
    return Call(
        path=request.path_params,
        query=dict(request.query_params),
        body=None if operation.body is None else decoded(await request.body(), operation.body),
        actor=_actor(request.headers.get(_ACTOR_HEADER)),
    )


def _actor(header: str | None) -> str:
    """Who asks. It ends up in the log, so it must not be able to make up a line of it."""
    if header is None:
        return LOCAL_ACTOR
    return "".join(char for char in header if char.isprintable())[:_LONGEST_ACTOR] or "?"


def decoded(body: bytes, kind: Any) -> Any:  # noqa: ANN401 - the operation's own type
    """The body as a value. An empty one stands for an empty object.

    Raises:
        BadRequest: It is not such a value; `param` is the path of the field at fault.
    """
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        words, param = _explained(str(error))
        raise BadRequest(words, param=param) from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


def _explained(words: str) -> tuple[str, str | None]:
    """What a validation error says, and the path of the field that it says it of."""
    at, named = _AT_PATH.search(words), _AT_FIELD.search(words)
    path = [] if at is None else [at["path"]]
    if named is not None:
        path.append(named["name"])
    param = ".".join(path)
    if param == _MONEY:  # a pattern helps nobody, and a number here is a common slip
        return 'money is a decimal as text, with 12 decimals at most, for instance "25.00"; null for no limit', param
    return _AT_PATH.sub("", words), param or None


def _response(operation: Operation, answer: Any) -> Response:  # noqa: ANN401 - the operation's own type
    if operation.status == _NO_CONTENT:
        return Response(status_code=_NO_CONTENT)
    content = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    return Response(content, status_code=operation.status, media_type=operation.media)


def not_kept(error: OSError) -> Unavailable:
    """The answer where the state directory cannot be written, on a full disk above all."""
    words = f"the state directory cannot be written ({error.strerror or error}); nothing was changed"
    return Unavailable(words, code="not_kept", retry_after_s=_RETRY_AFTER_S)


def handlers() -> dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]:
    """What becomes of exceptions: all of them are answered in OpenAI's shape."""
    return {ApiError: _api_error, StoreError: _store_error, HTTPException: _http_error, Exception: _api_error}


def _status_of(error: Exception) -> int:
    """What the caller is told."""
    if isinstance(error, StoreError):
        return _of_store(error).status
    return error.status if isinstance(error, ApiError) else _DEFECT


async def _api_error(_request: Request, error: Exception) -> Response:
    return _failure(error if isinstance(error, ApiError) else ApiError("control failed at this; its log says more"))


async def _store_error(_request: Request, error: Exception) -> Response:
    return _failure(_of_store(error))


def _of_store(error: Exception) -> ApiError:
    if isinstance(error, StoreMissing):
        return NotFound(str(error))
    if isinstance(error, StoreConflict):
        return Conflict(str(error))
    hint = error.hint if isinstance(error, StoreError) else ""
    words = "; ".join(filter(None, (str(error), hint, "nothing was changed")))
    return Unavailable(words, code="store_down", retry_after_s=_RETRY_AFTER_S)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    what = f"{request.method} {request.url.path}"
    if status == _METHOD_NOT_ALLOWED:
        return _failure(MethodNotAllowed(f"not {what}"), headers)
    return _failure(NotFound(f"there is no {what}"), headers)


def _failure(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    retry = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
    return Response(error.body(), error.status, {**(headers or {}), **retry}, media_type=JSON)
