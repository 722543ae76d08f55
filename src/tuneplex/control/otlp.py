"""Sends spans by OTLP over HTTP; needs the extra `otel`, so it is only imported where traces are wanted."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tuneplex import __version__
from tuneplex.control.spans import Span

__all__ = ["Collector"]

_KINDS = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_SCOPE = InstrumentationScope("tuneplex", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_TIMEOUT_S = 5.0


class Collector:
    """A collector of traces.

    Args:
        url: Where it is, without `/v1/traces`.
        fleet: Whose spans these are.
    """

    def __init__(self, url: str, fleet: str) -> None:
        named = {"service.name": "tuneplex", "service.namespace": fleet, "service.version": __version__}
        self._resource = Resource(named)
        self._exporter = OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces", timeout=_TIMEOUT_S)

    def send(self, spans: Sequence[Span]) -> bool:
        """Send spans; whether the collector has them. It may take some seconds."""
        return self._exporter.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Send nothing more."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(span.trace, span.id, remote=False),
            parent=_context(span.trace, span.parent, remote=span.remote) if span.parent else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=_SCOPE,
        )


def _context(trace: bytes, span: bytes, *, remote: bool) -> SpanContext:
    return SpanContext(int.from_bytes(trace), int.from_bytes(span), is_remote=remote, trace_flags=_SAMPLED)
