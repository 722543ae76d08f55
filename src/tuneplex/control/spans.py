"""What OpenTelemetry is told of a request that is over: its spans, as values. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tuneplex.journal import Finished, Tried
from tuneplex.journal.spans import WAITING, parent_of, span_id, trace_id
from tuneplex.types import FleetSpec, Route

__all__ = ["Span", "Told", "spans"]

Value = str | int | float | bool
_OPERATIONS = {Route.COMPLETIONS: "text_completion", Route.EMBEDDINGS: "embeddings"}
_WELL = ("complete", "cut")
_CLIENTS = (*_WELL, "refused", "client_gone", "deadline")
_NO_FAILURES = (*_CLIENTS, "stopped")
_FAILED = 500  # from this status on it is the server's
_RATES = 2**64


class Span(msgspec.Struct, frozen=True):
    """One span; times in nanoseconds of Unix time.

    Attributes:
        name: What was done.
        kind: `server`, `internal` or `client`.
        trace: 16 bytes.
        id: 8 bytes.
        parent: 8 bytes, or empty.
        remote: The parent is another service's.
        start: When it began.
        end: When it was over.
        attributes: By their names in the semantic conventions, or below `tuneplex.`.
        error: It has failed, and why; or empty.
    """

    name: str
    kind: str
    trace: bytes
    id: bytes
    parent: bytes
    remote: bool
    start: int
    end: int
    attributes: dict[str, Value]
    error: str = ""


class Told(msgspec.Struct, frozen=True):
    """What all requests of a fleet have in common.

    Attributes:
        host: Where clients reach it.
        port: The same.
        engines: The kind of each pool's engines.
        sample: The share of the requests that is told, of those whose clients say nothing of it.
    """

    host: str
    port: int
    engines: Mapping[str, str]
    sample: float

    @classmethod
    def of(cls, spec: FleetSpec) -> Told:
        """That of a fleet."""
        engines = {pool.name: pool.engine for pool in spec.pools}
        return cls(spec.listen.host, spec.listen.port, engines, spec.telemetry.sample)


def spans(one: Finished, told: Told) -> tuple[Span, ...]:
    """The spans of a request, its own first; none if it is not to be told.

    A client that has a trace says whether it keeps it, and so is done here; without one the request begins a trace.
    """
    journal, number = _number(one)
    parent = parent_of(one.trace)
    trace = trace_id(journal, number) if parent is None else parent.trace
    wanted = int.from_bytes(trace[:8]) < told.sample * _RATES if parent is None else parent.sampled
    if not wanted or not one.tenant:
        return ()
    own = _bytes(span_id(journal, number, 0))
    root = Span(
        f"{_operation(one)} {one.model}".strip(),
        "server",
        trace,
        own,
        b"" if parent is None else parent.span,
        parent is not None,
        _nanoseconds(one.arrived),
        _nanoseconds(max(one.closed, one.arrived)),
        _attributes(one, told),
        one.code or one.outcome if _has_failed(one) else "",
    )
    return (root, *_waiting(one, root, journal, number), *_attempts(one, root, journal, number))


def _number(one: Finished) -> tuple[str, int]:
    """Its journal and its number there; what has none has a journal of its own."""
    journal, _, number = one.id.rpartition("/")
    return (journal, int(number)) if number.isdecimal() else (one.id, 0)


def _bytes(span: int) -> bytes:
    return span.to_bytes(8)


def _operation(one: Finished) -> str:
    return _OPERATIONS.get(Route(one.route), "chat") if one.route in set(Route) else "chat"


def _has_failed(one: Finished) -> bool:
    """Whether that is the server's failure: what clients do wrong is none."""
    return one.status >= _FAILED if one.outcome == "rejected" else one.outcome not in _CLIENTS


def _attributes(one: Finished, told: Told) -> dict[str, Value]:
    found: dict[str, Value] = {
        "gen_ai.operation.name": _operation(one),
        "gen_ai.provider.name": told.engines.get(one.pool, "vllm"),
        "gen_ai.request.model": one.model,
        "gen_ai.response.model": one.version,
        "server.address": told.host,
        "server.port": told.port,
        "tuneplex.request_id": one.request_id,
        "tuneplex.tenant": one.tenant,
        "tuneplex.key_id": one.key_id,
        "tuneplex.outcome": one.outcome,
        "tuneplex.pool": one.pool,
        "tuneplex.replica": one.replica,
        "tuneplex.stream": one.stream,
        "tuneplex.waited_s": one.waited_s,
    }
    return {name: value for name, value in (found | _measured(one)).items() if value != ""}


def _measured(one: Finished) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if one.status:
        found["http.response.status_code"] = one.status
    if one.outcome not in _WELL:
        found["error.type"] = one.code or one.outcome
    if one.attempts:
        found |= {
            "gen_ai.usage.input_tokens": one.prompt,
            "gen_ai.usage.output_tokens": one.completion,
            "gen_ai.usage.cache_read.input_tokens": one.cached,
            "tuneplex.tokens_estimated": one.estimated,
        }
    if one.first_token_s is not None:
        found["tuneplex.first_token_s"] = one.first_token_s
    return found


def _waiting(one: Finished, root: Span, journal: str, number: int) -> Iterator[Span]:
    """It waits until its first attempt."""
    if one.waited_s > 0 and one.attempts:
        end = one.attempts[0].at
        own, times = _bytes(span_id(journal, number, WAITING)), (end - one.waited_s, end)
        yield _child(root, own, times, {}, name="wait", kind="internal")


def _attempts(one: Finished, root: Span, journal: str, number: int) -> Iterator[Span]:
    for attempt, tried in enumerate(one.attempts, 1):
        own, times = _bytes(span_id(journal, number, attempt)), (tried.at, tried.at + tried.took_s)
        error = "" if tried.outcome in _NO_FAILURES else tried.outcome
        yield _child(root, own, times, _of_attempt(tried), name="attempt", kind="client", error=error)


def _of_attempt(tried: Tried) -> dict[str, Value]:
    found: dict[str, Value] = {
        "gen_ai.usage.input_tokens": tried.prompt,
        "gen_ai.usage.output_tokens": tried.completion,
        "tuneplex.engine": tried.engine,
        "tuneplex.outcome": tried.outcome,
        "tuneplex.pool": tried.pool,
        "tuneplex.replica": tried.replica,
    }
    return found if tried.outcome in _WELL else {**found, "error.type": tried.outcome}


def _child(
    root: Span,
    own: bytes,
    times: tuple[float, float],
    attributes: dict[str, Value],
    *,
    name: str,
    kind: str,
    error: str = "",
) -> Span:
    start, end = _nanoseconds(times[0]), _nanoseconds(max(times))
    return Span(name, kind, root.trace, own, root.id, False, start, end, attributes, error)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000) * 1000
