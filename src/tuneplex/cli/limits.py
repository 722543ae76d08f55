"""`limits`: how much may be asked, and how much was."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli import render_limits as render
from tuneplex.cli.admin import Admin
from tuneplex.cli.terminal import Terminal
from tuneplex.control.bodies import Amount, LimitsWish
from tuneplex.errors import UserError
from tuneplex.units import MOST_MONEY, PICOS, format_money, parse_money

__all__ = ["given", "show"]

_NONE = "none"
_WHOLE = re.compile(r"[0-9]{1,20}")


def show(state: StateDir, *, as_json: bool) -> int:
    """Print all that have limits, and what they have used of them.

    Raises:
        TuneplexError: Control does not answer.
    """
    terminal = Terminal.standard()
    with Admin(state.admin_socket) as admin:
        found = admin.limits()
    if as_json:
        terminal.json(msgspec.to_builtins(found))
    else:
        terminal.show(render.uses(found))
    return 0


def given(options: Mapping[str, str | None], *, cut_streams: bool | None = None) -> LimitsWish:
    """What the options say about limits; what was not given is not set, and `none` takes a limit away.

    Args:
        options: By the names of `identity.Limits`.
        cut_streams: See `identity.Limits`.

    Raises:
        UserError: A value is neither a number above 0 nor `none`.
    """
    found: dict[str, Any] = {name: _amount(name, text) for name, text in options.items() if text is not None}
    return LimitsWish(**found) if cut_streams is None else LimitsWish(**found, cut_streams=cut_streams)


def _amount(name: str, text: str) -> int | str | None:
    if text.strip().lower() == _NONE:
        return None
    if name == "money_per_month":
        return _money(text)
    try:
        return msgspec.convert(int(text) if _WHOLE.fullmatch(text.strip()) else text, Amount)
    except msgspec.ValidationError:
        option = f"--{name.replace('_', '-')}"
        raise UserError(f"{option}: {text!r} is not a limit", hint=f"a whole number above 0, or {_NONE}") from None


def _money(text: str) -> str:
    """An amount as the admin API takes it: `25`, `25.00 EUR`."""
    try:
        picos, currency = parse_money(text)
    except ValueError as error:
        raise UserError(f"--money-per-month: {error}", hint=f"or {_NONE} for no limit") from None
    if not 0 < picos <= MOST_MONEY:
        hint = f"an amount above 0 and up to {MOST_MONEY // PICOS}, or {_NONE} for no limit"
        raise UserError(f"--money-per-month: {text!r} is not a limit", hint=hint)
    return format_money(picos, currency)
