"""The store of a fleet that does not run, after it has taken in what the gateways had left in their journals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tuneplex.app.state import StateDir
from tuneplex.cli.store import alone, opened
from tuneplex.control.bookkeeper import Bookkeeper
from tuneplex.control.journals import Journals
from tuneplex.errors import StateError, TuneplexError, UserError
from tuneplex.journal import Finished
from tuneplex.records import Store

__all__ = ["readable", "settled"]


class _StoppedError(Exception):
    """The store has failed; the journals would wait for it."""


@contextmanager
def readable(state: StateDir) -> Iterator[Store]:
    """The fleet's store, of this program's revision.

    Raises:
        UserError: It is refused for a reason.
        TuneplexError: The database does not answer.
    """
    with opened(state) as store:
        facts = store.facts(time.time())
        if facts.revision is None:
            raise UserError(f"there is no store yet ({facts.where})", hint="a fleet's first start makes it")
        if facts.revision != facts.newest:
            words = f"the store is of revision {facts.revision}, and this version needs {facts.newest}"
            raise UserError(words, hint="`tuneplex store upgrade` brings it there")
        yield store


@contextmanager
def settled(state: StateDir) -> Iterator[Store]:
    """The same, and all that the fleet has done is in it; nothing can be added if it runs, for then control does that.

    Raises:
        UserError: It is refused for a reason.
        TuneplexError: The database does not answer.
    """
    with readable(state) as store:
        if not state.is_locked():
            _settle(state, store)
        yield store


def _settle(state: StateDir, store: Store) -> None:
    try:
        with alone(state):
            asyncio.run(_take(state, store))
    except StateError:
        return  # it has just been started, and control takes the journals in itself
    except _StoppedError as stopped:
        if isinstance(stopped.__cause__, TuneplexError):
            raise stopped.__cause__ from None
        raise


async def _take(state: StateDir, store: Store) -> None:
    fleet = state.read_spec().name

    async def keep(finished: Sequence[Finished]) -> None:
        try:
            await asyncio.to_thread(store.keep_requests, fleet, finished)
        except (TuneplexError, OSError) as error:
            raise _StoppedError(str(error)) from error

    await Journals(state.journal, [Bookkeeper(keep)]).settle()
