"""What the plugin adds to vLLM's `/metrics`, read from the snapshot when the page is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector as PrometheusCollector

if TYPE_CHECKING:
    from tuneplex_vllm.service import Service

__all__ = ["Collector"]


class Collector(PrometheusCollector):  # type: ignore[misc,unused-ignore]
    """The metrics of one engine's adapters.

    Args:
        service: Knows them.
    """

    _registered: Collector | None = None

    def __init__(self, service: Service) -> None:
        self._service = service

    def register(self) -> None:
        """Add the metrics to the page, in the place of those of an engine that this process had before."""
        previous = Collector._registered
        if previous is not None:
            with contextlib.suppress(KeyError):
                REGISTRY.unregister(previous)
        REGISTRY.register(self)
        Collector._registered = self

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now; none as long as the worker has told nothing."""
        state, names = self._service.newest()
        if state is None:
            return
        used = sum(row.slot is not None for row in state.rows)
        yield GaugeMetricFamily("tuneplex:adapter_slots", "Adapters that fit on the device.", state.slots)
        yield GaugeMetricFamily("tuneplex:adapter_slots_used", "Slots that hold an adapter.", used)
        tiers = GaugeMetricFamily("tuneplex:adapters", "Adapters by where they are.", labels=["tier"])
        tiers.add_metric(["device"], used)
        tiers.add_metric(["host"], len(state.rows) - used)
        tiers.add_metric(["disk"], max(0, names - len(state.rows)))
        yield tiers
        yield SummaryMetricFamily(
            "tuneplex:adapter_activation_seconds", "Time to fill a slot.", state.activations, state.activation_s
        )
        yield CounterMetricFamily(
            "tuneplex:adapter_activation_bytes", "Weights copied into slots.", state.activation_bytes
        )
        yield CounterMetricFamily(
            "tuneplex:adapter_pin_yields", "Times that a pinned adapter lent its slot to a batch.", state.yields
        )
