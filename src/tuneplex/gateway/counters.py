"""What a gateway counts: plain integers in dictionaries, cheap enough for every request."""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum

from tuneplex.metrics import CATALOGUE
from tuneplex.types import Route

__all__ = ["Counters", "Outcome"]

Labels = tuple[str, ...]


class Outcome(StrEnum):
    """How a request that was meant for a model ended."""

    COMPLETE = "complete"
    REFUSED = "refused"  # by the gateway, before an engine saw it
    ENGINE_ERROR = "engine_error"  # the engine said no, or failed and said so
    UNREACHABLE = "unreachable"
    BROKEN = "broken"  # the engine broke off or answered with something else
    TIMEOUT = "timeout"
    CLIENT_GONE = "client_gone"


class Counters:
    """The numbers of one gateway since its start."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._counts: dict[str, dict[Labels, int]] = {}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {}
        for family in CATALOGUE.values():
            if family.bounds:
                self._histograms[family.name] = {}
            elif not family.gauge:
                self._counts[family.name] = {}
        self._requests = self._counts["tuneplex_requests_total"]
        self._outcomes = self._counts["tuneplex_outcomes_total"]
        self._received = self._counts["tuneplex_received_bytes_total"]
        self._sent = self._counts["tuneplex_sent_bytes_total"]

    def answered(self, route: str, model: str, status: int) -> None:
        """A request got a reply, of whatever kind."""
        labels = (route, model, f"{status // 100}xx")
        self._requests[labels] = self._requests.get(labels, 0) + 1

    def ended(self, route: Route, model: str, outcome: Outcome, seconds: float) -> None:
        """A request for a model is over, `seconds` after it came."""
        labels = (route.value, model, outcome.value)
        self._outcomes[labels] = self._outcomes.get(labels, 0) + 1
        self._observe("tuneplex_request_duration_seconds", (route.value, model), seconds)

    def moved(self, route: Route, received: int, sent: int) -> None:
        """Bytes of a request's body and of the reply's."""
        labels = (route.value,)
        self._received[labels] = self._received.get(labels, 0) + received
        self._sent[labels] = self._sent.get(labels, 0) + sent

    def first_token(self, model: str, seconds: float) -> None:
        """The first event of a stream went to the client, `seconds` after the request came."""
        self._observe("tuneplex_time_to_first_token_seconds", (model,), seconds)

    def _observe(self, name: str, labels: Labels, value: float) -> None:
        histograms = self._histograms[name]
        histogram = histograms.get(labels)
        if histogram is None:
            histogram = histograms[labels] = _Histogram(CATALOGUE[name].bounds)
        histogram.observe(value)

    def counts(self) -> dict[str, list[tuple[Labels, float]]]:
        """As `GatewayReport.counters` wants them."""
        return {name: [(labels, float(n)) for labels, n in counts.items()] for name, counts in self._counts.items()}

    def buckets(self) -> dict[str, list[tuple[Labels, tuple[float, ...]]]]:
        """As `GatewayReport.buckets` wants them."""
        return {
            name: [(labels, histogram.numbers()) for labels, histogram in histograms.items()]
            for name, histograms in self._histograms.items()
        }


class _Histogram:
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def numbers(self) -> tuple[float, ...]:
        return (*map(float, self._counts), self._sum)
