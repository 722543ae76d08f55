"""The spans that are made of a request that is over."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.past import over
from tuneplex.control.spans import Span, Told, spans
from tuneplex.journal import Finished, Tried
from tuneplex.journal.spans import WAITING, parent_of, span_id, trace_id

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TOLD = Told("0.0.0.0", 8000, {"default": "vllm", "far": "openai"}, 1.0)  # noqa: S104 - told, not bound
MOVED = over(
    1000,
    stream=True,
    closed=1003.0,
    pool="default",
    replica="default-1",
    prompt=112,
    cached=96,
    completion=48,
    waited_s=0.5,
    first_token_s=0.97,
    attempts=[
        Tried("default-0", "default-0/1", "default", 1000.75, "broken", 1.25, 112, 20),
        Tried("default-1", "default-1/1", "default", 1002.25, "complete", 0.75, 132, 28),
    ],
)


def root(one: Finished) -> Span:
    """The span of a request."""
    return spans(one, TOLD)[0]


def test_a_request_its_wait_and_its_attempts() -> None:
    """Each is a span with the time that it took, below that of the request."""
    whole, wait, broken, last = spans(MOVED, TOLD)
    assert [one.name for one in (whole, wait, broken, last)] == ["chat contacts", "wait", "attempt", "attempt"]
    assert [one.kind for one in (whole, wait, broken, last)] == ["server", "internal", "client", "client"]
    times = [(one.start / 1e9, one.end / 1e9) for one in (whole, wait, broken, last)]
    assert times == [(1000.0, 1003.0), (1000.25, 1000.75), (1000.75, 1002.0), (1002.25, 1003.0)]
    assert {one.parent for one in (wait, broken, last)} == {whole.id}
    assert len({one.id for one in (whole, wait, broken, last)}) == 4
    assert [one.error for one in (whole, wait, broken, last)] == ["", "", "broken", ""]


def test_what_a_request_is_told_with() -> None:
    """The names are those of the conventions for generative models, and what they have none for is ours."""
    assert root(MOVED).attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "contacts",
        "gen_ai.response.model": "contacts@1f0c",
        "gen_ai.usage.input_tokens": 112,
        "gen_ai.usage.output_tokens": 48,
        "gen_ai.usage.cache_read.input_tokens": 96,
        "http.response.status_code": 200,
        "server.address": "0.0.0.0",  # noqa: S104 - told, not bound
        "server.port": 8000,
        "tuneplex.first_token_s": 0.97,
        "tuneplex.key_id": "k1",
        "tuneplex.outcome": "complete",
        "tuneplex.pool": "default",
        "tuneplex.replica": "default-1",
        "tuneplex.request_id": "req-1000",
        "tuneplex.stream": True,
        "tuneplex.tenant": "acme",
        "tuneplex.tokens_estimated": False,
        "tuneplex.waited_s": 0.5,
    }


def test_ids_can_be_made_by_others() -> None:
    """The id of each span follows from the journal, the number and the attempt."""
    whole, wait, broken, last = spans(MOVED, TOLD)
    attempts = (0, WAITING, 1, 2)
    assert [one.id for one in (whole, wait, broken, last)] == [
        span_id("g", 1000, attempt).to_bytes(8) for attempt in attempts
    ]
    assert (whole.trace, whole.parent) == (trace_id("g", 1000), b"")


@pytest.mark.parametrize(
    "trace, told",
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"cc-{TRACE}-{PARENT}-01-more", True),
    ],
)
def test_a_client_with_a_trace_decides(trace: str, *, told: bool) -> None:
    """A trace that its client keeps goes on, whatever the sample; one that it does not is not told."""
    found = spans(msgspec.structs.replace(MOVED, trace=trace), msgspec.structs.replace(TOLD, sample=0.0))
    assert bool(found) == told
    for one in found[:1]:
        assert (one.trace.hex(), one.parent.hex(), one.remote) == (TRACE, PARENT, True)


@pytest.mark.parametrize(
    "trace", ["", "x", f"ff-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01-more", f"00-{'0' * 32}-{PARENT}-01"]
)
def test_what_is_no_trace_begins_one(trace: str) -> None:
    """A header that makes no sense is as none."""
    assert parent_of(trace) is None
    assert root(msgspec.structs.replace(MOVED, trace=trace)).parent == b""


def test_a_share_of_the_requests_is_told() -> None:
    """Without a client's word about as many are told as was asked for, and always the same ones."""
    told = msgspec.structs.replace(TOLD, sample=0.25)
    found = [bool(spans(over(number), told)) for number in range(2000)]
    assert 400 < sum(found) < 600
    assert found == [bool(spans(over(number), told)) for number in range(2000)]


@pytest.mark.parametrize(
    "values, error, kind",
    [
        ({"outcome": "engine_error", "status": 502}, "engine_error", "engine_error"),
        ({"outcome": "rejected", "status": 503, "code": "overloaded"}, "overloaded", "overloaded"),
        ({"outcome": "rejected", "status": 429, "code": "rate_limit_exceeded"}, "", "rate_limit_exceeded"),
        ({"outcome": "client_gone", "status": 499}, "", "client_gone"),
    ],
)
def test_what_has_failed(values: dict[str, object], error: str, kind: str) -> None:
    """Only what is ours makes a span a failed one; what went wrong is told in any case."""
    found = root(over(1, **values))
    assert (found.error, found.attributes["error.type"]) == (error, kind)


def test_no_two_spans_have_the_same_id() -> None:
    """Requests, their attempts and those that have no number differ, also from those of other journals."""
    names = [f"{journal}/{number}" for journal in ("g", "h") for number in (1, 2, "e1", "e2")]
    ids = [one.id for name in names for one in spans(msgspec.structs.replace(MOVED, id=name), TOLD)]
    assert len(set(ids)) == len(ids) == 4 * len(names)


def test_unknown_callers_are_not_told() -> None:
    """Requests of nobody, which were put together, have no spans."""
    assert spans(over(1, tenant="", outcome="rejected", status=401, count=9), TOLD) == ()


@pytest.mark.parametrize(
    "route, name", [("completions", "text_completion"), ("embeddings", "embeddings"), ("", "chat")]
)
def test_operations(route: str, name: str) -> None:
    """Each route is the operation that the conventions call it."""
    assert root(over(1, route=route)).name == f"{name} contacts"
