"""A store as one file, the same for every database: gzipped JSON lines of all rows, with the tables' revision.

::

    {"format": "tuneplex-store", "revision": "0001", "made": 1700000000}
    {"table": "tenants", "row": {"name": "default", …}}
    …
    {"rows": 12}
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path

import msgspec
from sqlalchemy import Connection, MetaData, Table, exc, func, insert, select, update

from tuneplex.errors import StoreConflict, StoreError
from tuneplex.files import replaced
from tuneplex.identity import DEFAULT_TENANT
from tuneplex.records import revisions, tables, upkeep
from tuneplex.records.adapters import check_adapters
from tuneplex.records.database import Database
from tuneplex.records.rows import read_keys, read_tenants
from tuneplex.records.spending import check_spending

__all__ = ["backup", "restore"]

_FORMAT = "tuneplex-store"
_BATCH = 500
_MAX_LINE = 1024 * 1024
_Cell = str | int | bool | None


class _Head(msgspec.Struct, frozen=True):
    format: str
    revision: str
    made: int


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    table: str
    row: dict[str, _Cell]


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: int


class _Damaged(Exception):
    """The file is not what `backup` wrote."""


def backup(database: Database, file: Path, now: float, *, overwrite: bool) -> int:
    """See `Store.backup`."""
    if file.exists() and not overwrite:
        raise StoreConflict(f"{file} exists already")
    with database.reading() as connection:
        revision = revisions.current(connection)
        if revision is None:
            raise StoreError(f"there is no store in {database.where} yet")
        upkeep.refuse_other(database, connection, revision)
        head = _Head(_FORMAT, revision, int(now))
        try:
            return _write(file, head, _stored(connection, revisions.metadata_at(revision)))
        except OSError as error:
            raise StoreError(f"{file} cannot be written: {error.strerror or error}") from error


def _stored(connection: Connection, metadata: MetaData) -> Iterator[_Row]:
    for table in metadata.sorted_tables:
        for found in connection.execution_options(yield_per=_BATCH).execute(select(table)).mappings():
            yield _Row(str(table.name), {str(name): value for name, value in found.items()})


def _write(file: Path, head: _Head, stored: Iterable[_Row]) -> int:
    with replaced(file) as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
        return _pack(packed, head, stored)


def _pack(packed: gzip.GzipFile, head: _Head, stored: Iterable[_Row]) -> int:
    packed.write(msgspec.json.encode(head) + b"\n")
    count = 0
    for row in stored:
        packed.write(msgspec.json.encode(row) + b"\n")
        count += 1
    packed.write(msgspec.json.encode(_End(count)) + b"\n")
    return count


def restore(database: Database, file: Path, *, replace: bool) -> int:
    """See `Store.restore`."""
    try:
        with _lines(file) as lines:
            head = _head(next(lines, b""))
            database.create_file()
            with database.writing(f"{file} is damaged: its rows do not fit together") as connection:
                generation = _make_room(database, connection, replace=replace)
                count = _fill(connection, head.revision, lines)
                _check(connection)
                # Whoever knows the store by its generation must see that it is another one now.
                generation = max(generation, connection.scalar(select(tables.meta.c.generation)) or 0) + 1
                connection.execute(update(tables.meta).values(generation=generation))
            return count
    except (_Damaged, msgspec.MsgspecError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StoreError(f"{file} is damaged, or not a backup of a store ({error}); nothing was changed") from error
    except FileNotFoundError as error:
        raise StoreError(f"{file} does not exist") from error
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror or error}; nothing was changed") from error


@contextmanager
def _lines(file: Path) -> Iterator[Iterator[bytes]]:
    with gzip.open(file, "rb") as packed:
        yield iter(lambda: packed.readline(_MAX_LINE), b"")


def _head(line: bytes) -> _Head:
    head = msgspec.json.decode(line, type=_Head)
    if head.format != _FORMAT:
        raise _Damaged(f"its format is {head.format!r}")
    if not revisions.is_known(head.revision):
        message = f"the backup has revision {head.revision}, which this version does not know"
        raise StoreError(message, hint="install a newer tuneplex")
    return head


def _make_room(database: Database, connection: Connection, *, replace: bool) -> int:
    """Remove the tables that there are; the generation that they had.

    Raises:
        StoreConflict: They hold something, and it is not to be replaced.
    """
    revisions.lock(connection)
    revision = revisions.current(connection)
    upkeep.refuse_other(database, connection, revision)
    if revision is None:
        return 0
    revisions.upgrade(connection)
    others = select(func.count()).where(tables.tenants.c.name != DEFAULT_TENANT)
    found = (connection.scalar(others), connection.scalar(select(func.count()).select_from(tables.keys)))
    if any(found) and not replace:
        raise StoreConflict(f"the store ({database.where}) holds {found[0]} tenants and {found[1]} keys already")
    generation = connection.execute(select(tables.meta.c.generation)).scalar_one()
    tables.metadata.drop_all(connection)
    revisions.forget(connection)
    return int(generation)


def _fill(connection: Connection, revision: str, lines: Iterator[bytes]) -> int:
    """Make the tables of a revision, put the rows in, and bring all of it to this program's revision."""
    revisions.upgrade(connection, revision)
    metadata = revisions.metadata_at(revision)
    for table in reversed(metadata.sorted_tables):
        connection.execute(table.delete())
    count = 0
    for name, group in groupby(_rows(lines), key=lambda row: row.table):
        if name not in metadata.tables:
            raise _Damaged(f"there is no table {name!r}")
        while batch := [row.row for row in islice(group, _BATCH)]:
            _insert(connection, metadata.tables[name], batch)
            count += len(batch)
    revisions.upgrade(connection)
    return count


def _insert(connection: Connection, table: Table, batch: list[dict[str, _Cell]]) -> None:
    columns = set(table.columns.keys())
    if any(set(row) != columns for row in batch):
        raise _Damaged(f"a row of {table.name!r} has other columns")
    try:
        connection.execute(insert(table), batch)
    except (exc.DataError, OverflowError) as error:
        raise _Damaged(f"a row of {table.name!r} has other values") from error
    except exc.DBAPIError:
        raise
    except exc.StatementError as error:  # refused before it came to the database
        raise _Damaged(f"a row of {table.name!r} has other values") from error


def _rows(lines: Iterator[bytes]) -> Iterator[_Row]:
    """The rows, up to the line that says how many there were."""
    for count, line in enumerate(lines):
        found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        if "rows" in found:
            if msgspec.json.decode(line, type=_End).rows != count:
                raise _Damaged("it lacks rows")
            if next(lines, b""):  # also lets gzip compare its checksum
                raise _Damaged("it goes on after its end")
            return
        yield msgspec.json.decode(line, type=_Row)
    raise _Damaged("it lacks its end")


def _check(connection: Connection) -> None:
    """See that what was put in is a store: SQLite takes a text for a number, too."""
    names = {tenant.name for tenant in read_tenants(connection)}
    read_keys(connection)
    check_spending(connection)
    check_adapters(connection)
    if DEFAULT_TENANT not in names or connection.scalar(select(func.count()).select_from(tables.meta)) != 1:
        raise _Damaged("it lacks rows")
