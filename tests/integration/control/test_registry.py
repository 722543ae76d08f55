"""What control knows of keys when the database fails, hangs, or comes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import httpx2
import msgspec
import pytest

from tests.support.desk import HASTY, Desk
from tests.support.records import MemoryRecords
from tuneplex.control.snapshot import read_snapshot, write_snapshot
from tuneplex.identity import Access, Tenant
from tuneplex.records import Store, mint
from tuneplex.types import Status

KEY, _SECRET = mint("default", 1)


def code(reply: httpx2.Response) -> str:
    """Of a refusal for the moment."""
    assert reply.status_code == 503, reply.text
    assert int(reply.headers["retry-after"]) > 0
    return str(reply.json()["error"]["code"])


def trouble(desk: Desk) -> str:
    """What a person is told of the database."""
    return desk.registry.trouble(time.time())


def put_away(path: Path, *suffixes: str) -> None:
    """Move a store's files elsewhere, or some of them."""
    for suffix in suffixes or ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(file.with_name(f"away-{file.name}"))


async def test_what_others_change_is_published(desk: Desk, memory: MemoryRecords) -> None:
    """A change that somebody else made in the database reaches the gateways without being announced."""
    memory.add_key(KEY)
    await desk.until(lambda: desk.ids == {KEY.id})
    memory.revoke_key(KEY.id, 2)
    await desk.until(lambda: desk.ids == set())
    assert [one.generation for one in desk.published] == sorted({one.generation for one in desk.published})


async def test_nothing_new_is_not_published(desk: Desk, memory: MemoryRecords) -> None:
    """While nothing changes, gateways hear nothing."""
    memory.add_key(KEY)
    await desk.until(lambda: desk.ids == {KEY.id})
    before = len(desk.published)
    await asyncio.sleep(0.2)
    assert len(desk.published) == before


async def test_expired_keys_are_taken_back(desk: Desk, memory: MemoryRecords) -> None:
    """A key that expires drops out by itself, also while the database is down."""
    memory.add_key(msgspec.structs.replace(KEY, expires=int(time.time()) + 2))
    await desk.until(lambda: desk.ids == {KEY.id})
    memory.down = True
    await desk.until(lambda: desk.ids == set())


async def test_expired_keys_are_known_for_a_while(memory: MemoryRecords, tmp_path: Path) -> None:
    """Gateways go on knowing a key that has expired, so that they can say so, and in the end they forget it."""
    now = int(time.time())
    for name, expires in (("recent", now - 3600), ("soon", now - 7198), ("old", now - 9000)):
        memory.add_key(msgspec.structs.replace(KEY, id=name, sha256=name, expires=expires))
    desk = Desk(memory, tmp_path, patience=msgspec.structs.replace(HASTY, expired_s=7200.0))
    async with desk.running():
        assert desk.ids == {"recent", "soon"}
        memory.down = True
        await desk.until(lambda: desk.ids == {"recent"})


async def test_the_snapshot_is_what_was_published(desk: Desk) -> None:
    """When a change is answered, a file for this user's eyes only holds what gateways were told."""
    await desk.make_key()
    assert read_snapshot(desk.snapshot) == desk.published[-1]
    assert stat.S_IMODE(desk.snapshot.stat().st_mode) == 0o600


async def test_a_database_that_goes_and_returns(
    desk: Desk, memory: MemoryRecords, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys go on, changes and questions are refused, the status says so, and afterwards all is as before."""
    caplog.set_level(logging.INFO)
    await desk.make_key()
    known = desk.ids
    memory.down = True
    assert code(await desk.make_key()) == "store_down"
    assert code(await desk.client.get("/keys")) == "store_down"
    status = msgspec.json.decode((await desk.client.get("/status")).content, type=Status)
    assert "it was told to be down" in status.store
    assert "keys that are known go on, changes are refused" in status.store
    await asyncio.sleep(0.1)
    assert desk.ids == known
    memory.down = False
    assert (await desk.make_key()).status_code == 201
    assert trouble(desk) == ""
    lines = [record.getMessage() for record in caplog.records if record.name == "tuneplex.control.registry"]
    assert len(lines) == 2
    assert "told to be down" in lines[0]
    assert "answers again" in lines[1]


async def test_a_database_that_hangs(desk: Desk, memory: MemoryRecords) -> None:
    """A call that hangs blocks neither the loop nor the process; once it returns, everything goes on."""
    await desk.make_key()
    memory.gate.clear()
    await desk.until(lambda: trouble(desk))
    begun = time.monotonic()
    assert (await desk.client.get("/status")).status_code == 200
    assert code(await desk.make_key()) == "store_down"
    assert time.monotonic() - begun < 5
    memory.gate.set()
    await desk.until(lambda: not trouble(desk))
    assert (await desk.make_key()).status_code == 201
    assert len(desk.ids) == 2


async def test_a_connection_that_breaks_while_it_commits(desk: Desk, memory: MemoryRecords) -> None:
    """The answer says that the outcome is not known and which key it was; what really happened is published."""
    memory.cut = True
    reply = await desk.make_key()
    assert code(reply) == "outcome_unknown"
    await desk.until(lambda: len(desk.ids) == 1)
    (made,) = desk.ids
    assert made in reply.json()["error"]["message"]


async def test_a_start_without_the_database(memory: MemoryRecords, tmp_path: Path) -> None:
    """Control starts with the snapshot's keys that have not expired, and follows the database once it answers."""
    write_snapshot(tmp_path / "access.snapshot", Access(7, keys=(KEY, msgspec.structs.replace(KEY, id="k", expires=1))))
    memory.down = True
    desk = Desk(memory, tmp_path)
    async with desk.running():
        await desk.until(lambda: desk.published)
        assert desk.ids == {KEY.id}
        memory.down = False
        memory.add_tenant(Tenant("acme"))
        await desk.until(lambda: len(desk.published[-1].tenants) == 2)
        assert 7 < desk.published[0].generation < desk.published[-1].generation


async def test_a_start_with_a_database_that_hangs(memory: MemoryRecords, tmp_path: Path) -> None:
    """A database that neither answers nor refuses delays the snapshot's keys only for a moment."""
    write_snapshot(tmp_path / "access.snapshot", Access(7, keys=(KEY,)))
    memory.gate.clear()
    desk = Desk(memory, tmp_path)
    async with desk.running():
        await desk.until(lambda: desk.published)
        assert desk.ids == {KEY.id}
    memory.gate.set()


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 100], ids=["none", "empty", "broken"])
async def test_a_start_with_nothing(memory: MemoryRecords, tmp_path: Path, content: bytes | None) -> None:
    """Without database and with no snapshot, or a broken one, nothing is published until the database is there."""
    if content is not None:
        (tmp_path / "access.snapshot").write_bytes(content)
    memory.down = True
    desk = Desk(memory, tmp_path)
    async with desk.running():
        await asyncio.sleep(0.1)
        assert desk.published == []
        assert "there is no snapshot of the keys" in trouble(desk)
        memory.down = False
        await desk.until(lambda: desk.published)


async def test_generations_grow_over_a_restart(memory: MemoryRecords, tmp_path: Path) -> None:
    """A control that starts anew publishes above its forerunner, even when the clock was set back."""
    future = int(time.time() * 1000) + 10**9
    write_snapshot(tmp_path / "access.snapshot", Access(future))
    desk = Desk(memory, tmp_path)
    async with desk.running():
        await desk.until(lambda: desk.published)
        assert desk.published[0].generation == future + 1


async def test_an_older_backup(desk: Desk, memory: MemoryRecords) -> None:
    """A database that was set back is taken as it is now, under a higher generation than before."""
    backup = memory.backup()
    memory.add_key(KEY)
    await desk.until(lambda: desk.ids == {KEY.id})
    before = desk.published[-1].generation
    memory.restore(backup)
    await desk.until(lambda: desk.ids == set())
    assert desk.published[-1].generation > before
    assert desk.published[-1].required


async def test_an_empty_database_does_not_open_the_fleet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In another database than before there may be no key, and yet nobody may call without one."""
    write_snapshot(tmp_path / "access.snapshot", Access(7, required=True, salt="other", keys=(KEY,)))
    desk = Desk(MemoryRecords(), tmp_path)
    async with desk.running():
        await desk.until(lambda: desk.published)
        assert desk.published[-1].required
        assert desk.published[-1].keys == ()
        assert "not the database of tenants and keys that was there before" in caplog.text


async def test_a_snapshot_that_cannot_be_written(
    desk: Desk, memory: MemoryRecords, caplog: pytest.LogCaptureFixture
) -> None:
    """Changes go on, the log says so, and the snapshot is written as soon as it can be."""
    desk.snapshot.unlink()
    desk.snapshot.mkdir()
    assert (await desk.make_key()).status_code == 201
    assert "the snapshot of the keys cannot be written" in caplog.text
    desk.snapshot.rmdir()
    memory.add_tenant(Tenant("acme"))
    await desk.until(desk.snapshot.is_file)
    await desk.until(lambda: read_snapshot(desk.snapshot) == desk.published[-1])
    assert len(desk.ids) == 1


async def test_a_store_file_that_is_gone(tmp_path: Path) -> None:
    """A file that was moved away is not replaced by an empty one; keys go on, and it may return or be another one."""
    path, away = tmp_path / "store.db", tmp_path / "away.db"
    desk = Desk(Store(f"sqlite:///{path}"), tmp_path, path)
    async with desk.running():
        await desk.make_key()
        known = desk.ids
        path.rename(away)
        await desk.until(lambda: trouble(desk))
        assert code(await desk.make_key()) == "store_down"
        assert "restore a backup" in trouble(desk)
        assert desk.ids == known
    again = Desk(Store(f"sqlite:///{path}"), tmp_path, path)
    async with again.running():
        await again.until(lambda: again.published)
        assert again.ids == known
        assert not path.exists()
        away.rename(path)
        await again.until(lambda: not trouble(again))
        assert (await again.make_key()).status_code == 201
        assert len(again.ids) == 2


@pytest.mark.parametrize("content", [b"", None], ids=["empty", "without tables"])
async def test_an_empty_store_is_not_taken_for_the_old_one(tmp_path: Path, content: bytes | None) -> None:
    """Where an empty store stands in the place of one that held keys they go on, also after a restart of control."""
    path = tmp_path / "store.db"
    desk = Desk(Store(f"sqlite:///{path}"), tmp_path, path)
    async with desk.running():
        await desk.make_key()
        known = desk.ids
        put_away(path)
        if content is None:
            with contextlib.closing(sqlite3.connect(path)) as other:
                other.execute("PRAGMA journal_mode = WAL")
        else:
            path.write_bytes(content)
        await desk.until(lambda: "is empty" in trouble(desk))
        assert desk.ids == known
    again = Desk(Store(f"sqlite:///{path}"), tmp_path, path)
    async with again.running():
        await again.until(lambda: again.published and "is empty" in trouble(again))
        assert again.ids == known
        await again.until(lambda: not again.registry._unsaved)  # else it would be written once more
        again.snapshot.unlink()
        await again.until(lambda: not trouble(again))
        assert again.ids == set()
        assert again.published[-1].required


async def test_another_store_of_the_same_generation(tmp_path: Path) -> None:
    """A file that takes the place of another one is read, whatever its generation."""
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    with contextlib.closing(Store(f"sqlite:///{other}")) as store:
        store.prepare()
        store.add_key(KEY)
    desk = Desk(Store(f"sqlite:///{path}"), tmp_path, path)
    async with desk.running():
        await desk.make_key()
        put_away(path, "-wal", "-shm")
        other.rename(path)
        await desk.until(lambda: desk.ids == {KEY.id})


async def test_a_clock_that_was_wrong_for_a_while(
    desk: Desk, memory: MemoryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that were taken for expired come back when the clock is set right."""
    ahead_s = 0.0
    monkeypatch.setattr("tuneplex.control.registry.time", SimpleNamespace(time=lambda: time.time() + ahead_s))
    memory.add_key(msgspec.structs.replace(KEY, expires=int(time.time()) + 1000))
    await desk.until(lambda: desk.ids == {KEY.id})
    ahead_s = 2000.0
    await desk.until(lambda: desk.ids == set())
    ahead_s = 0.0
    await desk.until(lambda: desk.ids == {KEY.id})


async def test_a_store_file_that_is_no_file(tmp_path: Path) -> None:
    """Where the file should be and is something else, control goes on without it and says what is wrong."""
    path = tmp_path / "store.db"
    path.mkdir()
    desk = Desk(Store(f"sqlite:///{path}"), tmp_path, path)
    async with desk.running():
        assert code(await desk.client.get("/tenants")) == "store_down"
        assert str(path) in trouble(desk)
        path.rmdir()
        await desk.until(lambda: desk.published)


async def test_a_locked_store_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that another process keeps from being made is refused, and it is known that it was not made."""
    monkeypatch.setattr("tuneplex.records.database._BUSY_S", 0.05)
    path = tmp_path / "store.db"
    desk = Desk(Store(f"sqlite:///{path}"), tmp_path, path)
    async with desk.running():
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            reply = await desk.make_key()
            assert code(reply) == "store_down"
            assert "nothing was changed" in reply.json()["error"]["message"]
        assert (await desk.make_key()).status_code == 201
