"""`store`: look at the database of tenants and keys, back it up, restore it, bring it to a newer revision."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli.terminal import Cell, Sheet, Terminal
from tuneplex.errors import StateError, StoreConflict, StoreDown, StoreError, TuneplexError, UserError
from tuneplex.records import Store, StoreFacts, StoreRefused

__all__ = ["alone", "backup", "opened", "restore", "show", "upgrade"]


def show(state: StateDir, *, as_json: bool) -> int:
    """Print where the store is, which revision it has and how much it holds.

    Raises:
        UserError: The store cannot be used.
        TuneplexError: The database does not answer.
    """
    terminal = Terminal.standard()
    with opened(state) as store:
        facts = store.facts(time.time())
    if as_json:
        terminal.json(msgspec.to_builtins(facts))
    else:
        terminal.show(_sheet(facts))
    if facts.revision not in {None, facts.newest}:
        terminal.warn(f"this version needs revision {facts.newest}; `tuneplex store upgrade` brings the store there")
    return 0


def _sheet(facts: StoreFacts) -> Sheet:
    newest = facts.revision == facts.newest
    revision = "none yet" if facts.revision is None else facts.revision
    counts = [str(count) if count is not None else "" for count in (facts.tenants, facts.keys, facts.active)]
    row = (Cell(facts.where, "bold"), Cell(revision, "" if newest else "yellow"), *map(Cell, counts))
    columns = ("STORE", "REVISION", "TENANTS", "KEYS", "ACTIVE")
    return Sheet(columns, (row,), right=frozenset(columns[2:]), flexible=frozenset({"STORE"}))


def backup(state: StateDir, file: Path, *, force: bool) -> int:
    """Write the whole store into a file.

    Raises:
        UserError: The file is there, or cannot be written.
        TuneplexError: The database does not answer.
    """
    with opened(state, conflict_hint="--force replaces it") as store:
        count = store.backup(file, time.time(), overwrite=force)
    Terminal.standard().say(f"{count} rows of {store.where} are in {file}")
    return 0


def restore(state: StateDir, file: Path, *, replace: bool) -> int:
    """Take the whole store from a backup.

    Raises:
        UserError: The fleet runs, the store holds something already, or the file is no backup; nothing was changed.
        TuneplexError: The database does not answer; nothing was changed.
    """
    hint = "--replace loses what is there; `tuneplex store backup FILE` keeps it"
    with alone(state), opened(state, conflict_hint=hint) as store:
        count = store.restore(file, replace=replace)
    Terminal.standard().say(f"{count} rows of {file} are in {store.where}")
    return 0


def upgrade(state: StateDir) -> int:
    """Bring the store's tables to this program's revision.

    Raises:
        UserError: The fleet runs, or the store is another program's.
        TuneplexError: The database does not answer; nothing was changed.
    """
    with alone(state), opened(state) as store:
        done = store.upgrade()
    copy = f"; a copy of the old one is {done.copy}" if done.copy else ""
    was = "has" if done.before == done.after else "is now of"
    Terminal.standard().say(f"{store.where} {was} revision {done.after}{copy}")
    return 0


@contextmanager
def opened(state: StateDir, *, conflict_hint: str = "") -> Iterator[Store]:
    """The fleet's store; what a person can mend about it is told as such.

    Raises:
        UserError: It is refused for a reason.
        TuneplexError: The database does not answer.
    """
    try:
        with closing(Store(state.store_url(state.read_spec()))) as store:
            yield store
    except StoreRefused as error:
        raise UserError(str(error), hint=error.hint) from error
    except StoreDown as error:
        raise TuneplexError(str(error)) from error
    except StoreConflict as error:
        raise UserError(str(error), hint=conflict_hint) from error
    except StoreError as error:
        raise UserError(str(error), hint=error.hint) from error


@contextmanager
def alone(state: StateDir) -> Iterator[None]:
    """Keep the fleet from starting while the block runs.

    Raises:
        StateError: It runs.
    """
    try:
        lock = state.lock()
    except StateError as error:
        raise StateError(f"the fleet in {state.path} runs", hint="end it first with: tuneplex down") from error
    try:
        yield
    finally:
        os.close(lock)
