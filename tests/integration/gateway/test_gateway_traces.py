"""Traces of requests, from the gateway's journal to a collector."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.support.front import Front, chat, open_front, view_of
from tests.support.otlp import receiving
from tuneplex.control import otlp
from tuneplex.control.spans import Span
from tuneplex.control.tracing import Tracing
from tuneplex.journal import Follower, Journal
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import Base, FleetSpec, Telemetry

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
KEPT = f"00-{TRACE}-{PARENT}-01"


def spec(url: str) -> FleetSpec:
    """A fleet that tells this collector."""
    return FleetSpec("shop", Base("base", "/base"), telemetry=Telemetry(url))


def read(tracing: Tracing, directory: Path) -> None:
    """Let it take all of a journal."""
    follower = Follower(directory)
    while entries := follower.read():
        tracing.take(directory.name, entries)


async def asked(engines: Sequence[FakeEngine], parent: Path, *, traces: bool, trace: str = KEPT) -> None:
    """Ask for a stream, with a journal."""
    journal = Journal(parent, "g-1")
    view = view_of(engines, tries=3)
    view = msgspec.structs.replace(view, settings=msgspec.structs.replace(view.settings, traces=traces))
    front: Front
    async with open_front(view, journal=journal) as front:
        reply = await front.post("/v1/chat/completions", chat(max_tokens=5, stream=True), traceparent=trace)
        assert reply.status == 200
    journal.close()


async def test_a_collector_gets_the_spans_of_a_request(engine: FakeEngine, tmp_path: Path) -> None:
    """They go on with the client's trace, and the engine's own would be below that of its attempt."""
    await asked([engine], tmp_path, traces=True)
    with receiving() as receiver:
        tracing = Tracing(lambda: spec(receiver.url))
        read(tracing, tmp_path / "g-1")
        await tracing.send()
    whole, attempt = receiver.spans
    assert (receiver.resource["service.name"], receiver.resource["service.namespace"]) == ("tuneplex", "shop")
    assert (whole.name, whole.trace_id.hex(), whole.parent_span_id.hex()) == ("chat contacts", TRACE, PARENT)
    assert (attempt.name, attempt.trace_id, attempt.parent_span_id) == ("attempt", whole.trace_id, whole.span_id)
    told = {one.key: one.value for one in whole.attributes}
    assert told["gen_ai.usage.output_tokens"].int_value == 5
    assert whole.start_time_unix_nano <= attempt.start_time_unix_nano < attempt.end_time_unix_nano
    (record,) = engine.requests
    assert record.headers["traceparent"] == f"00-{TRACE}-{attempt.span_id.hex()}-01"
    assert tracing.dropped == 0


@pytest.mark.parametrize("traces, trace", [(False, KEPT), (True, KEPT.removesuffix("01") + "00")])
async def test_a_trace_that_is_not_told_is_passed_on(
    engine: FakeEngine, tmp_path: Path, trace: str, *, traces: bool
) -> None:
    """Where no span of ours would stand between, the engine gets the client's as it came."""
    await asked([engine], tmp_path, traces=traces, trace=trace)
    assert engine.requests[0].headers["traceparent"] == trace


async def test_each_attempt_is_named_to_its_engine(tmp_path: Path) -> None:
    """An engine that failed and the one that answers have got spans of their own, and the collector knows both."""
    async with (
        FakeEngine("base", adapters=["contacts@0123456789ab"]) as one,
        FakeEngine("base", adapters=["contacts@0123456789ab"]) as other,
    ):
        for engine in (one, other):
            engine.script(Script(status=503))
        await asked([one, other], tmp_path, traces=True)
        sent = {record.headers["traceparent"][36:52] for engine in (one, other) for record in engine.requests}
    with receiving() as receiver:
        tracing = Tracing(lambda: spec(receiver.url))
        read(tracing, tmp_path / "g-1")
        await tracing.send()
    assert sent == {span.span_id.hex() for span in receiver.spans if span.name == "attempt"}
    assert len(sent) > 1


async def test_a_collector_that_is_away_costs_spans_and_nothing_else(
    engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not take is counted, the log says it once, and it gets later spans when it is back."""
    monkeypatch.setattr(otlp, "_TIMEOUT_S", 0.2)
    caplog.set_level(logging.INFO, "tuneplex.control.tracing")
    await asked([engine], tmp_path, traces=True)
    with receiving() as receiver:
        receiver.status = 400
        tracing = Tracing(lambda: spec(receiver.url))
        for count in (2, 4):
            read(tracing, tmp_path / "g-1")
            await tracing.send()
            assert tracing.dropped == count
        receiver.status = 200
        read(tracing, tmp_path / "g-1")
        await tracing.send()
        assert len(receiver.spans) == 2
    said = [record.getMessage() for record in caplog.records if record.name == "tuneplex.control.tracing"]
    assert said == [
        f'traces are lost why="the collector ({receiver.url}) takes none"',
        "traces are told again lost_spans=4",
    ]


class Deaf:
    """A collector that takes nothing."""

    def send(self, spans: Sequence[Span]) -> bool:
        """Take none."""
        return not spans

    def close(self) -> None:
        """Nothing is open."""


async def test_spans_that_wait_are_bounded(engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes when too many wait is dropped and counted; what was over long before control began is left out."""
    monkeypatch.setattr("tuneplex.control.tracing._MOST", 3)
    await asked([engine], tmp_path, traces=True)
    tracing = Tracing(lambda: spec("http://127.0.0.1:1"), lambda _url, _fleet: Deaf())
    for _ in range(3):
        read(tracing, tmp_path / "g-1")
    assert tracing.dropped == 3
    await tracing.send()
    late = Tracing(lambda: spec("http://127.0.0.1:1"), lambda _url, _fleet: Deaf(), lambda: 2e9)
    read(late, tmp_path / "g-1")
    await late.send()
    assert (late.dropped, tracing.dropped) == (0, 6)


async def test_without_opentelemetry_the_log_says_so(
    engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the package is missing, spans are lost, and the log tells what to install."""

    def missing(_url: str, _fleet: str) -> Deaf:
        raise ImportError

    await asked([engine], tmp_path, traces=True)
    tracing = Tracing(lambda: spec("http://127.0.0.1:1"), missing)
    read(tracing, tmp_path / "g-1")
    await tracing.send()
    assert tracing.dropped == 2
    assert "tuneplex[otel]" in caplog.text
