"""`why`: what became of requests that are over, from the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli.admin import Admin
from tuneplex.cli.offline import settled
from tuneplex.cli.terminal import Terminal
from tuneplex.cli.times import moment
from tuneplex.cli.why import lines
from tuneplex.errors import UserError
from tuneplex.journal import Finished
from tuneplex.records import MOST_FOUND
from tuneplex.units import format_long
from tuneplex.why import Tokens, Told, Tried

__all__ = ["show", "story"]

_WORKED = "complete"
_NOT_SENT = "rejected"


def show(state: StateDir, request_id: str, *, as_json: bool) -> int:
    """Print the stories of all requests with this id.

    Raises:
        UserError: There is none.
        TuneplexError: Control or the database does not answer.
    """
    terminal = Terminal.standard()
    found = _find(state, request_id)
    if not found:
        kept = format_long(state.read_spec().records.keep_s)
        hint = f"a request is there about a second after its end, and is kept for {kept}"
        raise UserError(f"no request {request_id!r} is kept", hint=hint)
    if as_json:
        terminal.json(msgspec.to_builtins(found))
        return 0
    for at, one in enumerate(found):
        if at:
            terminal.gap()
        for line in story(one):
            terminal.say(line)
    if len(found) == MOST_FOUND:
        terminal.warn(f"these are the last {MOST_FOUND} with this id; there may be more")
    return 0


def _find(state: StateDir, request_id: str) -> Sequence[Finished]:
    if state.is_locked():
        with Admin(state.admin_socket) as admin:
            return admin.requests(request_id)
    with settled(state) as store:
        return store.requests(state.read_spec().name, request_id)


def story(one: Finished) -> Iterator[str]:
    """A line for each thing that happened to a request, in their order."""
    yield _who(one)
    yield from lines(_told(one))
    yield _end(one)


def _who(one: Finished) -> str:
    who = f"from {one.tenant}, by the key {one.key_id}" if one.tenant else "from nobody that is known"
    others = f", one of {one.count} like it" if one.count > 1 else ""
    what = one.version or one.model or "no model that there is"
    kind = ", as a stream" if one.stream else ""
    return f"{one.request_id} came {moment(one.arrived, exact=True)} {who}, for {what}{kind}{others}"


def _told(one: Finished) -> Told:
    """It in the words of `x-tuneplex-why`."""
    tokens = Tokens(one.prompt, one.cached, one.completion, exact=not one.estimated) if one.attempts else None
    return Told(
        one.request_id,
        one.version,
        max(0.0, one.closed - one.arrived),
        one.waited_s,
        first_token_s=one.first_token_s,
        attempts=list(_attempts(one)),
        tokens=tokens,
    )


def _attempts(one: Finished) -> Iterator[Tried]:
    written = 0
    for tried in one.attempts:
        yield Tried(
            tried.replica,
            max(0.0, tried.at - one.arrived),
            0,
            ended=tried.outcome,
            took_s=tried.took_s,
            goes_on=written > 0 and tried.prompt > one.prompt,
            pool=tried.pool,
            wrote=tried.completion,
        )
        written += tried.completion


def _end(one: Finished) -> str:
    status = f", with status {one.status}" if one.status else ""
    if one.outcome == _WORKED:
        return f"it was complete{status}"
    if one.outcome == _NOT_SENT:
        return f"it was refused{status}: {one.code or 'no code'}"
    return f"it ended as {one.outcome}{status}{f': {one.code}' if one.code else ''}"
