"""`usage`: what was used, by whom and of what. A fleet that runs is asked; else its store is."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli import render_usage as render
from tuneplex.cli.admin import Admin
from tuneplex.cli.days import first_day, last_day
from tuneplex.cli.terminal import Terminal
from tuneplex.control.usage_bodies import UsageQuestion, UsageReport, day_text, usage_question, usage_report
from tuneplex.errors import BadRequest, UserError

__all__ = ["question", "show"]


def question(
    by: str, since: str | None, until: str | None, only: Mapping[str, str | None], now: float
) -> dict[str, str]:
    """What the options ask for, as the admin API takes it.

    Args:
        by: What to tell apart, with commas between.
        since: A date, or how long ago.
        until: The same.
        only: What requests must have, where that was given.
        now: Unix time.

    Raises:
        UserError: An option is nothing.
    """
    given = {name: value for name, value in only.items() if value is not None}
    asked = {"by": ",".join(part.strip() for part in by.split(",") if part.strip()), **given}
    if until is not None:
        asked["until"] = day_text(last_day(until, "--until", now))
    if since is not None:
        asked["since"] = day_text(first_day(since, "--since", now))
    _understood(asked, now)
    return asked


def _understood(asked: Mapping[str, str], now: float) -> UsageQuestion:
    try:
        return usage_question(asked, now)
    except BadRequest as error:
        raise UserError(f"--{error.param}: {error}" if error.param else str(error)) from None


def show(state: StateDir, asked: Mapping[str, str], *, as_json: bool, as_csv: bool) -> int:
    """Print what was used.

    Raises:
        UserError: Both forms were asked for, or the store cannot be used.
        TuneplexError: Control or the database does not answer.
    """
    if as_json and as_csv:
        raise UserError("--json and --csv are two forms", hint="give one of them")
    terminal = Terminal.standard()
    report = _report(state, asked)
    if as_json:
        terminal.json(msgspec.to_builtins(report))
    elif as_csv:
        terminal.write(render.usage_csv(report))
    else:
        terminal.say(f"{report.since} to {report.until}, days of UTC", style="dim")
        terminal.show(render.usage(report))
    return 0


def _report(state: StateDir, asked: Mapping[str, str]) -> UsageReport:
    if state.is_locked():
        with Admin(state.admin_socket) as admin:
            return admin.usage(asked)
    from tuneplex.cli.offline import settled  # noqa: PLC0415 - whoever asks a running fleet needs no database

    wanted = _understood(asked, time.time())
    with settled(state) as store:
        found = store.usage(
            state.read_spec().name,
            by=wanted.store_groups,
            since=wanted.since,
            until=wanted.until,
            only=wanted.store_only,
        )
    return usage_report(wanted, found)
