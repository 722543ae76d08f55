"""The store as a whole: made, brought to a newer revision, looked at."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
from sqlalchemy import Connection, func, or_, select

from tuneplex.errors import StoreError
from tuneplex.records import revisions
from tuneplex.records.database import Database
from tuneplex.records.failures import StoreRefused
from tuneplex.records.tables import keys, meta, tenants

__all__ = ["StoreFacts", "Upgraded", "facts", "prepare", "refuse_other", "upgrade"]


class StoreFacts(msgspec.Struct, frozen=True):
    """What a store holds.

    Attributes:
        where: Which database, without secrets.
        revision: Of its tables; None when there is no store yet.
        newest: The revision that this program works with.
        generation: Grows with every change; None where the revision is another one, like all that follow.
        tenants: How many.
        keys: How many were made and are still remembered.
        active: How many of them open something.
    """

    where: str
    revision: str | None
    newest: str
    generation: int | None = None
    tenants: int | None = None
    keys: int | None = None
    active: int | None = None


class Upgraded(msgspec.Struct, frozen=True):
    """What became of the tables.

    Attributes:
        before: The revision that they had; None when there were none.
        after: The revision that they have.
        copy: Where the file was copied to before, or an empty string.
    """

    before: str | None
    after: str
    copy: str = ""


def prepare(database: Database, refuse_empty: str) -> Upgraded:
    """See `Store.prepare`."""
    if refuse_empty and database.path and not database.path.exists():
        raise StoreRefused(f"the store ({database.where}) is gone", hint=refuse_empty)
    database.create_file()
    with database.reading() as connection:
        revision = revisions.current(connection)
        if refuse_empty and revision is None:
            refuse_other(database, connection, revision)
            raise StoreRefused(f"the store ({database.where}) is empty, and was not", hint=refuse_empty)
    if revision == revisions.head():
        return Upgraded(revision, revision)
    if database.path is None and revision is not None and revisions.is_known(revision):
        message = f"the store ({database.where}) has revision {revision}; this version needs {revisions.head()}"
        raise StoreError(message, hint="`tuneplex store backup FILE`, then `tuneplex store upgrade`")
    return upgrade(database)


def upgrade(database: Database) -> Upgraded:
    """See `Store.upgrade`."""
    copy = ""
    with database.writing() as connection:
        revisions.lock(connection)  # another process may be at it, too
        before = revisions.current(connection)
        refuse_other(database, connection, before)
        if before not in {None, revisions.head()} and database.path:
            copy = _copy(database.path, database.path.with_name(f"{database.path.name}.{before}.bak"))
        revisions.upgrade(connection)
    return Upgraded(before, revisions.head(), copy)


def facts(database: Database, now: float) -> StoreFacts:
    """See `Store.facts`."""
    if database.path and not database.path.exists():
        return StoreFacts(database.where, None, revisions.head())
    with database.reading() as connection:
        revision = revisions.current(connection)
        found = StoreFacts(database.where, revision, revisions.head())
        if revision != revisions.head():
            return found
        active = select(func.count()).where(
            keys.c.revoked.is_(None), or_(keys.c.expires.is_(None), keys.c.expires > now)
        )
        return msgspec.structs.replace(
            found,
            generation=connection.scalar(select(meta.c.generation)),
            tenants=connection.scalar(select(func.count()).select_from(tenants)),
            keys=connection.scalar(select(func.count()).select_from(keys)),
            active=connection.scalar(active),
        )


def refuse_other(database: Database, connection: Connection, revision: str | None) -> None:
    """Refuse tables that this program did not make, or does not know.

    Raises:
        StoreError: They are such.
    """
    if revision is not None and not revisions.is_known(revision):
        message = f"the store ({database.where}) has revision {revision}, which this version does not know"
        raise StoreError(message, hint=f"install a newer tuneplex; this one knows revisions up to {revisions.head()}")
    strangers = revisions.strangers(connection) if revision is None else []
    if strangers:
        message = f"the database {database.where} has tables of another program: {', '.join(strangers)}"
        raise StoreError(message, hint="give tuneplex a database of its own")


def _copy(path: Path, target: Path) -> str:
    """Copy the file of a store in SQLite to which nobody writes now, for this user's eyes only."""
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    except OSError as error:
        raise StoreRefused(f"the store cannot be copied to {target}: {error.strerror}") from error
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    return str(target)
