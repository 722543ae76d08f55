"""The fleet's Prometheus page: the gateways' numbers added up, and the engines' own figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tuneplex.control.decide import Situation
from tuneplex.control.seen import Seen
from tuneplex.metrics import render
from tuneplex.types import GatewayReport, ReplicaState

__all__ = ["added", "metrics_page"]

_Labels = tuple[str, ...]
T = TypeVar("T")


def added(total: GatewayReport, report: GatewayReport) -> GatewayReport:
    """The totals of gateways that have ended, with one more; what it had under way is over."""
    return msgspec.structs.replace(
        total,
        counters=_sums(total.counters, report.counters, lambda one, other: one + other),
        buckets=_sums(total.buckets, report.buckets, lambda one, other: tuple(map(sum, zip(one, other, strict=True)))),
    )


def metrics_page(situation: Situation, reports: Sequence[GatewayReport], ended: GatewayReport) -> bytes:
    """One page for the whole fleet.

    Args:
        situation: With the engines' figures in it.
        reports: Of the gateways that are connected.
        ended: The totals of those that have ended, see `added`; so a gateway's restart takes nothing from the sums.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Replicas(situation))
    return render((*reports, ended)) + generate_latest(registry)


class _Replicas(Collector):
    """What the engines and the control loop know of each replica."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation

    def collect(self) -> Iterator[Metric]:
        """Every family, also when no replica runs."""
        yield self._gauge("ready", "Whether the replica takes requests.", self._ready)
        yield self._gauge("restarts", "How often the replica was started again.", lambda one: one.launched.restarts)
        yield self._gauge("adapters", "Adapters that the replica has loaded.", _adapters)
        yield self._gauge("adapter_slots", "Adapters that fit into device memory at a time.", _slots)
        yield self._gauge("adapter_slots_used", "Adapters in device memory.", _slots_used)
        yield self._gauge("running_requests", "Requests the engine works on.", lambda one: one.metrics.running)
        yield self._gauge("waiting_requests", "Requests that wait in the engine.", lambda one: one.metrics.waiting)
        yield self._gauge("kv_cache_use_ratio", "Share of the KV cache in use.", lambda one: one.metrics.kv_use)
        yield self._counter("prompt_tokens", "Tokens read by the engine.", lambda one: one.metrics.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens written.", lambda one: one.metrics.generation_tokens)
        yield self._counter("preemptions", "Requests that lost their KV cache.", lambda one: one.metrics.preemptions)

    def _ready(self, replica: Seen) -> float:
        return float(self._situation.state(replica) is ReplicaState.READY)

    def _gauge(self, name: str, text: str, value: Callable[[Seen], float | None]) -> Metric:
        return self._filled(GaugeMetricFamily(f"tuneplex_replica_{name}", text, labels=("pool", "replica")), value)

    def _counter(self, name: str, text: str, value: Callable[[Seen], float | None]) -> Metric:
        return self._filled(CounterMetricFamily(f"tuneplex_replica_{name}", text, labels=("pool", "replica")), value)

    def _filled(
        self, metric: GaugeMetricFamily | CounterMetricFamily, value: Callable[[Seen], float | None]
    ) -> GaugeMetricFamily | CounterMetricFamily:
        """With a sample for each replica that lives and has the value."""
        for replica in self._situation.seen:
            found = value(replica) if replica.alive else None
            if found is not None:
                metric.add_metric((replica.launched.pool, replica.name), found)
        return metric


def _adapters(replica: Seen) -> int:
    return sum(model.parent is not None for model in replica.models)


def _slots(replica: Seen) -> int | None:
    return replica.residency.slots if replica.residency else None


def _slots_used(replica: Seen) -> int | None:
    return replica.residency.slots_used if replica.residency else None


def _sums(
    one: Mapping[str, list[tuple[_Labels, T]]], other: Mapping[str, list[tuple[_Labels, T]]], add: Callable[[T, T], T]
) -> dict[str, list[tuple[_Labels, T]]]:
    totals: dict[str, dict[_Labels, T]] = {name: dict(samples) for name, samples in one.items()}
    for name, samples in other.items():
        known = totals.setdefault(name, {})
        for labels, value in samples:
            known[labels] = add(known[labels], value) if labels in known else value
    return {name: list(samples.items()) for name, samples in totals.items()}
