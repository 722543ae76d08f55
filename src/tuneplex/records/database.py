"""SQLite and PostgreSQL behind one way to open them and two kinds of transaction."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from sqlalchemy import Connection, Engine, create_engine, event, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from tuneplex.errors import StoreError
from tuneplex.records.failures import StoreRefused, answering

__all__ = ["Database", "sqlite_url"]

_SQLITE = "sqlite:///"
_BUSY_S = 5.0
_CONNECT_S = 5
_LOCK_S = 5
_STATEMENT_S = 30
_WRITES = "tuneplex_writes"


def sqlite_url(path: Path) -> str:
    """The URL of a store in a file."""
    return f"{_SQLITE}{path.absolute()}"


class Database:
    """One database; nothing is opened before the first transaction.

    Args:
        url: `sqlite:///PATH` or `postgresql://…`.

    Attributes:
        path: The file of a store in SQLite; None for PostgreSQL.
        where: Which database, for messages: without the password.

    Raises:
        StoreError: The URL is of neither kind.
    """

    def __init__(self, url: str) -> None:
        self.path = Path(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else None
        self._url = URL.create("sqlite", database=str(self.path)) if self.path else _postgres(url)
        self.where = str(self.path) if self.path else _shown(self._url)
        self._opened: Engine | None = None

    def __repr__(self) -> str:
        """Without the password, so that it cannot slip into a log."""
        return f"Database({self.where!r})"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of all tables, whatever others write meanwhile.

        Raises:
            StoreDown: The database does not answer, or not with rows of ours.
        """
        # SQLite's transactions see one state anyway.
        options = {} if self.path else {"isolation_level": "REPEATABLE READ"}
        try:
            with answering(self.where), self._transaction(options) as connection:
                yield connection
        except msgspec.MsgspecError as error:
            raise StoreRefused(f"the store ({self.where}) holds a row that tuneplex did not write: {error}") from error

    @contextmanager
    def writing(self, conflict: str = "it exists already") -> Iterator[Connection]:
        """A transaction that writes; in SQLite it waits for other writers before it begins.

        Args:
            conflict: What it means when a constraint is broken.

        Raises:
            StoreConflict: A constraint is broken; nothing was written.
            StoreDown: The database does not answer.
        """
        # In PostgreSQL, writers wait for each other by the row that `Store` changes first, and then see what is there.
        options = {_WRITES: True} if self.path else {"isolation_level": "READ COMMITTED"}
        with answering(self.where, conflict), self._transaction(options) as connection:
            yield connection

    def create_file(self) -> None:
        """Make the file of a store in SQLite, for this user's eyes only; SQLite gives its other files the same mode.

        Raises:
            StoreRefused: It cannot be made, or not be written.
        """
        if self.path is None:
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            os.fchmod(descriptor, 0o600)  # somebody may have copied it here
            os.close(descriptor)
        except OSError as error:
            raise StoreRefused(f"the store ({self.where}) cannot be opened: {error.strerror}") from error

    def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            self._opened.dispose()

    @contextmanager
    def _transaction(self, options: Mapping[str, Any]) -> Iterator[Connection]:
        with self._engine().execution_options(**options).begin() as connection:
            yield connection

    def _engine(self) -> Engine:
        if self._opened is None:
            self._opened = _sqlite_engine(self._url, self.path) if self.path else _postgres_engine(self._url)
        return self._opened


def _postgres(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError("the store's URL is not one", hint="write postgresql://USER@HOST/DATABASE") from None
    if parsed.drivername != "postgresql":
        raise StoreError("the store's URL is of no known kind", hint="write postgresql://USER@HOST/DATABASE")
    return parsed.set(drivername="postgresql+psycopg")


def _shown(url: URL) -> str:
    """Without the password, and without a query, which may hold another one."""
    return url.set(drivername="postgresql", password=None, query={}).render_as_string()


def _sqlite_engine(url: URL, path: Path) -> Engine:
    # Only `create_file` makes a file: a store that was moved away must not come back empty.
    address = f"file:{quote(str(path.absolute()))}?mode=rw"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(address, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)

    engine = create_engine(url, creator=connect, poolclass=QueuePool)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
    # With WAL, NORMAL could lose the last transactions when the power fails. Changes are rare, and a key that was told
    # to somebody, or revoked, must stay so.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Begin by ourselves: the driver would begin late, and a reader that becomes a writer can fail at it."""
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgres_engine(url: URL) -> Engine:
    patience = {
        "connect_timeout": str(_CONNECT_S),
        "tcp_user_timeout": str(_STATEMENT_S * 1000),  # a server that vanished is noticed, also behind a firewall
        "application_name": "tuneplex",
    }
    patience = {key: value for key, value in patience.items() if key not in url.query}
    # Prepared statements would be lost behind a pooler that shares connections.
    arguments = {**patience, "prepare_threshold": None}
    try:
        engine = create_engine(url, connect_args=arguments, pool_pre_ping=True, pool_size=2)
    except ModuleNotFoundError:
        hint = 'pip install "tuneplex[postgres]"'
        raise StoreRefused("the driver of PostgreSQL is not installed", hint=hint) from None
    event.listen(engine, "begin", _begin_postgres)
    return engine


def _begin_postgres(connection: Connection) -> None:
    """For this transaction only: a pooler may give the connection to somebody else afterwards."""
    settings = {"lock_timeout": f"{_LOCK_S}s", "statement_timeout": f"{_STATEMENT_S}s"}
    connection.execute(select(*(func.set_config(name, value, True) for name, value in settings.items())))
