"""What requests cost, and that nothing of it is ever lost."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tuneplex.engines.usage import Usage
from tuneplex.errors import RateLimited
from tuneplex.gateway.accounts import FREE, Cost
from tuneplex.gateway.admission import Admission, Ticket
from tuneplex.gateway.estimate import Estimate
from tuneplex.gateway.money import cost_of, spent
from tuneplex.identity import Limits, Subject
from tuneplex.types import Price

PRICES = st.builds(Price, *[st.integers(0, 10**12)] * 3)
COUNTS = st.integers(0, 2**40)
NAME = "tenant acme"


@given(PRICES, COUNTS, COUNTS, COUNTS)
def test_a_cost_is_exact(price: Price, prompt: int, completion: int, cached: int) -> None:
    """It is the sum of what each token costs, and more cached tokens than there are in the prompt cost nothing more."""
    cached = min(cached, prompt)
    exact = Fraction(price.prompt) * (prompt - cached) + Fraction(price.cached) * cached
    assert price.of(prompt, completion, cached) == exact + Fraction(price.completion) * completion
    assert price.of(prompt, completion, prompt + 5) == price.of(prompt, completion, prompt)


@given(PRICES, COUNTS, COUNTS)
def test_a_stream_needs_less(price: Price, prompt: int, completion: int) -> None:
    """Its prompt and one token of the answer; a whole reply needs all of it, as far as anything comes."""
    needed = Estimate(prompt, completion)
    whole, stream = cost_of(price, needed, stream=False), cost_of(price, needed, stream=True)
    assert whole.most == whole.least == stream.most == price.of(prompt, completion)
    assert stream.least == price.of(prompt, min(1, completion))


def test_what_has_no_price_costs_nothing() -> None:
    """Neither before nor after."""
    assert cost_of(None, Estimate(10, 10), stream=True) == FREE
    assert spent(None, Usage(10, 10)) == 0
    assert spent(Price(3, 5, 1), Usage(10, 2, 4)) == 6 * 3 + 4 * 1 + 2 * 5


REQUESTS = st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**13), st.booleans(), st.booleans()))


@given(REQUESTS, st.none() | st.integers(1, 10**13), st.booleans())
def test_sums_never_lose_a_pico(requests: list[tuple[int, int, bool, bool]], limit: int | None, cuts: bool) -> None:  # noqa: FBT001 - hypothesis calls it
    """Whatever is reserved, cut, settled or cancelled: in the end exactly what was used is spent."""
    admission = Admission(0)
    subject = Subject(NAME, Limits(requests_per_minute=10**6, money_per_month=limit, cut_streams=cuts))
    under_way: list[tuple[Ticket, int]] = []
    expected = 0
    for reserved, used, stream, cancelled in requests:
        try:
            ticket = admission.admit((subject,), 0, 1.0, 1.0, Cost(reserved, 0 if stream else reserved))
        except RateLimited:
            continue
        ticket.ended_by(used)
        if cancelled:
            ticket.cancel()
        else:
            under_way.append((ticket, used))
            expected += used
    for ticket, used in under_way:
        ticket.settle(0, used)
    reported, _ = admission.report(1.0, 1.0)
    assert (reported[NAME].spent["money_per_month"].amount if NAME in reported else 0) == expected
    assert all(account.reserved == 0 for account in admission._accounts.values())
