"""Stores in both databases."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Postgres, postgres
from tuneplex.records import Store, revisions, sqlite_url

__all__ = ["postgres"]

MakeUrl = Callable[[], str]
MakeStore = Callable[[str], Store]
AddRevision = Callable[[], None]

NEWER = '''
"""A revision for tests: tenants get a colour."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    with op.batch_alter_table("tenants") as batch:
        batch.add_column(sa.Column("colour", sa.Text(), nullable=False, server_default="grey"))
'''


@pytest.fixture(params=["sqlite", "postgresql"])
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> MakeUrl:
    """URLs of new, empty databases."""
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return server.database
    return lambda: sqlite_url(tmp_path / f"{len(list(tmp_path.glob('*.db')))}.db")


@pytest.fixture(autouse=True)
def _no_database_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove the databases of a test when its stores are closed."""
    yield
    if "postgres" in request.fixturenames:
        server: Postgres = request.getfixturevalue("postgres")
        server.drop_databases()


@pytest.fixture
def open_store() -> Iterator[MakeStore]:
    """Open stores, which are closed at the end."""
    stores: list[Store] = []

    def make(url: str) -> Store:
        stores.append(Store(url))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def url(make_url: MakeUrl) -> str:
    """A new, empty database."""
    return make_url()


@pytest.fixture
def store(url: str, open_store: MakeStore) -> Store:
    """A new store."""
    store = open_store(url)
    store.prepare()
    return store


@pytest.fixture
def add_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddRevision]:
    """Make this program one revision newer than it is."""
    migrations = tmp_path / "migrations"

    def forget() -> None:
        revisions._scripts.cache_clear()
        revisions.metadata_at.cache_clear()

    def add() -> None:
        shutil.copytree(revisions._MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
        (migrations / "versions" / "r0006_colour.py").write_text(NEWER.lstrip())
        monkeypatch.setattr(revisions, "_MIGRATIONS", migrations)
        forget()

    yield add
    monkeypatch.undo()
    forget()
