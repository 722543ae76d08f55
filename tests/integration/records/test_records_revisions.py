"""The tables, their migrations, and stores of other revisions."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from tests.integration.records.conftest import AddRevision, MakeStore
from tuneplex.errors import StoreDown, StoreError
from tuneplex.identity import Tenant
from tuneplex.records import Store, mint, revisions
from tuneplex.records.database import Database
from tuneplex.records.tables import REVISION_TABLE, metadata


def filled(store: Store) -> Store:
    """The store, with a tenant and a key."""
    store.add_tenant(Tenant("acme"))
    store.add_key(mint("acme", 5)[0])
    return store


def test_migrations_make_the_tables(url: str, open_store: MakeStore) -> None:
    """What the migrations make is what the code describes, in both databases, down to the constraints' names."""
    open_store(url).prepare()
    database = Database(url)
    with database.reading() as connection:
        options = {"compare_type": True, "version_table": REVISION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        names = revisions.metadata_at(revisions.head())
    database.close()
    for name, table in metadata.tables.items():
        expected = {constraint.name for constraint in table.constraints} | {index.name for index in table.indexes}
        found = names.tables[name]
        assert {constraint.name for constraint in found.constraints} | {
            index.name for index in found.indexes
        } == expected


@pytest.mark.parametrize("revision", [script.revision for script in revisions._scripts().walk_revisions()])
def test_each_revision_can_be_brought_to_the_newest(url: str, open_store: MakeStore, revision: str) -> None:
    """From every revision there is a way to today's, and the tenant that is always there is there."""
    database = Database(url)
    database.create_file()
    with database.writing() as connection:
        revisions.upgrade(connection, revision)
    database.close()
    store = open_store(url)
    done = store.upgrade()
    assert (done.before, done.after) == (revision, revisions.head())
    assert store.tenants() == (Tenant("default"),)


def test_the_numbers_are_a_line() -> None:
    """The revisions have numbers that follow each other, so that anybody can tell which one is newer."""
    numbers = [script.revision for script in revisions._scripts().walk_revisions()]
    assert numbers == [f"{number:04}" for number in range(len(numbers), 0, -1)]


def test_older_store(store: Store, url: str, open_store: MakeStore, add_revision: AddRevision) -> None:
    """An older store in a file is brought up by itself, one in PostgreSQL only when somebody asks for it."""
    before = filled(store).access(10)
    store.close()
    add_revision()
    newer = open_store(url)
    if url.startswith("postgresql"):
        with pytest.raises(StoreError, match=r"has revision 0005; this version needs 0006") as caught:
            newer.prepare()
        assert "tuneplex store upgrade" in caught.value.hint
        assert not isinstance(caught.value, StoreDown)
        assert newer.facts(0).revision == "0005"
        newer.upgrade()
    else:
        done = newer.prepare()
        assert (done.before, done.after) == ("0005", "0006")
    assert newer.access(10) == before
    assert newer.facts(0).revision == "0006"
    assert newer.prepare().copy == ""


def test_file_is_copied_before_it_is_upgraded(tmp_path: Path, open_store: MakeStore, add_revision: AddRevision) -> None:
    """Beside an upgraded file lies a private copy of the old one, with all that was in it."""
    url = f"sqlite:///{tmp_path}/store.db"
    store = open_store(url)
    store.prepare()
    before = filled(store).access(10)
    add_revision()
    newer = open_store(url)
    copy = Path(newer.prepare().copy)
    assert copy == tmp_path / "store.db.0005.bak"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    old = open_store(f"sqlite:///{copy}")
    assert old.facts(0).revision == "0005"
    assert old.access(10) == before


def test_store_of_a_newer_program(
    store: Store, url: str, open_store: MakeStore, add_revision: AddRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that a newer program made is left alone, and what to do is said."""
    original = revisions._MIGRATIONS
    filled(store)
    add_revision()
    store.upgrade()
    monkeypatch.setattr(revisions, "_MIGRATIONS", original)
    revisions._scripts.cache_clear()
    older = open_store(url)
    for attempt in (older.prepare, older.upgrade):
        with pytest.raises(StoreError, match="has revision 0006, which this version does not know") as caught:
            attempt()
        assert "install a newer tuneplex" in caught.value.hint
        assert not isinstance(caught.value, StoreDown)
    assert older.facts(0).revision == "0006"


def test_database_of_another_program(url: str, open_store: MakeStore) -> None:
    """Tables that happen to have our names are not touched."""
    database = Database(url)
    database.create_file()
    with database.writing() as connection:
        connection.execute(text("CREATE TABLE keys (door TEXT)"))
    store = open_store(url)
    with pytest.raises(StoreError, match="has tables of another program: keys"):
        store.prepare()
    with database.reading() as connection:
        assert connection.execute(text("SELECT door FROM keys")).all() == []
    database.close()


def test_failed_upgrade_leaves_the_old_store(
    store: Store, url: str, open_store: MakeStore, add_revision: AddRevision
) -> None:
    """An upgrade that breaks in the middle leaves the tables as they were."""
    before = filled(store).access(10)
    store.close()
    add_revision()
    script = next(revisions._MIGRATIONS.glob("versions/r0006*.py"))
    script.write_text(script.read_text() + "    op.execute('nonsense')\n")
    newer = open_store(url)
    with pytest.raises(StoreError):
        newer.upgrade()
    assert newer.facts(0).revision == "0005"
    assert newer.access(10) == before


def test_file_settings(tmp_path: Path, open_store: MakeStore) -> None:
    """All files of a store in SQLite are for this user only, and it is in WAL mode."""
    path = tmp_path / "store.db"
    store = open_store(f"sqlite:///{path}")
    store.prepare()
    filled(store)
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["store.db", "store.db-shm", "store.db-wal"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_migrations_are_in_the_package() -> None:
    """Whoever installs the package has the migrations, and the template of the next one."""
    directory = Path(revisions.__file__).parent / "migrations"
    assert {"env.py", "script.py.mako", "versions"} <= {path.name for path in directory.iterdir()}
