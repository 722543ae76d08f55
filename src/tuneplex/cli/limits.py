"""`limits`: how much may be asked, and how much was."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli import render_limits as render
from tuneplex.cli.admin import Admin
from tuneplex.cli.terminal import Terminal
from tuneplex.control.bodies import Amount, LimitsWish
from tuneplex.errors import UserError

__all__ = ["given", "show"]

_NONE = "none"


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


def given(options: Mapping[str, str | None]) -> LimitsWish:
    """What the options say about limits; what was not given is not set, and `none` takes a limit away.

    Args:
        options: By the names of `identity.Limits`.

    Raises:
        UserError: A value is neither a number above 0 nor `none`.
    """
    return LimitsWish(**{name: _amount(name, text) for name, text in options.items() if text is not None})


def _amount(name: str, text: str) -> int | None:
    if text.strip().lower() == _NONE:
        return None
    try:
        return msgspec.convert(text.strip(), Amount, strict=False)
    except msgspec.ValidationError:
        option = f"--{name.replace('_', '-')}"
        raise UserError(f"{option}: {text!r} is not a limit", hint=f"a whole number above 0, or {_NONE}") from None
