"""Limits on the command line: what options mean, and what is shown."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.cli import limits as command
from tuneplex.cli import render_limits as render
from tuneplex.cli.terminal import plain
from tuneplex.control.bodies import LimitsInfo, LimitsWish, LimitUse
from tuneplex.errors import UserError


def test_options_become_a_wish() -> None:
    """A number sets a limit, `none` removes it, and what is not given is left out."""
    options = {"requests_per_minute": "60", "tokens_per_day": " None ", "concurrent": None}
    wish = command.given(options)
    assert wish == LimitsWish(requests_per_minute=60, tokens_per_day=None)
    assert msgspec.to_builtins(wish) == {"requests_per_minute": 60, "tokens_per_day": None}


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "10k", "1e3", "1_000", "", "many", str(10**16), "9" * 5000])
def test_what_is_no_limit_is_refused(text: str) -> None:
    """The refusal names the option and says what it takes."""
    with pytest.raises(UserError, match="--tokens-per-minute: ") as caught:
        command.given({"tokens_per_minute": text})
    assert caught.value.hint == "a whole number above 0, or none"


def test_money_is_read_exactly() -> None:
    """An amount goes to the admin API as a decimal, with its currency if that was said; `none` removes the limit."""
    assert command.given({"money_per_month": "25"}) == LimitsWish(money_per_month="25.00")
    assert command.given({"money_per_month": "0.000015 EUR"}) == LimitsWish(money_per_month="0.000015 EUR")
    assert command.given({"money_per_month": "none"}, cut_streams=False) == LimitsWish(
        money_per_month=None, cut_streams=False
    )
    for text in ("0", "-5", "a lot", "5000000", "1e3", "0.0000000000001"):
        with pytest.raises(UserError, match="--money-per-month: ") as caught:
            command.given({"money_per_month": text})
        assert "none" in caught.value.hint


def test_limits_in_words() -> None:
    """All limits stand in one line, in a fixed order; without any there is nothing."""
    everything = LimitsInfo(requests_per_minute=60, tokens_per_minute=1000, tokens_per_day=9, concurrent=4)
    assert render.limits(everything) == "60 requests/min, 1000 tokens/min, 9 tokens/day, 4 at a time"
    assert render.limits(LimitsInfo()) == ""
    money = LimitsInfo(concurrent=4, money_per_month="25.00", currency="EUR")
    assert render.limits(money) == "4 at a time, 25.00 EUR/month"
    assert render.limits(msgspec.structs.replace(money, cut_streams=True)).endswith("25.00 EUR/month (cuts streams)")


def test_use_stands_beside_the_limit() -> None:
    """What has a limit is shown as a part of it; what has none is left empty."""
    limits = LimitsInfo(requests_per_minute=10, tokens_per_day=500, money_per_month="2.50", currency="EUR")
    used = LimitUse("tenant acme", limits, 10, 300, 20, "2.500001", "EUR", 1, 7)
    sheet = render.uses([used])
    texts = ["tenant acme", "10 of 10", "", "20 of 500", "", "2.500001 of 2.50 EUR", "7"]
    assert [cell.text for cell in sheet.rows[0]] == texts
    assert [cell.style for cell in sheet.rows[0]] == ["bold", "red", "", "", "", "red", "yellow"]
    below = msgspec.structs.replace(used, month_money="2.499999999999")
    assert render.uses([below]).rows[0][5].style == ""


def test_a_fleet_without_limits_says_how_to_set_one() -> None:
    """An empty table is a hint."""
    assert "tuneplex tenants set" in plain(render.uses([]))
