"""What the store does when its database fails, and what survives."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.integration.records.conftest import MakeStore
from tests.support.postgres import GUARDED, Postgres
from tuneplex.errors import StoreConflict, StoreDown, StoreMissing
from tuneplex.identity import Tenant
from tuneplex.records import Store, StoreRefused, database, mint, sqlite_url

WRITER = """
import sys
from tuneplex.identity import Tenant
from tuneplex.records import Store, mint
store = Store(sys.argv[1])
for number in range(int(sys.argv[3])):
    store.add_key(mint(sys.argv[2], number)[0])
    print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store in SQLite is."""
    return tmp_path / "a store?#%.db"


@pytest.fixture
def file_store(path: Path, open_store: MakeStore) -> Store:
    """A store in SQLite, under a path that would be something else in a URL."""
    store = open_store(sqlite_url(path))
    store.prepare()
    return store


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """An empty database in PostgreSQL."""
    return postgres.database()


@contextmanager
def down(postgres: Postgres) -> Iterator[None]:
    """The server is away while the block runs."""
    postgres.stop()
    try:
        yield
    finally:
        postgres.start()


def test_two_processes_write_at_once(store: Store, url: str) -> None:
    """Two processes that write at the same time lose nothing, and every change has a generation of its own."""
    store.add_tenant(Tenant("a"))
    store.add_tenant(Tenant("b"))
    before = store.generation()
    command = [sys.executable, "-c", WRITER, url]
    writers = [subprocess.Popen([*command, tenant, "40"], stdout=subprocess.DEVNULL) for tenant in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert (len(store.keys("a")), len(store.keys("b"))) == (40, 40)
    assert store.generation() == before + 80


def test_two_processes_make_the_store_at_once(url: str, open_store: MakeStore) -> None:
    """Two processes that find an empty database make one store of it."""
    script = (
        "import sys; from tuneplex.records import Store; s = Store(sys.argv[1]); s.prepare(); print(s.access(0).salt)"
    )
    makers = [
        subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    salts = {maker.communicate(timeout=60)[0] for maker in makers}
    assert [maker.returncode for maker in makers] == [0] * 4
    assert salts == {open_store(url).access(0).salt + "\n"}


def test_reader_sees_one_state(store: Store, url: str, open_store: MakeStore) -> None:
    """Tenants and keys that are read together fit together, whoever writes meanwhile."""
    stop = threading.Event()
    writer = open_store(url)

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            writer.add_tenant(Tenant(f"t{number}"))
            key, _ = mint(f"t{number}", 1)
            writer.add_key(key)
            writer.revoke_key(key.id, 2)
            writer.remove_tenant(f"t{number}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(100):
            access = store.access(0)
            assert {key.tenant for key in access.keys} <= {tenant.name for tenant in access.tenants}
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("after", [1, 7, 20])
def test_sigkill_loses_nothing_that_was_committed(file_store: Store, path: Path, after: int) -> None:
    """After SIGKILL of a writer, all that it had reported is there, and the store works on."""
    command = [sys.executable, "-c", WRITER, sqlite_url(path), "default", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        while int(writer.stdout.readline()) < after:
            pass
        writer.kill()
        reported = after + 1 + len(writer.stdout.readlines())
    kept = len(file_store.keys())
    assert kept in {reported, reported + 1}  # the last one may have been committed and not yet reported
    assert file_store.generation() == 1 + kept
    file_store.add_tenant(Tenant("later"))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_committed_changes_are_flushed(file_store: Store) -> None:
    """A change is on the disk when it is reported, also if the power fails then."""
    with file_store._database.reading() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("synchronous", "foreign_keys", "journal_mode", "busy_timeout")
        }
    assert settings == {"synchronous": 2, "foreign_keys": 1, "journal_mode": "wal", "busy_timeout": 5000}


def test_full_disk(file_store: Store) -> None:
    """A full disk is said, loses nothing, and does not stop reading."""
    before = file_store.access(0)
    with file_store._database.reading() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
    with pytest.raises(StoreDown, match="does not answer: the disk is full"):
        file_store.add_tenant(Tenant("acme", cache_group="x" * 100_000))
    assert file_store.access(0) == before


def test_locked_file(path: Path, monkeypatch: pytest.MonkeyPatch, open_store: MakeStore) -> None:
    """A file that somebody else keeps locked is said, and does not stop reading."""
    monkeypatch.setattr(database, "_BUSY_S", 0.2)
    store = open_store(sqlite_url(path))
    store.prepare()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreDown, match="another process holds it locked"):
            store.add_tenant(Tenant("acme"))
        assert store.tenants() == (Tenant("default"),)
        other.execute("ROLLBACK")
    store.add_tenant(Tenant("acme"))


def test_file_that_can_only_be_read(file_store: Store) -> None:
    """A file that can only be read is said, and does not stop reading."""
    with file_store._database.reading() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(StoreDown, match="it can only be read"):
        file_store.add_tenant(Tenant("acme"))
    assert file_store.tenants() == (Tenant("default"),)


def test_file_that_is_gone(file_store: Store, path: Path, open_store: MakeStore) -> None:
    """A file that was moved away does not come back empty by being looked for."""
    file_store.close()
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(StoreDown, match="the file cannot be opened"):
        open_store(sqlite_url(path)).generation()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"no database at all" * 100, b""])
def test_file_that_is_none(path: Path, open_store: MakeStore, content: bytes) -> None:
    """A file that is no database is refused and left as it is; an empty one becomes a store."""
    path.write_bytes(content)
    store = open_store(sqlite_url(path))
    if not content:
        store.prepare()
        assert store.tenants() == (Tenant("default"),)
        return
    with pytest.raises(StoreRefused, match="the file is damaged"):
        store.prepare()
    assert path.read_bytes() == content


def test_damaged_file(file_store: Store, path: Path) -> None:
    """A file whose pages were overwritten is refused with what to do, not read as if it were whole."""
    for number in range(50):
        file_store.add_tenant(Tenant(f"t{number}", cache_group="x" * 500))
    file_store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with pytest.raises(StoreRefused, match=r"`tuneplex store restore` a backup"):
        file_store.access(0)


def test_row_that_is_not_ours(file_store: Store, path: Path) -> None:
    """A row that somebody else wrote is refused in words, and stops nobody by surprise."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE tenants SET adapters = 'everything'")
        other.commit()
    with pytest.raises(StoreRefused, match="a row that tuneplex did not write"):
        file_store.access(0)


def test_place_where_no_file_can_be(tmp_path: Path, open_store: MakeStore) -> None:
    """A directory that is not there is said."""
    with pytest.raises(StoreRefused, match="cannot be opened: No such file or directory"):
        open_store(sqlite_url(tmp_path / "nowhere" / "store.db")).prepare()


def test_file_is_private_whatever_the_umask(path: Path, open_store: MakeStore) -> None:
    """Nobody else can read a store, whatever the process would let them, or a copy had let them."""
    path.touch(0o666)
    before = os.umask(0)
    try:
        open_store(sqlite_url(path)).prepare()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_server_that_comes_back(postgres: Postgres, postgres_url: str, open_store: MakeStore) -> None:
    """While the server is away every call says so, and afterwards the store connects again by itself."""
    store = open_store(postgres_url)
    store.prepare()
    store.add_tenant(Tenant("acme"))
    before = store.access(0)
    with down(postgres):
        for call in (store.generation, store.prepare, lambda: store.access(0), lambda: store.add_tenant(Tenant("b"))):
            with pytest.raises(StoreDown, match="does not answer") as caught:
                call()
            assert not isinstance(caught.value, StoreRefused)
    assert store.access(0) == before
    store.add_tenant(Tenant("b"))


def test_connection_that_breaks(postgres: Postgres, postgres_url: str, open_store: MakeStore) -> None:
    """A connection that the server closed is replaced without anybody noticing."""
    store = open_store(postgres_url)
    store.prepare()
    postgres.sql(
        "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tuneplex'"
    )
    assert store.tenants() == (Tenant("default"),)


def test_somebody_holds_the_rows(postgres_url: str, open_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is not given back does not hold a call for ever."""
    monkeypatch.setattr(database, "_LOCK_S", 1)
    store = open_store(postgres_url)
    store.prepare()
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT * FROM meta FOR UPDATE")
        started = time.monotonic()
        with pytest.raises(StoreDown, match="it takes too long"):
            store.add_tenant(Tenant("acme"))
        assert time.monotonic() - started < 10
        assert store.generation() == 1


@pytest.mark.parametrize(
    "user, name, words",
    [
        ("postgres", "nothing", "it has no such database or user"),
        ("nobody", "postgres", "it has no such database or user"),
        (GUARDED, "postgres", "it does not let this user in"),
        (f"{GUARDED}:hunter2", "postgres", "it refuses the user or the password"),
    ],
)
def test_wrong_url(postgres: Postgres, open_store: MakeStore, user: str, name: str, words: str) -> None:
    """What a person must mend in the URL is told from a server that is away, and no password is shown."""
    store = open_store(postgres.url(name, user))
    with pytest.raises(StoreRefused, match=words) as caught:
        store.prepare()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(store)


def test_no_server(tmp_path: Path, open_store: MakeStore) -> None:
    """Where there is no server, the store is down."""
    store = open_store(f"postgresql://me:hunter2@/d?host={tmp_path}")
    with pytest.raises(StoreDown, match="does not answer") as caught:
        store.prepare()
    assert not isinstance(caught.value, StoreRefused)
    assert "hunter2" not in str(caught.value)


def test_user_without_rights(postgres: Postgres, postgres_url: str, open_store: MakeStore) -> None:
    """A user who may not make tables is told so, not that the server is away."""
    postgres.sql("postgres", "DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN")
    store = open_store(postgres_url.replace("postgres@", "guest@"))
    with pytest.raises(StoreRefused, match="lacks rights"):
        store.prepare()


def test_store_in_a_schema(postgres: Postgres, postgres_url: str, open_store: MakeStore) -> None:
    """A store may share a database with tables of the same names, in a schema of its own."""
    name = postgres_url.partition("@/")[2].partition("?")[0]
    postgres.sql(name, "CREATE TABLE keys (door TEXT)", "CREATE SCHEMA mine")
    store = open_store(f"{postgres_url}&options=-csearch_path%3Dmine")
    store.prepare()
    store.add_tenant(Tenant("acme"))
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM mine.tenants").fetchone() == (2,)
        assert connection.execute("SELECT * FROM keys").fetchall() == []


@pytest.mark.parametrize("password", ["a@b:c/d?e#f%g&h=i j", "ü-世"])
def test_password_with_signs(postgres: Postgres, postgres_url: str, open_store: MakeStore, password: str) -> None:
    """Any password can stand in a URL, with its signs written as a URL writes them."""
    postgres.sql("postgres", f"ALTER ROLE {GUARDED} PASSWORD '{password}'")
    store = open_store(postgres_url.replace("postgres@", f"{GUARDED}:{quote(password, safe='')}@"))
    store.prepare()
    assert password not in repr(store) + store.where


def test_missing_driver(open_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PostgreSQL's driver, what to install is said."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreRefused, match="driver of PostgreSQL is not installed") as caught:
        open_store("postgresql://me:hunter2@h/d").prepare()
    assert caught.value.hint == 'pip install "tuneplex[postgres]"'


def test_text_that_one_database_would_not_take(store: Store) -> None:
    """Both databases refuse the same texts."""
    with pytest.raises(StoreConflict, match="NUL"):
        store.add_tenant(Tenant("acme", cache_group="a\0b"))
    with pytest.raises(StoreConflict, match="half of a character"):
        store.add_tenant(Tenant("acme", cache_group="\ud800"))


@pytest.mark.parametrize("odd", ["a\0b", "", "x" * 10_000, "' OR 1=1; --"])
def test_odd_names_are_not_found(store: Store, odd: str) -> None:
    """A name that nothing can have is refused, and the database is not blamed for it."""
    for call in (store.key, store.remove_tenant, lambda name: store.revoke_key(name, 5)):
        with pytest.raises((StoreMissing, StoreConflict)):
            call(odd)
    assert store.tenants() == (Tenant("default"),)
