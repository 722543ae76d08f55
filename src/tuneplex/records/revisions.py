"""The revisions of the tables: which one a database has, and the way to the newest."""

from __future__ import annotations

import functools
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, create_engine, inspect, text

from tuneplex.records.tables import REVISION_TABLE, metadata

__all__ = ["current", "head", "is_known", "lock", "metadata_at", "strangers", "upgrade"]

_MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK = 0x74756E65706C6578  # the letters of our name


def head() -> str:
    """The newest revision that this program knows."""
    return _scripts().get_current_head() or ""


def is_known(revision: str) -> bool:
    """Whether this program knows a revision, which an older one may not."""
    return revision in {script.revision for script in _scripts().walk_revisions()}


def current(connection: Connection) -> str | None:
    """The database's revision; None when it holds no store."""
    context = MigrationContext.configure(connection, opts={"version_table": REVISION_TABLE})
    return context.get_current_revision()


def strangers(connection: Connection) -> list[str]:
    """Tables that have the names of ours, in a database that has no revision."""
    return sorted(set(inspect(connection).get_table_names()) & set(metadata.tables))


def lock(connection: Connection) -> None:
    """Wait until no other process changes the tables themselves; in SQLite each writer waits anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def forget(connection: Connection) -> None:
    """Remove the note of the revision, together with the tables that the caller removed."""
    Table(REVISION_TABLE, MetaData()).drop(connection)


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the tables to a newer revision, within the transaction of the connection."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


@functools.cache
def metadata_at(revision: str) -> MetaData:
    """The tables of a revision: an empty database in memory is brought to it and looked at."""
    engine = create_engine("sqlite://")
    found = MetaData()
    try:
        with engine.begin() as connection:
            upgrade(connection, revision)
            found.reflect(connection)
    finally:
        engine.dispose()
    found.remove(found.tables[REVISION_TABLE])
    return found


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


@functools.cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
