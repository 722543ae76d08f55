"""What a gateway counts: plain integers, cheap enough for every request."""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum

from tuneplex.engines.usage import Usage
from tuneplex.metrics import CATALOGUE

__all__ = ["Counters", "Outcome", "Tally"]

Labels = tuple[str, ...]


class Outcome(StrEnum):
    """How a request that was meant for a model ended."""

    COMPLETE = "complete"
    REFUSED = "refused"  # the request is wrong, by the engine's word
    ENGINE_ERROR = "engine_error"  # the engine failed, or could take nothing, and said so
    UNREACHABLE = "unreachable"
    BROKEN = "broken"  # the engine broke off or answered with something else
    TIMEOUT = "timeout"
    DEADLINE = "deadline"  # the client's own
    CLIENT_GONE = "client_gone"
    CUT = "cut"  # a limit that may has ended the stream
    STOPPED = "stopped"  # the gateway has ended, and its time to finish was over


class Tally:
    """The numbers of one route and model.

    Attributes:
        received: Bytes of request bodies.
        sent: Bytes of replies.
        prompt: Tokens of prompts.
        completion: Tokens of replies.
        cached: Tokens of prompts that the engines had already.
        counted: Requests whose tokens no engine told.
        first_token_s: Streams: from the request to the first event.
        duration_s: From the request to its end.
    """

    __slots__ = (
        "_outcomes",
        "_statuses",
        "cached",
        "completion",
        "counted",
        "duration_s",
        "first_token_s",
        "prompt",
        "received",
        "sent",
    )

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
        self.prompt = 0
        self.completion = 0
        self.cached = 0
        self.counted = 0
        self.first_token_s = Histogram(CATALOGUE["tuneplex_time_to_first_token_seconds"].bounds)
        self.duration_s = Histogram(CATALOGUE["tuneplex_request_duration_seconds"].bounds)
        self._statuses = [0] * 6
        self._outcomes: dict[Outcome, int] = {}

    def answered(self, status: int) -> None:
        """A request got a reply with this status."""
        self._statuses[status // 100] += 1

    def ended(self, outcome: Outcome) -> None:
        """A request that an engine had is over."""
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1

    def spent(self, usage: Usage) -> None:
        """A request that an engine had has taken so many tokens."""
        self.prompt += usage.prompt
        self.completion += usage.completion
        self.cached += usage.cached
        if not usage.exact:
            self.counted += 1

    def statuses(self) -> list[tuple[str, int]]:
        """Counts by class of status: `2xx`."""
        return [(f"{first}xx", count) for first, count in enumerate(self._statuses) if count]

    def outcomes(self) -> list[tuple[str, int]]:
        """Counts by outcome."""
        return [(outcome.value, count) for outcome, count in self._outcomes.items()]


class Counters:
    """The numbers of one gateway since its start."""

    def __init__(self) -> None:
        self._tallies: dict[Labels, Tally] = {}
        self._waited: dict[str, Histogram] = {}
        self._events: dict[str, dict[Labels, int]] = {}

    def tally(self, route: str, model: str) -> Tally:
        """The numbers of a route and a model; what is not for a known model counts as the model ``""``."""
        tally = self._tallies.get((route, model))
        if tally is None:
            tally = self._tallies[route, model] = Tally()
        return tally

    def refused(self, model: str, reason: str) -> None:
        """A request was refused instead of waiting, or of waiting longer."""
        self._count("tuneplex_refused_waiting_total", model, reason)

    def left(self, model: str) -> None:
        """A client left while its request was waiting."""
        self._count("tuneplex_left_waiting_total", model)

    def replayed(self, source: str) -> None:
        """A request with a key got the reply to an earlier one: `running` here, `elsewhere`, or `stored`."""
        self._count("tuneplex_replayed_total", source)

    def unkept(self, reason: str) -> None:
        """A reply to a request with a key was not kept: the store is `full`, or has `failed`."""
        self._count("tuneplex_unkept_total", reason)

    def waited(self, model: str, seconds: float) -> None:
        """A request has waited and goes to a replica now."""
        if model not in self._waited:
            self._waited[model] = Histogram(CATALOGUE["tuneplex_waited_seconds"].bounds)
        self._waited[model].observe(seconds)

    def retried(self, model: str, reason: str) -> None:
        """A request is sent again because its try ended like this."""
        self._count("tuneplex_retries_total", model, reason)

    def not_retried(self, model: str) -> None:
        """A request would have been sent again, had there not been too many of them already."""
        self._count("tuneplex_retries_denied_total", model)

    def hedged(self, model: str, *, won: bool) -> None:
        """A second engine was asked for a request; with `won` it was the faster one."""
        self._count("tuneplex_hedges_total", model, "second" if won else "first")

    def migrated(self, model: str, reason: str) -> None:
        """A stream goes on at another replica because it ended like this at the one before."""
        self._count("tuneplex_migrations_total", model, reason)

    def quarantined(self, model: str) -> None:
        """A request is refused because engines ended at it."""
        self._count("tuneplex_quarantined_total", model)

    def breaker_opened(self, replica: str) -> None:
        """A replica gets no requests for a while."""
        self._count("tuneplex_breaker_opened_total", replica)

    def _count(self, family: str, *labels: str) -> None:
        counts = self._events.setdefault(family, {})
        counts[labels] = counts.get(labels, 0) + 1

    def counts(self) -> dict[str, list[tuple[Labels, float]]]:
        """As `GatewayReport.counters` wants them."""
        tallies = self._tallies.items()
        events = {
            family: [(labels, float(count)) for labels, count in counts.items()]
            for family, counts in self._events.items()
        }
        return {
            **events,
            "tuneplex_requests_total": [
                ((*labels, status), float(count)) for labels, tally in tallies for status, count in tally.statuses()
            ],
            "tuneplex_outcomes_total": [
                ((*labels, outcome), float(count)) for labels, tally in tallies for outcome, count in tally.outcomes()
            ],
            "tuneplex_received_bytes_total": [(labels, float(tally.received)) for labels, tally in tallies],
            "tuneplex_sent_bytes_total": [(labels, float(tally.sent)) for labels, tally in tallies],
            "tuneplex_prompt_tokens_total": [(labels, float(tally.prompt)) for labels, tally in tallies],
            "tuneplex_cached_prompt_tokens_total": [(labels, float(tally.cached)) for labels, tally in tallies],
            "tuneplex_completion_tokens_total": [(labels, float(tally.completion)) for labels, tally in tallies],
            "tuneplex_counted_requests_total": [(labels, float(tally.counted)) for labels, tally in tallies],
        }

    def buckets(self) -> dict[str, list[tuple[Labels, tuple[float, ...]]]]:
        """As `GatewayReport.buckets` wants them."""
        first_token = [(labels, tally.first_token_s.numbers()) for labels, tally in self._tallies.items()]
        duration = [(labels, tally.duration_s.numbers()) for labels, tally in self._tallies.items()]
        return {
            "tuneplex_time_to_first_token_seconds": [sample for sample in first_token if any(sample[1])],
            "tuneplex_request_duration_seconds": [sample for sample in duration if any(sample[1])],
            "tuneplex_waited_seconds": [((model,), waited.numbers()) for model, waited in self._waited.items()],
        }


class Histogram:
    """Counts by bucket, and the sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def numbers(self) -> tuple[float, ...]:
        """Counts per bucket, the one above all bounds, and the sum."""
        return (*map(float, self._counts), self._sum)
