"""The errors of tuneplex: one tree, and what a client sees of each.

::

    TuneplexError
    ├─ UserError               the person at the command line can mend it (exit code 2)
    │   ├─ FleetFileError      fleet.yaml is wrong: file, line, key
    │   ├─ SourceError         a base or an adapter cannot be fetched or read
    │   ├─ ObjectStoreError    an object store refused something, or is not reached
    │   └─ StateError          no fleet runs here, or another one already does
    ├─ StoreError              the database of tenants and keys
    │   ├─ StoreDown           it does not answer; what is in memory goes on
    │   ├─ StoreMissing        there is no such tenant or key
    │   └─ StoreConflict       it exists already, or something else stands against it
    ├─ AuditError              the audit log cannot be written or read
    │   └─ AuditBusy           another process writes it
    ├─ EngineError             an engine did not do what it was asked
    │   ├─ EngineStartError    it ended before it was ready
    │   └─ EngineTimeout       it did not answer in time
    └─ ApiError                becomes an HTTP response in OpenAI's shape
        ├─ BadRequest          400
        ├─ Unauthorized        401
        ├─ Forbidden           403  the key is valid, and not for this
        ├─ NotFound            404
        ├─ MethodNotAllowed    405
        ├─ RequestTimeout      408  the request did not arrive in time
        ├─ Conflict            409  what was asked cannot be done any more
        ├─ TooLarge            413
        ├─ Unprocessable       422  the request contradicts an earlier one
        ├─ RateLimited         429  a limit of the tenant, the key or the model is reached
        ├─ HeadTooLarge        431
        ├─ EngineRefused       the engine's own refusal, with its status
        ├─ UpstreamError       502  the engine broke off or answered in another shape
        │   └─ Quarantined     502  engines ended at the request, it is sent to no further one
        ├─ Unavailable         503  nothing can take the request now
        ├─ UpstreamTimeout     504
        └─ DeadlineExceeded    504  the client's own deadline
"""

from __future__ import annotations

import msgspec

__all__ = [
    "ApiError",
    "AuditBusy",
    "AuditError",
    "BadRequest",
    "Conflict",
    "DeadlineExceeded",
    "EngineError",
    "EngineRefused",
    "EngineStartError",
    "EngineTimeout",
    "FleetFileError",
    "Forbidden",
    "HeadTooLarge",
    "MethodNotAllowed",
    "NotFound",
    "ObjectStoreError",
    "Quarantined",
    "RateLimited",
    "RequestTimeout",
    "SourceError",
    "StateError",
    "StoreConflict",
    "StoreDown",
    "StoreError",
    "StoreMissing",
    "TooLarge",
    "TuneplexError",
    "Unauthorized",
    "Unavailable",
    "Unprocessable",
    "UpstreamError",
    "UpstreamTimeout",
    "UserError",
]


class TuneplexError(Exception):
    """Anything that tuneplex raises on purpose."""


class UserError(TuneplexError):
    """A mistake that the person at the command line can mend; `hint` says how.

    Args:
        message: What is wrong, and where.
        hint: What to do about it, or an empty string.
        tail: The last lines of a program that failed, if one did.
    """

    def __init__(self, message: str, *, hint: str = "", tail: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.tail = tail


class FleetFileError(UserError):
    """The fleet file is wrong. The message starts with `FILE:LINE: KEY: `, as far as they are known."""


class SourceError(UserError):
    """A base model or an adapter cannot be fetched, read or used."""


class ObjectStoreError(UserError):
    """An object store refused something, or is not reached.

    Args:
        message: See `UserError`.
        hint: See `UserError`.
        again: Whether the same may be answered when it is asked again.
    """

    def __init__(self, message: str, *, hint: str = "", again: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.again = again


class StateError(UserError):
    """No fleet runs in this state directory, or another one already does."""


class StoreError(TuneplexError):
    """The database of tenants and keys cannot do what it was asked; `hint` says what to do, if it is known."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StoreDown(StoreError):
    """The database does not answer. What was read of it before goes on."""


class StoreMissing(StoreError):
    """There is no such tenant or key."""


class StoreConflict(StoreError):
    """It exists already, or something else stands against it."""


class AuditError(TuneplexError):
    """The audit log cannot be written or read; `hint` says what to do, if it is known."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class AuditBusy(AuditError):
    """Another process writes this audit log."""


class EngineError(TuneplexError):
    """An engine did not do what it was asked; the message holds the engine's own words."""


class EngineStartError(EngineError):
    """An engine ended, or gave up, before it was ready; `tail` holds its last log lines."""

    def __init__(self, message: str, *, tail: str = "") -> None:
        super().__init__(message)
        self.tail = tail


class EngineTimeout(EngineError):
    """An engine did not answer in time; it may be busy."""


class ApiError(TuneplexError):
    """An error that a client of the gateway sees, in the shape of OpenAI's API.

    Args:
        message: For the client's eyes: no internal address, no secret.
        param: The request field at fault, if one is.
        code: A short machine-readable reason, if there is one.
        retry_after_s: Seconds after which trying again makes sense; sent as `retry-after`.
    """

    status: int = 500
    kind: str = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The JSON body, `{"error": {"message", "type", "param", "code"}}`."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


class BadRequest(ApiError):
    """The request itself is wrong."""

    status = 400
    kind = "invalid_request_error"


class Unauthorized(ApiError):
    """No key, or not one that we know."""

    status = 401
    kind = "authentication_error"


class Forbidden(ApiError):
    """The key is valid, but not for what was asked."""

    status = 403
    kind = "permission_error"


class NotFound(ApiError):
    """No such model or route, or not for this key: the two look the same."""

    status = 404
    kind = "invalid_request_error"


class MethodNotAllowed(ApiError):
    """The route exists, for another method.

    Args:
        message: See `ApiError`.
        code: See `ApiError`.
        allowed: The methods that it takes; sent as `allow`.
    """

    status = 405
    kind = "invalid_request_error"

    def __init__(self, message: str, *, code: str | None = None, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message, code=code)
        self.allowed = allowed


class RequestTimeout(ApiError):
    """The request did not arrive in time."""

    status = 408
    kind = "invalid_request_error"


class Conflict(ApiError):
    """What was asked cannot be done any more, however often it is tried."""

    status = 409
    kind = "invalid_request_error"


class TooLarge(ApiError):
    """The body is over the gateway's limit."""

    status = 413
    kind = "invalid_request_error"


class Unprocessable(ApiError):
    """The request contradicts an earlier one."""

    status = 422
    kind = "invalid_request_error"


class RateLimited(ApiError):
    """A limit of the tenant, the key or the model is reached."""

    status = 429
    kind = "rate_limit_error"


class HeadTooLarge(ApiError):
    """The request line and headers are over the gateway's limit."""

    status = 431
    kind = "invalid_request_error"


class EngineRefused(ApiError):
    """The engine refused the request, or failed at it; its status is passed on.

    Args:
        status: The HTTP status.
        kind: The error's `type`.
        message: See `ApiError`.
        param: See `ApiError`.
        code: See `ApiError`.
        retry_after_s: See `ApiError`.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code, retry_after_s=retry_after_s)
        self.status = status
        self.kind = kind


class UpstreamError(ApiError):
    """The engine broke off, or answered something that is not an answer."""

    status = 502


class Quarantined(UpstreamError):
    """Engines ended while they had the request, one after another, so it is sent to no further one.

    Nobody knows whose fault that is, so it is none of the client's (4xx); what the client sees is that engines broke
    off (502). To send it again would only endanger more of them, and clients are told not to.
    """

    def __init__(self) -> None:
        words = "Several engines ended while they were at this request, so it is not sent to another one."
        super().__init__(words, code="quarantined")


class Unavailable(ApiError):
    """Nothing can take the request at the moment."""

    status = 503


class UpstreamTimeout(ApiError):
    """The engine did not answer in time."""

    status = 504


class DeadlineExceeded(ApiError):
    """The client's own deadline has passed, or cannot be met."""

    status = 504
