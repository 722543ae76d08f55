"""Backups: one file that restores into either database, or changes nothing."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.records.conftest import AddRevision, MakeStore
from tests.support.postgres import Postgres
from tuneplex.errors import StoreConflict, StoreDown, StoreError
from tuneplex.identity import Key, Limits, Scope, Tenant
from tuneplex.records import Store, mint, revisions

replace = msgspec.structs.replace
Break = Callable[[list[bytes]], list[bytes]]

DAY, MONTH = "tokens_per_day", "money_per_month"

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
patterns = st.lists(texts, max_size=3).map(tuple)
times = st.none() | st.integers(0, 2**62)
numbers = st.none() | st.integers(1, 2**62)
limits = st.builds(Limits, numbers, numbers, numbers, numbers, numbers, st.booleans())
tenants = st.builds(
    Tenant,
    st.text("abc-", min_size=1, max_size=3),
    patterns,
    base=st.booleans(),
    isolated=st.booleans(),
    cache_group=texts,
    disabled=st.booleans(),
    created=st.integers(0, 2**62),
    limits=limits,
    weight=st.integers(1, 1000),
    recorded=st.booleans(),
)
keys = st.builds(
    Key,
    st.uuids().map(str),
    st.just("default"),
    st.uuids().map(str),
    texts,
    st.lists(st.sampled_from(Scope), max_size=3).map(tuple),
    patterns,
    base=st.booleans(),
    created=st.integers(0, 2**62),
    expires=times,
    revoked=times,
    replaces=st.none() | texts,
    limits=limits,
)


def filled(store: Store) -> Store:
    """The store, with a tenant and three keys."""
    store.add_tenant(Tenant("acme", adapters=("a*", "ü"), cache_group="g", created=5, weight=7, recorded=True))
    old, new = mint("acme", 5, label="old")[0], mint("acme", 6, expires=99, scopes=(Scope.USE, Scope.ADMIN))[0]
    store.add_key(old)
    store.add_key(replace(new, replaces=old.id), ends=(old.id, 50))
    store.add_key(mint("default", 7)[0])
    store.revoke_key(old.id, 8)
    store.keep_spending("shop", {(DAY, 20_000, "tenant acme", "1-0-7"): 5, (DAY, 20_000, "tenant acme", "1-1-8"): 6})
    store.keep_spending("shop", {(MONTH, 657, "tenant acme", "1-0-7"): 7 * 10**12})
    return store


def content(store: Store) -> tuple[object, ...]:
    """All that a store holds, but its generation."""
    access = store.access(0)
    counted = store.spending("shop", DAY, 20_000), store.spending("shop", MONTH, 657)
    return store.tenants(), store.keys(), access.salt, access.required, counted


@pytest.fixture
def other(request: pytest.FixtureRequest, tmp_path: Path, open_store: MakeStore, url: str) -> Store:
    """A new store in the other kind of database."""
    server: Postgres = request.getfixturevalue("postgres")
    store = open_store(f"sqlite:///{tmp_path}/other.db" if url.startswith("postgresql") else server.database())
    store.prepare()
    return store


def test_restores_into_the_other_database(store: Store, other: Store, tmp_path: Path) -> None:
    """A backup of one kind of database restores into the other one, salt and all, and from there back again."""
    file, back = tmp_path / "a", tmp_path / "b"
    assert filled(store).backup(file, 5) == other.restore(file) == 1 + 2 + 3 + 3
    assert content(other) == content(store)
    other.backup(back, 5)
    before = content(store)
    store.restore(back, replace=True)
    assert content(store) == before


def test_backup_is_the_same_from_both(store: Store, other: Store, tmp_path: Path) -> None:
    """Both kinds of database write the same file, so that it can be compared."""
    filled(store).backup(tmp_path / "a", 5)
    other.restore(tmp_path / "a")
    other.backup(tmp_path / "b", 5)
    lines = [sorted(gzip.decompress((tmp_path / name).read_bytes()).splitlines()) for name in "ab"]
    assert [line for line in lines[0] if b'"meta"' not in line] == [line for line in lines[1] if b'"meta"' not in line]


def test_whoever_polls_sees_a_restore(store: Store, tmp_path: Path) -> None:
    """After a restore the generation is one that nobody has seen, although the backup holds a lower one."""
    filled(store).backup(tmp_path / "a", 5)
    store.add_tenant(Tenant("later"))
    before = store.generation()
    store.restore(tmp_path / "a", replace=True)
    assert store.generation() > before
    assert "later" not in {tenant.name for tenant in store.tenants()}


def test_restore_into_nothing(store: Store, make_url: Callable[[], str], open_store: MakeStore, tmp_path: Path) -> None:
    """A backup restores into a database in which there is nothing at all."""
    filled(store).backup(tmp_path / "a", 5)
    fresh = open_store(make_url())
    fresh.restore(tmp_path / "a")
    assert content(fresh) == content(store)
    fresh.prepare()
    assert content(fresh) == content(store)


def test_full_store_is_not_replaced_by_accident(store: Store, tmp_path: Path) -> None:
    """A store that holds something is replaced only when that is asked for."""
    store.backup(tmp_path / "empty", 5)
    before = content(filled(store))
    with pytest.raises(StoreConflict, match="holds 1 tenants and 3 keys already"):
        store.restore(tmp_path / "empty")
    assert content(store) == before
    store.restore(tmp_path / "empty", replace=True)
    assert (store.keys(), store.tenants()) == ((), (Tenant("default"),))


def test_file_is_private_and_not_replaced_by_accident(store: Store, tmp_path: Path) -> None:
    """A backup is for this user only, and takes the place of another file only when that is asked for."""
    file = tmp_path / "a"
    store.backup(file, 5)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    filled(store)
    with pytest.raises(StoreConflict, match="exists already"):
        store.backup(file, 5)
    assert file.read_bytes() == before
    store.backup(file, 5, overwrite=True)
    assert file.read_bytes() != before
    assert [path.name for path in tmp_path.glob(".a*")] == []


def test_backup_that_cannot_be_written(store: Store, tmp_path: Path) -> None:
    """A place where no file can be is said, and nothing is left there."""
    with pytest.raises(StoreError, match="cannot be written: No such file or directory"):
        store.backup(tmp_path / "nowhere" / "a", 5)


def test_nothing_to_back_up(url: str, open_store: MakeStore, tmp_path: Path) -> None:
    """Where there is no store, there is no backup."""
    store = open_store(url)
    with pytest.raises(StoreError):
        store.backup(tmp_path / "a", 5)
    assert not (tmp_path / "a").exists()


def test_older_backup(store: Store, other: Store, add_revision: AddRevision, tmp_path: Path) -> None:
    """A backup of an older revision restores into a newer program, and a store is backed up before its upgrade."""
    filled(store).backup(tmp_path / "a", 5)
    expected = content(store)
    add_revision()
    store.backup(tmp_path / "b", 5)
    assert b'"revision":"0005"' in gzip.decompress((tmp_path / "b").read_bytes())
    for file in ("a", "b"):
        other.restore(tmp_path / file, replace=True)
        assert content(other) == expected
        assert other.facts(0).revision == "0006"


def test_backup_of_the_first_revision(store: Store, tmp_path: Path) -> None:
    """A backup from before there were limits restores: nobody has any, and nothing was counted."""
    everything = {"adapters": '["*"]', "base": True, "isolated": False, "cache_group": "", "disabled": False}
    key = {"id": "k", "tenant": "default", "sha256": "5", "label": "", "scopes": '["use"]', "adapters": '["*"]'}
    lines = (
        {"format": "tuneplex-store", "revision": "0001", "made": 5},
        {"table": "meta", "row": {"id": 1, "generation": 3, "keys_ever": True, "salt": "s"}},
        {"table": "tenants", "row": {"name": "default", **everything, "created": 0}},
        {"table": "keys", "row": {**key, "base": True, "created": 4, "expires": None, "revoked": None,
                                  "replaces": None}},
        {"rows": 3},
    )  # fmt: skip
    file = tmp_path / "old"
    file.write_bytes(gzip.compress(b"".join(msgspec.json.encode(line) + b"\n" for line in lines)))
    assert store.restore(file) == 3
    assert store.tenants() == (Tenant("default"),)
    assert store.keys() == (Key("k", "default", "5", created=4),)
    assert store.access(0).salt == "s"
    assert store.spending("shop", DAY, 20_000) == {}


def test_backup_of_the_second_revision(store: Store, tmp_path: Path) -> None:
    """A backup from before there was money restores: all weigh the same, and the tokens of days are still counted."""
    everything = {"adapters": '["*"]', "base": True, "isolated": False, "cache_group": "", "disabled": False}
    limited = {"created": 0, "limits": '{"tokens_per_day":9}'}
    day = {"fleet": "shop", "subject": "tenant default", "day": 20_000}
    lines = (
        {"format": "tuneplex-store", "revision": "0002", "made": 5},
        {"table": "meta", "row": {"id": 1, "generation": 3, "keys_ever": True, "salt": "s"}},
        {"table": "tenants", "row": {"name": "default", **everything, **limited}},
        {"table": "usage_days", "row": {**day, "process": "1-0-7", "tokens": 5}},
        {"table": "usage_days", "row": {**day, "process": "1-1-8", "tokens": 2**60}},
        {"rows": 4},
    )
    file = tmp_path / "old"
    file.write_bytes(gzip.compress(b"".join(msgspec.json.encode(line) + b"\n" for line in lines)))
    assert store.restore(file) == 4
    assert store.tenants() == (Tenant("default", limits=Limits(tokens_per_day=9), weight=1),)
    assert store.spending("shop", DAY, 20_000) == {"tenant default": {"1-0-7": 5, "1-1-8": 2**60}}
    assert store.spending("shop", MONTH, 657) == {}


def test_newer_backup(store: Store, add_revision: AddRevision, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A backup of a newer revision is refused with what to do."""
    original = revisions._MIGRATIONS
    add_revision()
    store.upgrade()
    store.backup(tmp_path / "a", 5)
    monkeypatch.setattr(revisions, "_MIGRATIONS", original)
    revisions._scripts.cache_clear()
    with pytest.raises(StoreError, match="has revision 0006, which this version does not know") as caught:
        store.restore(tmp_path / "a")
    assert caught.value.hint == "install a newer tuneplex"


BREAKS: dict[str, Break] = {
    "nothing": lambda _: [],
    "no head": lambda lines: lines[1:],
    "another format": lambda lines: [lines[0].replace(b"tuneplex-store", b"something"), *lines[1:]],
    "no end": lambda lines: lines[:-1],
    "fewer rows": lambda lines: [*lines[:2], *lines[3:]],
    "more after the end": lambda lines: [*lines, lines[-2]],
    "no rows": lambda lines: [lines[0], b'{"rows":0}'],
    "a key without its tenant": lambda lines: [line.replace(b'"name":"acme"', b'"name":"zeta"') for line in lines],
    "a row twice": lambda lines: [*lines[:-1], lines[-2], b'{"rows":9}'],
    "another table": lambda lines: [line.replace(b'"table":"keys"', b'"table":"doors"') for line in lines],
    "another column": lambda lines: [line.replace(b'"label"', b'"colour"') for line in lines],
    "a text for a number": lambda lines: [line.replace(b'"created":5', b'"created":"x"') for line in lines],
    "a number for a boolean": lambda lines: [line.replace(b'"base":true', b'"base":7') for line in lines],
    "a text for a boolean": lambda lines: [line.replace(b'"base":true', b'"base":"x"') for line in lines],
    "nothing for a text": lambda lines: [line.replace(b'"label":"old"', b'"label":null') for line in lines],
    "a list for a text": lambda lines: [line.replace(b'"label":"old"', b'"label":[]') for line in lines],
    "patterns that are none": lambda lines: [line.replace(b'"[\\"a*\\",', b'"[7,') for line in lines],
    "an unknown scope": lambda lines: [line.replace(b'\\"admin\\"', b'\\"root\\"') for line in lines],
    "a number too large": lambda lines: [
        line.replace(b'"created":5', b'"created":9223372036854775808') for line in lines
    ],
    "limits that are none": lambda lines: [line.replace(b'"limits":"{}"', b'"limits":"[]"') for line in lines],
    "a text for tokens": lambda lines: [line.replace(b'"amount":5', b'"amount":"x"') for line in lines],
    "a text for a day": lambda lines: [line.replace(b'"period":20000', b'"period":"x"') for line in lines],
    "a text for a weight": lambda lines: [line.replace(b'"weight":7', b'"weight":"x"') for line in lines],
    "not JSON": lambda lines: [*lines[:3], b"{", *lines[3:]],
}


@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS)
def test_wrong_content_changes_nothing(store: Store, tmp_path: Path, change: Break) -> None:
    """A file that is not what a backup writes is refused as a whole, and the store stays as it was."""
    filled(store).backup(tmp_path / "a", 5)
    lines = gzip.decompress((tmp_path / "a").read_bytes()).splitlines()
    changed = change(lines)
    assert changed != lines
    (tmp_path / "b").write_bytes(gzip.compress(b"".join(line + b"\n" for line in changed)))
    refuses(store, tmp_path / "b")


@pytest.mark.parametrize("damage", ["cut", "flipped", "checksum", "plain", "empty", "missing", "directory"])
def test_damaged_file_changes_nothing(store: Store, tmp_path: Path, damage: str) -> None:
    """A file that was cut, changed or mistaken for a backup is refused, and the store stays as it was."""
    filled(store).backup(tmp_path / "a", 5)
    whole = (tmp_path / "a").read_bytes()
    middle = len(whole) // 2
    damaged = {
        "cut": whole[:-20],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :],
        "checksum": whole[:-8] + bytes(8),
        "plain": b"no backup at all",
        "empty": b"",
    }
    if damage in damaged:
        (tmp_path / "b").write_bytes(damaged[damage])
    elif damage == "directory":
        (tmp_path / "b").mkdir()
    refuses(store, tmp_path / "b")


def refuses(store: Store, file: Path) -> None:
    """Whether the file is refused in words that do not blame the database, and nothing changes."""
    before = content(store), store.generation()
    with pytest.raises(StoreError) as caught:
        store.restore(file, replace=True)
    assert not isinstance(caught.value, StoreDown)
    assert str(file) in str(caught.value)
    assert (content(store), store.generation()) == before


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(tenants, max_size=3, unique_by=lambda tenant: tenant.name), st.lists(keys, max_size=3))
def test_any_content_survives(store: Store, other: Store, tmp_path: Path, some: list[Tenant], more: list[Key]) -> None:
    """Whatever tenants and keys hold, they come back as they were, also by a backup in the other database."""
    store.restore(empty(store, tmp_path), replace=True)
    for tenant in some:
        store.add_tenant(tenant)
    for key in more:
        store.add_key(key)
    assert set(store.tenants()) == {Tenant("default"), *some}
    assert set(store.keys()) == set(more)
    store.backup(tmp_path / "a", 5, overwrite=True)
    other.restore(tmp_path / "a", replace=True)
    assert content(other) == content(store)


def empty(store: Store, tmp_path: Path) -> Path:
    """A backup of the store from when it was empty."""
    file = tmp_path / "empty"
    if not file.exists():
        store.backup(file, 5)
    return file
