"""The gateway's metrics: their names, labels and buckets, and how reports become a Prometheus page.

A report holds plain numbers (see `GatewayReport`); what they mean is written here once, for the gateways that count and
for whoever adds up the reports of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tuneplex.types import GatewayReport

__all__ = ["CATALOGUE", "CONTENT_TYPE", "Family", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
Samples = list[tuple[Labels, float]]


class Family(msgspec.Struct, frozen=True):
    """One metric.

    Attributes:
        name: As Prometheus shows it.
        help: For people.
        labels: The names of its labels; reports hold their values in this order.
        bounds: Upper bounds of a histogram's buckets; empty for the other kinds.
        gauge: The number can fall.
    """

    name: str
    help: str
    labels: Labels = ()
    bounds: tuple[float, ...] = ()
    gauge: bool = False


# Time to the first token: from a cache hit on a small model to a long prompt behind a queue.
_FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 30, 60, 120, 300)
# From token to token: from a small model by itself to an engine that has stalled.
_TOKEN = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10)
# Waiting for a place: from a moment to the longest that anybody may wait.
_WAITED = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 600)
# Whole requests: from an embedding to a long generation.
_DURATION = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 300, 600, 1800)

CATALOGUE: dict[str, Family] = {
    family.name: family
    for family in (
        Family("tuneplex_requests_total", "Requests answered.", ("route", "model", "status")),
        Family("tuneplex_outcomes_total", "How requests for a model ended.", ("route", "model", "outcome", "pool")),
        Family("tuneplex_received_bytes_total", "Bytes of request bodies.", ("route", "model")),
        Family("tuneplex_sent_bytes_total", "Bytes of replies to them.", ("route", "model")),
        Family("tuneplex_prompt_tokens_total", "Tokens of prompts.", ("route", "model", "pool")),
        Family("tuneplex_cached_prompt_tokens_total", "Those that the engine had already.", ("route", "model", "pool")),
        Family("tuneplex_completion_tokens_total", "Tokens of replies.", ("route", "model", "pool")),
        Family(
            "tuneplex_counted_requests_total",
            "Requests whose tokens were counted by events and estimated, because no engine told them.",
            ("route", "model", "pool"),
        ),
        Family(
            "tuneplex_time_to_first_token_seconds", "Streams: until the first event.", ("route", "model"), _FIRST_TOKEN
        ),
        Family("tuneplex_inter_token_seconds", "Streams: from one token to the next.", ("model",), _TOKEN),
        Family(
            "tuneplex_time_per_output_token_seconds",
            "Streams: from the first token to the last, by the tokens after the first.",
            ("model",),
            _TOKEN,
        ),
        Family("tuneplex_request_duration_seconds", "Requests for a model.", ("route", "model"), _DURATION),
        Family("tuneplex_outstanding_requests", "Requests under way at a replica.", ("replica",), gauge=True),
        Family("tuneplex_waiting_requests", "Requests that wait for a place.", gauge=True),
        Family(
            "tuneplex_waited_seconds", "How long those that waited did, whatever became of them.", ("model",), _WAITED
        ),
        Family(
            "tuneplex_refused_waiting_total",
            "Requests that were refused instead of waiting, or of waiting longer.",
            ("model", "reason"),
        ),
        Family("tuneplex_left_waiting_total", "Requests whose clients left while they waited.", ("model",)),
        Family("tuneplex_retries_total", "Requests that were sent again, by how the try ended.", ("model", "reason")),
        Family("tuneplex_retries_denied_total", "Requests that were not, because too many had been.", ("model",)),
        Family(
            "tuneplex_hedges_total",
            "Requests for which a second engine was asked, by which of the two was faster.",
            ("model", "winner"),
        ),
        Family("tuneplex_migrations_total", "Streams that went on at another replica.", ("model", "reason")),
        Family("tuneplex_quarantined_total", "Requests at which engines ended one after another.", ("model",)),
        Family("tuneplex_breaker_opened_total", "How often a replica was given no more requests.", ("replica",)),
        Family(
            "tuneplex_replayed_total",
            "Requests with an idempotency key that got the reply to an earlier one.",
            ("source",),
        ),
        Family("tuneplex_journal_lost_total", "Entries of the journal that could not be written."),
        Family("tuneplex_unkept_total", "Replies to requests with an idempotency key that were not kept.", ("reason",)),
    )
}


def render(reports: Iterable[GatewayReport]) -> bytes:
    """The Prometheus page of these gateways together."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Sums(tuple(reports)))
    return generate_latest(registry)


class _Sums(Collector):
    """Adds up reports as often as the registry asks."""

    def __init__(self, reports: tuple[GatewayReport, ...]) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        """Every family of the catalogue, also when it has no sample yet."""
        for family in CATALOGUE.values():
            yield self._histogram(family) if family.bounds else self._numbers(family)

    def _numbers(self, family: Family) -> Metric:
        kind = GaugeMetricFamily if family.gauge else CounterMetricFamily
        metric = kind(family.name, family.help, labels=family.labels)
        for labels, value in self._sum(family).items():
            metric.add_metric(labels, value)
        return metric

    def _sum(self, family: Family) -> dict[Labels, float]:
        sums: dict[Labels, float] = {}
        for report in self._reports:
            for labels, value in _gauged(report)[family.name] if family.gauge else report.counters.get(family.name, []):
                sums[labels] = sums.get(labels, 0.0) + value
        return sums

    def _histogram(self, family: Family) -> Metric:
        metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, counts in self._buckets(family).items():
            *per_bucket, total_s = counts
            metric.add_metric(labels, list(_cumulated(family.bounds, per_bucket)), total_s)
        return metric

    def _buckets(self, family: Family) -> dict[Labels, list[float]]:
        sums: dict[Labels, list[float]] = {}
        for report in self._reports:
            for labels, counts in report.buckets.get(family.name, []):
                known = sums.get(labels)
                sums[labels] = list(counts) if known is None else [a + b for a, b in zip(known, counts, strict=True)]
        return sums


def _gauged(report: GatewayReport) -> dict[str, Samples]:
    """What can fall."""
    return {
        "tuneplex_outstanding_requests": [((name,), float(count)) for name, count in report.outstanding.items()],
        "tuneplex_waiting_requests": [((), float(report.waiting))],
    }


def _cumulated(bounds: tuple[float, ...], counts: list[float]) -> Iterator[tuple[str, float]]:
    """Prometheus wants each bucket to include the smaller ones."""
    below = 0.0
    for bound, count in zip((*map(str, map(float, bounds)), "+Inf"), counts, strict=True):
        below += count
        yield bound, below
