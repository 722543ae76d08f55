"""What `slo` makes of sums."""

from __future__ import annotations

import pytest

from tuneplex.cli.slo import Goals, Kept, grouping, judged, sheet
from tuneplex.cli.terminal import plain
from tuneplex.errors import UserError
from tuneplex.policy import Service
from tuneplex.records import FirstTokens
from tuneplex.types import Objective

GOALS = Goals(Objective(99.9), {"legal": Objective(95.0, 2.0)})


def of(name: str, *, good: int, bad: int, first: FirstTokens | None = None) -> Kept:
    """What is told of a model with so many requests in each time."""
    service: dict[tuple[str, ...], Service] = {(name,): Service.of(good, bad, GOALS.model(name).availability)}
    (found,) = judged(("model",), [service, service, {}], {(name,): first} if first else {}, GOALS)
    return found


def test_a_budget_is_used_and_left() -> None:
    """A model with a target of its own is judged by it; a time in which nobody asked has no rate."""
    found = of("legal", good=98, bad=2)
    assert (found.requests, found.bad, found.availability, found.target) == (100, 2, 98.0, 95.0)
    assert [found.budget_used, found.budget_left, found.burn_1h] == pytest.approx([0.4, 0.6, 0.4])
    assert (found.burn_6h, found.kept) == (None, True)


@pytest.mark.parametrize(
    "good, bad, p95_s, kept",
    [(95, 5, 1.0, False), (96, 4, 2.0, True), (96, 4, 2.001, False), (0, 1, 1.0, False)],
)
def test_what_is_not_kept(good: int, bad: int, p95_s: float, *, kept: bool) -> None:
    """A budget that is used up is not kept, nor is a target for the first token that is missed."""
    found = of("legal", good=good, bad=bad, first=FirstTokens(0.5, p95_s))
    assert found.kept == kept
    assert found.budget_left >= 0


def test_groups_that_nobody_asked_are_left_out() -> None:
    """Only whoever has asked for something that counts has a row, in the order of the names."""
    services: dict[tuple[str, ...], Service] = {
        ("b", "x"): Service.of(1, 0, 99.9),
        ("a", "y"): Service.of(1, 0, 99.9),
        ("c", "z"): Service(),
    }
    found = judged(("model", "tenant"), [services, {}, {}], {}, GOALS)
    assert [tuple(one.group.values()) for one in found] == [("a", "y"), ("b", "x")]


def test_numbers_are_shown_without_flattering() -> None:
    """One bad request in a million is not 100 %, and what is unknown is left empty."""
    rows = [of("contacts", good=999_999, bad=1), of("", good=0, bad=1)]
    told = plain(sheet(rows, ("model",), "30d")).splitlines()
    assert told[1].split() == ["contacts", "1000000", "1", "99.999", "%", "99.9", "%", "0.1", "%", "0.0"]
    assert told[2].startswith("(unknown)")
    assert plain(sheet([], ("model",), "30d")) == "nobody has asked for anything in the last 30d"


@pytest.mark.parametrize("text", ["", "pool", "model,model", "model;tenant"])
def test_other_groups_are_refused(text: str) -> None:
    """What requests cannot be told apart by is refused with what can be written."""
    with pytest.raises(UserError, match="--by"):
        grouping(text)
    assert grouping("tenant, model") == ("tenant", "model")
