"""The one place where a database's errors become ours, with words that a person can use and without a password."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from tuneplex.errors import StoreConflict, StoreDown

__all__ = ["StoreRefused", "answering"]

_RIGHTS = "the database's user lacks rights; let it create and change tables there"
_DAMAGED = "the file is damaged; move it away, then `tuneplex store restore` a backup"
# The first pattern that fits the database's own message decides what is said.
_REFUSALS = (
    (r"file is not a database|malformed|file is encrypted", _DAMAGED),
    (r"password authentication failed", "it refuses the user or the password; mend the URL"),
    (r"no password supplied|no pg_hba\.conf entry", "it does not let this user in; mend the URL or the server's rules"),
    (r"(database|role) \"[^\"]*\" does not exist", "it has no such database or user; make it, or mend the URL"),
    (r"permission denied (for|to) |must be owner", _RIGHTS),
    (r"invalid (connection|integer|port|sslmode|uri)|invalid .*value|unsupported", "the URL is not one; mend it"),
)
_OUTAGES = (
    (r"database is locked|database table is locked", "another process holds it locked"),
    (r"database or disk is full|no space left", "the disk is full"),
    (r"readonly database|read-only", "it can only be read"),
    (r"unable to open database file", "the file cannot be opened"),
    (r"disk i/o error", "the disk fails, or is full"),
    (r"lock timeout|canceling statement", "it takes too long"),
    (r"too many clients|remaining connection slots", "it has no connection left"),
)
_SQLSTATE_OF_RIGHTS = "42501"


class StoreRefused(StoreDown):
    """The database answers, and refuses: waiting will not help, a person must mend something."""


@contextmanager
def answering(where: str, conflict: str = "it exists already") -> Iterator[None]:
    """Turn what the database raises in the block into errors of the store.

    Args:
        where: Which database, without secrets.
        conflict: What it means when a constraint is broken.

    Raises:
        StoreConflict: A constraint is broken, or a value is none that the database knows.
        StoreRefused: The database will go on to refuse.
        StoreDown: It does not answer, or cannot do it now.
    """
    try:
        yield
    except exc.IntegrityError as error:
        raise StoreConflict(conflict) from error
    except exc.DataError as error:
        raise StoreConflict(f"the store ({where}) cannot keep such a value: {_words(error)}") from error
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise _down(where, error) from error


def _down(where: str, error: Exception) -> StoreDown:
    cause, words = getattr(error, "orig", error), _words(error)
    lacks_rights = getattr(cause, "sqlstate", None) == _SQLSTATE_OF_RIGHTS  # in whatever language it says so
    if said := _RIGHTS if lacks_rights else _match(_REFUSALS, words):
        return StoreRefused(f"the store ({where}) cannot be used: {said} ({words})")
    said = _match(_OUTAGES, words)
    return StoreDown(f"the store ({where}) does not answer: " + (f"{said} ({words})" if said else words))


def _words(error: Exception) -> str:
    """What the driver said, in one line and without the statement."""
    return " ".join(str(getattr(error, "orig", error)).split())


def _match(patterns: tuple[tuple[str, str], ...], words: str) -> str:
    return next((said for pattern, said in patterns if re.search(pattern, words, re.IGNORECASE)), "")
