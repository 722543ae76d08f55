"""The fleet's Prometheus page: the gateways' numbers added up, and the engines' own figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar, get_args

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from tuneplex.control.actions import Way
from tuneplex.control.decide import Situation
from tuneplex.control.ledger import DRIFTS, Figures
from tuneplex.control.seen import Seen
from tuneplex.engines.server import EngineMetrics
from tuneplex.metrics import render
from tuneplex.types import GatewayReport, ReplicaState

__all__ = ["added", "metrics_page"]

_LABELS = ("pool", "replica")

_Family = GaugeMetricFamily | CounterMetricFamily
_Labels = tuple[str, ...]
_Value = Callable[[Seen], float | None]
T = TypeVar("T")


def added(total: GatewayReport, report: GatewayReport) -> GatewayReport:
    """The totals of gateways that have ended, with one more; what it had under way is over."""
    return msgspec.structs.replace(
        total,
        counters=_sums(total.counters, report.counters, lambda one, other: one + other),
        buckets=_sums(total.buckets, report.buckets, lambda one, other: tuple(map(sum, zip(one, other, strict=True)))),
    )


def metrics_page(
    situation: Situation,
    reports: Sequence[GatewayReport],
    ended: GatewayReport,
    ledger: Mapping[str, Figures] = MappingProxyType({}),
) -> bytes:
    """One page for the whole fleet.

    Args:
        situation: With the engines' figures in it.
        reports: Of the gateways that are connected.
        ended: The totals of those that have ended, see `added`; so a gateway's restart takes nothing from the sums.
        ledger: By replica, where its adapters are, and what was counted of that.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Replicas(situation))
    registry.register(_Ledger(situation, ledger))
    return render((*reports, ended)) + generate_latest(registry)


class _Replicas(Collector):
    """What the engines and the control loop know of each replica."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._alive = tuple(replica for replica in situation.seen if replica.alive)

    def collect(self) -> Iterator[Metric]:
        """Every family, also when no replica runs."""
        # A replica that has ended may be started again: until then it is not ready, and not nowhere.
        yield self._gauge("ready", "Whether the replica takes requests.", self._ready, ended=True)
        yield self._gauge("restarts", "How often the replica was started again.", _restarts, ended=True)
        yield self._gauge("adapters", "Adapters that the replica has loaded.", _adapters)
        yield self._gauge("adapter_slots", "Adapters that fit into device memory at a time.", _slots)
        yield self._gauge("adapter_slots_used", "Adapters in device memory.", _slots_used)
        yield self._gauge("running_requests", "Requests the engine works on.", _told(lambda told: told.running))
        yield self._gauge("waiting_requests", "Requests that wait in the engine.", _told(lambda told: told.waiting))
        yield self._gauge("kv_cache_use_ratio", "Share of the KV cache in use.", _told(lambda told: told.kv_use))
        yield self._counter("prompt_tokens", "Tokens read by the engine.", _told(lambda told: told.prompt_tokens))
        yield self._counter("generation_tokens", "Tokens written.", _told(lambda told: told.generation_tokens))
        yield self._counter("preemptions", "Requests that lost their KV cache.", _told(lambda told: told.preemptions))
        yield self._summary("queue_seconds", "How long requests waited in the engine.", lambda told: told.queue_s)
        yield self._summary("prefill_seconds", "From their turn to their first token.", lambda told: told.prefill_s)
        yield self._summary("decode_seconds", "From their first token to their last.", lambda told: told.decode_s)

    def _ready(self, replica: Seen) -> float:
        return float(self._situation.state(replica) is ReplicaState.READY)

    def _gauge(self, name: str, text: str, value: _Value, *, ended: bool = False) -> Metric:
        metric = GaugeMetricFamily(f"tuneplex_replica_{name}", text, labels=_LABELS)
        return _filled(metric, self._situation.seen if ended else self._alive, value)

    def _counter(self, name: str, text: str, value: _Value) -> Metric:
        return _filled(CounterMetricFamily(f"tuneplex_replica_{name}", text, labels=_LABELS), self._alive, value)

    def _summary(self, name: str, text: str, sum_s: Callable[[EngineMetrics], float]) -> Metric:
        metric = SummaryMetricFamily(f"tuneplex_replica_{name}", text, labels=_LABELS)
        for replica in self._alive:
            if replica.metrics is not None:
                labels = (replica.launched.pool, replica.name)
                metric.add_metric(labels, count_value=replica.metrics.timed, sum_value=sum_s(replica.metrics))
        return metric


class _Ledger(Collector):
    """What moved between the tiers of replicas, and what was found otherwise than it was left."""

    def __init__(self, situation: Situation, ledger: Mapping[str, Figures]) -> None:
        self._alive = tuple(replica for replica in situation.seen if replica.alive)
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """Every family."""
        switches = CounterMetricFamily("tuneplex_replica_adapter_switches", "Slots filled.", labels=_LABELS)
        yield _filled(switches, self._alive, _switches)
        pinned = GaugeMetricFamily("tuneplex_replica_adapters_pinned", "Adapters that keep a slot.", labels=_LABELS)
        yield _filled(pinned, self._alive, _pinned)
        moves = CounterMetricFamily(
            "tuneplex_replica_adapter_moves", "Adapters that control has moved.", labels=(*_LABELS, "way")
        )
        yield self._counted(moves, get_args(Way), lambda found: found.moved)
        drift = CounterMetricFamily(
            "tuneplex_replica_adapter_drift", "Adapters found otherwise than left.", labels=(*_LABELS, "kind")
        )
        yield self._counted(drift, DRIFTS, lambda found: found.drift)

    def _counted(
        self, metric: CounterMetricFamily, values: Sequence[str], counts: Callable[[Figures], Mapping[str, int]]
    ) -> Metric:
        """With each value of its last label, also what has never happened: a rate needs the 0 before the first 1."""
        for replica in self._alive:
            found = counts(self._ledger.get(replica.name, Figures()))
            for value in values:
                metric.add_metric((replica.launched.pool, replica.name, value), found.get(value, 0))
        return metric


def _filled(metric: _Family, replicas: Sequence[Seen], value: _Value) -> _Family:
    """With a sample for each of these replicas that has the value."""
    for replica in replicas:
        found = value(replica)
        if found is not None:
            metric.add_metric((replica.launched.pool, replica.name), found)
    return metric


def _told(value: Callable[[EngineMetrics], float]) -> _Value:
    """One of the engine's own figures. An engine that has none must not look like an idle one."""
    return lambda replica: None if replica.metrics is None else value(replica.metrics)


def _restarts(replica: Seen) -> int:
    return replica.launched.restarts


def _adapters(replica: Seen) -> int:
    return sum(model.parent is not None for model in replica.models)


def _slots(replica: Seen) -> int | None:
    return replica.residency.slots if replica.residency else None


def _slots_used(replica: Seen) -> int | None:
    return replica.residency.slots_used if replica.residency else None


def _switches(replica: Seen) -> int | None:
    return replica.residency.activations.count if replica.residency else None


def _pinned(replica: Seen) -> int | None:
    told = replica.residency
    return None if told is None else sum(one.pinned is True for one in told.adapters)


def _sums(
    one: Mapping[str, list[tuple[_Labels, T]]], other: Mapping[str, list[tuple[_Labels, T]]], add: Callable[[T, T], T]
) -> dict[str, list[tuple[_Labels, T]]]:
    totals: dict[str, dict[_Labels, T]] = {name: dict(samples) for name, samples in one.items()}
    for name, samples in other.items():
        known = totals.setdefault(name, {})
        for labels, value in samples:
            known[labels] = add(known[labels], value) if labels in known else value
    return {name: list(samples.items()) for name, samples in totals.items()}
