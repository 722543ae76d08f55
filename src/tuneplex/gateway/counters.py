"""What a gateway counts: plain integers, cheap enough for every request."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from enum import StrEnum

from tuneplex.engines.usage import Usage
from tuneplex.metrics import CATALOGUE

__all__ = ["Counters", "Histogram", "Outcome", "Tally"]

Labels = tuple[str, ...]

_BETWEEN_TOKENS = ("tuneplex_inter_token_seconds", "tuneplex_time_per_output_token_seconds")
_TOKENS = {
    "tuneplex_prompt_tokens_total": "prompt",
    "tuneplex_cached_prompt_tokens_total": "cached",
    "tuneplex_completion_tokens_total": "completion",
    "tuneplex_counted_requests_total": "counted",
}


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


class _InPool:
    """What was asked of the replicas of one pool.

    Attributes:
        prompt: Tokens of prompts.
        completion: Tokens of replies.
        cached: Tokens of prompts that the engines had already.
        counted: Requests whose tokens no engine told.
        outcomes: How the requests ended.
    """

    __slots__ = ("cached", "completion", "counted", "outcomes", "prompt")

    def __init__(self) -> None:
        self.prompt = 0
        self.completion = 0
        self.cached = 0
        self.counted = 0
        self.outcomes: dict[Outcome, int] = {}

    def spent(self, usage: Usage) -> None:
        """One of them has taken so many tokens."""
        self.prompt += usage.prompt
        self.completion += usage.completion
        self.cached += usage.cached
        if not usage.exact:
            self.counted += 1


class Tally:
    """The numbers of one route and model.

    Attributes:
        received: Bytes of request bodies.
        sent: Bytes of replies.
        first_token_s: Streams: from the request to the first event.
        duration_s: From the request to its end.
    """

    __slots__ = (
        "_pools",
        "_statuses",
        "duration_s",
        "first_token_s",
        "received",
        "sent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
        self.first_token_s = Histogram(CATALOGUE["tuneplex_time_to_first_token_seconds"].bounds)
        self.duration_s = Histogram(CATALOGUE["tuneplex_request_duration_seconds"].bounds)
        self._statuses = [0] * 6
        self._pools: dict[str, _InPool] = {}

    def answered(self, status: int) -> None:
        """A request got a reply with this status."""
        self._statuses[status // 100] += 1

    def ended(self, outcome: Outcome, pool: str) -> None:
        """A request that an engine of this pool had is over."""
        outcomes = self._pool(pool).outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    def spent(self, usage: Usage, pool: str) -> None:
        """A request that an engine of this pool had has taken so many tokens."""
        self._pool(pool).spent(usage)

    def _pool(self, name: str) -> _InPool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _InPool()
        return pool

    def statuses(self) -> list[tuple[str, int]]:
        """Counts by class of status: `2xx`."""
        return [(f"{first}xx", count) for first, count in enumerate(self._statuses) if count]

    def pools(self) -> Iterable[tuple[str, _InPool]]:
        """The numbers of each pool by its name."""
        return self._pools.items()


class Counters:
    """The numbers of one gateway since its start."""

    def __init__(self) -> None:
        self._tallies: dict[Labels, Tally] = {}
        self._waited: dict[str, Histogram] = {}
        self._between_tokens: dict[str, tuple[Histogram, Histogram]] = {}
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

    def unrecorded(self, entries: int) -> None:
        """As many entries of the journal could not be written since the start."""
        self._events["tuneplex_journal_lost_total"] = {(): entries}

    def unkept(self, reason: str) -> None:
        """A reply to a request with a key was not kept: the store is `full`, or has `failed`."""
        self._count("tuneplex_unkept_total", reason)

    def waited(self, model: str, seconds: float) -> None:
        """A request has waited, and does so no longer."""
        if model not in self._waited:
            self._waited[model] = Histogram(CATALOGUE["tuneplex_waited_seconds"].bounds)
        self._waited[model].observe(seconds)

    def between_tokens(self, model: str) -> tuple[Histogram, Histogram]:
        """The gaps between the tokens of streams, and what a token took of each of them; both in seconds."""
        pair = self._between_tokens.get(model)
        if pair is None:
            bounds = (CATALOGUE[name].bounds for name in _BETWEEN_TOKENS)
            between, per_token = map(Histogram, bounds)
            pair = self._between_tokens[model] = between, per_token
        return pair

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
        pools = [(labels, name, pool) for labels, tally in tallies for name, pool in tally.pools()]
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
                ((*labels, outcome.value, name), float(count))
                for labels, name, pool in pools
                for outcome, count in pool.outcomes.items()
            ],
            "tuneplex_received_bytes_total": [(labels, float(tally.received)) for labels, tally in tallies],
            "tuneplex_sent_bytes_total": [(labels, float(tally.sent)) for labels, tally in tallies],
            **{
                family: [((*labels, name), float(getattr(pool, field))) for labels, name, pool in pools]
                for family, field in _TOKENS.items()
            },
        }

    def buckets(self) -> dict[str, list[tuple[Labels, tuple[float, ...]]]]:
        """As `GatewayReport.buckets` wants them."""
        first_token = [(labels, tally.first_token_s.numbers()) for labels, tally in self._tallies.items()]
        duration = [(labels, tally.duration_s.numbers()) for labels, tally in self._tallies.items()]
        return {
            "tuneplex_time_to_first_token_seconds": [sample for sample in first_token if any(sample[1])],
            "tuneplex_request_duration_seconds": [sample for sample in duration if any(sample[1])],
            "tuneplex_waited_seconds": [((model,), waited.numbers()) for model, waited in self._waited.items()],
            **{
                family: [
                    ((model,), numbers)
                    for model, pair in self._between_tokens.items()
                    if any(numbers := pair[at].numbers())
                ]
                for at, family in enumerate(_BETWEEN_TOKENS)
            },
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

    def observe_all(self, values: list[float]) -> None:
        """Count many values, of which there is at least one; they are sorted by that.

        Sorting, and then looking for the borders of buckets, takes less than half of looking for each value's bucket.
        """
        values.sort()
        bounds, counts, begin = self._bounds, self._counts, 0
        last = bisect_left(bounds, values[-1])
        for bucket in range(bisect_left(bounds, values[0]), last):
            end = bisect_right(values, bounds[bucket], begin)
            counts[bucket] += end - begin
            begin = end
        counts[last] += len(values) - begin
        self._sum += sum(values)

    def numbers(self) -> tuple[float, ...]:
        """Counts per bucket, the one above all bounds, and the sum."""
        return (*map(float, self._counts), self._sum)
