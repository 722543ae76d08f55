"""Counts, and the page that is made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tuneplex.engines.usage import Usage
from tuneplex.gateway.counters import Counters, Histogram, Outcome
from tuneplex.gateway.gaps import Gaps
from tuneplex.metrics import CATALOGUE, render
from tuneplex.types import GatewayReport


def report(counters: Counters, outstanding: dict[str, int]) -> GatewayReport:
    """What a gateway with these numbers reports."""
    return GatewayReport(0, 1, 1, outstanding, counters.counts(), counters.buckets())


def samples(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The page, read as Prometheus reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_reports_of_several_gateways_add_up() -> None:
    """Counters, gauges and every bucket of a histogram are sums."""
    counters = Counters()
    tally = counters.tally("completions", "legal")
    tally.answered(200)
    tally.answered(503)
    tally.ended(Outcome.COMPLETE, "default")
    tally.received += 7
    for seconds in (0.004, 0.3, 1000.0):
        tally.first_token_s.observe(seconds)
    page = samples(render([report(counters, {"r0": 2}), report(counters, {"r0": 1, "r1": 1})]))
    labels = frozenset({("route", "completions"), ("model", "legal")})
    assert page["tuneplex_requests_total", labels | {("status", "2xx")}] == 2
    assert page["tuneplex_requests_total", labels | {("status", "5xx")}] == 2
    assert page["tuneplex_outcomes_total", labels | {("outcome", "complete"), ("pool", "default")}] == 2
    assert page["tuneplex_received_bytes_total", labels] == 14
    assert page["tuneplex_outstanding_requests", frozenset({("replica", "r0")})] == 3
    name = "tuneplex_time_to_first_token_seconds"
    assert page[f"{name}_bucket", labels | {("le", "0.005")}] == 2
    assert page[f"{name}_bucket", labels | {("le", "0.3")}] == 4
    assert page[f"{name}_bucket", labels | {("le", "300.0")}] == 4
    assert page[f"{name}_bucket", labels | {("le", "+Inf")}] == 6
    assert page[f"{name}_count", labels] == 6


def test_every_family_is_on_an_empty_page() -> None:
    """A dashboard finds all names before the first request."""
    page = render([report(Counters(), {})]).decode()
    assert all(f"# TYPE {name} " in page for name in CATALOGUE)


def test_what_waits_adds_up() -> None:
    """What waits in several gateways is one number, and so is what was refused, left, or had waited."""
    counters = Counters()
    counters.refused("legal", "overloaded")
    counters.refused("legal", "overloaded")
    counters.left("legal")
    counters.waited("legal", 0.3)
    reports = [
        GatewayReport(number, 1, 1, {}, counters.counts(), counters.buckets(), waiting=number + 1) for number in (0, 1)
    ]
    page = samples(render(reports))
    model = frozenset({("model", "legal")})
    assert page["tuneplex_waiting_requests", frozenset()] == 3
    assert page["tuneplex_refused_waiting_total", model | {("reason", "overloaded")}] == 4
    assert page["tuneplex_left_waiting_total", model] == 2
    assert page["tuneplex_waited_seconds_count", model] == 2
    assert page["tuneplex_waited_seconds_bucket", model | {("le", "0.25")}] == 0
    assert page["tuneplex_waited_seconds_bucket", model | {("le", "0.5")}] == 2


def test_what_failures_lead_to_is_counted() -> None:
    """Requests that were sent again, hedged, moved or refused for that are on the page, and openings of breakers."""
    counters = Counters()
    counters.retried("legal", "broken")
    counters.retried("legal", "broken")
    counters.not_retried("legal")
    counters.hedged("legal", won=True)
    counters.hedged("legal", won=False)
    counters.migrated("legal", "dead")
    counters.quarantined("legal")
    counters.breaker_opened("r0")
    page = samples(render([report(counters, {})]))
    legal = {("model", "legal")}
    assert page["tuneplex_retries_total", frozenset(legal | {("reason", "broken")})] == 2
    assert page["tuneplex_retries_denied_total", frozenset(legal)] == 1
    assert page["tuneplex_hedges_total", frozenset(legal | {("winner", "first")})] == 1
    assert page["tuneplex_hedges_total", frozenset(legal | {("winner", "second")})] == 1
    assert page["tuneplex_migrations_total", frozenset(legal | {("reason", "dead")})] == 1
    assert page["tuneplex_quarantined_total", frozenset(legal)] == 1
    assert page["tuneplex_breaker_opened_total", frozenset({("replica", "r0")})] == 1


def test_outcomes_and_tokens_are_told_by_pool() -> None:
    """What the replicas of one pool have done is apart from what those of another one have, for the same model."""
    counters = Counters()
    tally = counters.tally("completions", "legal")
    for pool, prompt, exact in (("small", 3, True), ("small", 4, False), ("large", 50, True)):
        tally.ended(Outcome.COMPLETE, pool)
        tally.spent(Usage(prompt, 2 * prompt, 1, exact=exact), pool)
    tally.ended(Outcome.BROKEN, "large")
    page = samples(render([report(counters, {}), report(counters, {})]))
    small, large = ({("route", "completions"), ("model", "legal"), ("pool", pool)} for pool in ("small", "large"))
    assert page["tuneplex_outcomes_total", frozenset(small | {("outcome", "complete")})] == 4
    assert page["tuneplex_outcomes_total", frozenset(large | {("outcome", "complete")})] == 2
    assert page["tuneplex_outcomes_total", frozenset(large | {("outcome", "broken")})] == 2
    assert page["tuneplex_prompt_tokens_total", frozenset(small)] == 14
    assert page["tuneplex_completion_tokens_total", frozenset(small)] == 28
    assert page["tuneplex_cached_prompt_tokens_total", frozenset(small)] == 4
    assert page["tuneplex_counted_requests_total", frozenset(small)] == 2
    assert page["tuneplex_prompt_tokens_total", frozenset(large)] == 100
    assert page["tuneplex_counted_requests_total", frozenset(large)] == 0


@given(st.lists(st.one_of(st.sampled_from((0.0, 0.002, 0.0021, 10.0, 11.0)), st.floats(0, 20)), min_size=1))
def test_many_values_at_once_are_counted_as_one_by_one(values: list[float]) -> None:
    """Each falls into its bucket, those on a border into the lower one, and the sum is theirs."""
    bounds = CATALOGUE["tuneplex_inter_token_seconds"].bounds
    together, each = Histogram(bounds), Histogram(bounds)
    for value in values:
        each.observe(value)
    together.observe_all(list(values))
    assert together.numbers()[:-1] == each.numbers()[:-1]
    assert together.numbers()[-1] == pytest.approx(each.numbers()[-1])


def test_the_gaps_of_a_stream() -> None:
    """All gaps are counted once, those of a long stream on its way, and each token took the mean."""
    counters = Counters()
    gaps = Gaps(*counters.between_tokens("legal"))
    for number in range(1000):
        gaps.mark(number / 64)
        gaps.trim()
    gaps.end(1999)
    page = samples(render([report(counters, {})]))
    model = frozenset({("model", "legal")})
    assert page["tuneplex_inter_token_seconds_count", model] == 999
    assert page["tuneplex_inter_token_seconds_sum", model] == pytest.approx(999 / 64)
    assert page["tuneplex_inter_token_seconds_bucket", model | {("le", "0.015")}] == 0
    assert page["tuneplex_inter_token_seconds_bucket", model | {("le", "0.02")}] == 999
    assert page["tuneplex_time_per_output_token_seconds_count", model] == 1
    assert page["tuneplex_time_per_output_token_seconds_sum", model] == pytest.approx(999 / 64 / 1998)


@pytest.mark.parametrize("marks, tokens", [(0, 0), (0, 5), (1, 1), (1, 5), (2, 1)])
def test_a_stream_of_one_piece_or_token_has_no_time_for_each(marks: int, tokens: int) -> None:
    """Nothing is divided by nothing, and what came at once says nothing of an engine's speed."""
    counters = Counters()
    gaps = Gaps(*counters.between_tokens("legal"))
    for number in range(marks):
        gaps.mark(number)
    gaps.end(tokens)
    assert counters.buckets()["tuneplex_time_per_output_token_seconds"] == []
