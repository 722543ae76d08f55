"""How usage is asked for, and what is answered."""

from __future__ import annotations

import pytest

from tuneplex.control.usage_bodies import day_number, day_text, usage_question, usage_report
from tuneplex.errors import BadRequest
from tuneplex.records import Usage

NOW = 1_796_083_200.5  # 2026-12-01


def test_without_parameters_it_is_by_tenant_and_of_thirty_days() -> None:
    """Who asks for nothing in particular sees the tenants of the last thirty days, today included."""
    question = usage_question({}, NOW)
    assert question.by == ("tenant",)
    assert (day_text(question.since), day_text(question.until)) == ("2026-11-02", "2026-12-01")
    assert question.only == {}


def test_parameters_have_the_names_that_people_know() -> None:
    """A key is `key` for people, and what the store calls it in the store."""
    query = {"by": "key,day", "since": "2026-11-30", "until": "2026-11-30", "key": "k1", "model": "sql"}
    question = usage_question(query, NOW)
    assert question.store_groups == ["key_id", "day"]
    assert question.store_only == {"key_id": "k1", "model": "sql"}
    assert question.since == question.until == day_number("2026-11-30")
    assert usage_question({"by": ""}, NOW).by == ()


@pytest.mark.parametrize(
    "query, param",
    [
        ({"by": "colour"}, "by"),
        ({"by": "day,day"}, "by"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-13-01"}, "since"),
        ({"until": "1969-12-31"}, "until"),
        ({"since": "2026-12-02", "until": "2026-12-01"}, "since"),
    ],
)
def test_what_makes_no_sense_is_refused(query: dict[str, str], param: str) -> None:
    """A refusal names the parameter at fault."""
    with pytest.raises(BadRequest) as refused:
        usage_question(query, NOW)
    assert refused.value.param == param


def test_rows_add_up_to_the_total() -> None:
    """Every number of the total is the sum of the rows, and days are dates."""
    question = usage_question({"by": "day,key", "since": "2026-11-30"}, NOW)
    day = day_number("2026-11-30")
    found = [
        Usage({"day": day, "key_id": "k1"}, 2, 10, 3, 20, 1, 4, 5),
        Usage({"day": day + 1, "key_id": "k1"}, 1, 1, 0, 2, 0),
    ]
    report = usage_report(question, found)
    assert [row.group for row in report.rows] == [
        {"day": "2026-11-30", "key": "k1"},
        {"day": "2026-12-01", "key": "k1"},
    ]
    total = report.total
    assert (total.requests, total.prompt_tokens, total.cached_prompt_tokens, total.completion_tokens) == (3, 11, 3, 22)
    estimated = (total.estimated_requests, total.estimated_prompt_tokens, total.estimated_completion_tokens)
    assert estimated == (1, 4, 5)


def test_nothing_adds_up_to_nothing() -> None:
    """Without requests there is a total of zero."""
    assert usage_report(usage_question({}, NOW), []).total.requests == 0
