"""The store of replies: what gateways keep of requests with an `Idempotency-Key`, and which of them works on which.

One SQLite file for all gateway processes of a fleet. To claim a key, to take over the claim of a process that is gone,
and to stay below the bound are each one transaction there, which files of our own would need locks and repairs for.
Every method may block, so it belongs in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import secrets
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tuneplex.errors import TuneplexError
from tuneplex.types import Idempotency

__all__ = [
    "ENTRY",
    "ROOM",
    "Elsewhere",
    "Found",
    "Full",
    "Kept",
    "Mine",
    "Missed",
    "Other",
    "Replies",
    "RepliesError",
    "is_alive",
]

ROOM = 64 * 1024  # what is set aside for a reply before anybody knows how large it is
ENTRY = 1024  # what one takes beside its body

_FILE = "replies-1.db"  # with the number of its tables' shape: processes of another version use another file
_PATIENCE_S = 5.0
_PROBE_S = 0.2
_AT_ONCE = 100
_LONGEST_RETRY_S = 3600
_JOURNAL = 16 * 1024 * 1024

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    name BLOB PRIMARY KEY, fingerprint BLOB NOT NULL, owner TEXT, turn INTEGER NOT NULL, bytes INTEGER NOT NULL,
    at REAL NOT NULL, request_id BLOB, content_type BLOB, body BLOB
);
CREATE INDEX IF NOT EXISTS by_age ON entries(at) WHERE owner IS NULL;
CREATE INDEX IF NOT EXISTS by_owner ON entries(owner) WHERE owner IS NOT NULL;
CREATE TABLE IF NOT EXISTS total (id INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO total VALUES (0, 0);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON entries
    BEGIN UPDATE total SET bytes = bytes + new.bytes; END;
CREATE TRIGGER IF NOT EXISTS changed AFTER UPDATE OF bytes ON entries
    BEGIN UPDATE total SET bytes = bytes + new.bytes - old.bytes; END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON entries
    BEGIN UPDATE total SET bytes = bytes - old.bytes; END;
"""
_LOOK = "SELECT fingerprint, owner, turn, at, request_id, content_type, body FROM entries WHERE name = ?"
_BEGIN = "INSERT INTO entries (name, fingerprint, owner, turn, bytes, at) VALUES (?, ?, ?, ?, ?, ?)"
_TAKE = "UPDATE entries SET owner = ?, turn = ?, bytes = ?, at = ? WHERE name = ?"
_SIZE = "SELECT bytes FROM entries WHERE name = ? AND owner = ? AND turn = ?"
_GROW = "UPDATE entries SET bytes = ? WHERE name = ? AND owner = ? AND turn = ?"
_KEEP = (
    "UPDATE entries SET owner = NULL, bytes = ?, at = ?, request_id = ?, content_type = ?, body = ?"
    " WHERE name = ? AND owner = ? AND turn = ?"
)
_RELEASE = "DELETE FROM entries WHERE name = ? AND owner = ? AND turn = ?"
_EXPIRED = "SELECT rowid FROM entries WHERE owner IS NULL AND at <= ? LIMIT ?"


class RepliesError(TuneplexError):
    """The store cannot be read or written."""


class Mine(msgspec.Struct, frozen=True):
    """Whoever asked works on it from now on; `turn` is the proof."""

    turn: int


class Elsewhere(msgspec.Struct, frozen=True):
    """The process that listens on the socket `owner` works on it, or did when it died."""

    owner: str
    turn: int


class Kept(msgspec.Struct, frozen=True):
    """A complete reply; `turn` tells it from others to the same key."""

    turn: int
    request_id: bytes
    content_type: bytes
    body: bytes


class Missed(msgspec.Struct, frozen=True):
    """There was a complete reply, which was too large to be kept."""


class Other(msgspec.Struct, frozen=True):
    """Another request has this key."""


class Full(msgspec.Struct, frozen=True):
    """There is no room for another reply; maybe in `retry_s` seconds."""

    retry_s: int


Found = Mine | Elsewhere | Kept | Missed | Other | Full


def is_alive(owner: str) -> bool:
    """Whether a process listens on this socket: the kernel closes it when the process ends, however it does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(owner)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # it has too much to do
    return True


class Replies:
    """The store, as one process uses it, from one thread at a time.

    Args:
        directory: Where its file is; made if it is missing. None keeps it in memory, for this process alone.
        owner: The path of the socket at which other processes find this one.
        alive: Whether a process is, by the path of its socket.
    """

    def __init__(
        self, directory: Path | None = None, owner: str = "here", alive: Callable[[str], bool] = is_alive
    ) -> None:
        self.owner = owner
        self._directory = directory
        self._alive = alive
        self._connection: sqlite3.Connection | None = None

    # --- one request

    def claim(self, name: bytes, fingerprint: bytes, now: float, limits: Idempotency, stale: int | None) -> Found:
        """What there is for a key; if there is nothing, whoever asks works on it.

        Args:
            name: Of the entry: tenant and key.
            fingerprint: Of the request.
            now: Unix time.
            limits: How much is kept, and how long.
            stale: The turn of an owner that is known not to work on it any more.

        Raises:
            RepliesError: Nobody knows.
        """
        with self._transaction() as db:
            row = db.execute(_LOOK, (name,)).fetchone()
            if row is not None and row[1] is None and row[3] <= now - limits.keep_s:
                db.execute("DELETE FROM entries WHERE name = ?", (name,))
                row = None
            if row is None:
                return self._begin(db, name, fingerprint, now, limits)
            known, owner, turn, _, request_id, content_type, body = row
            if known != fingerprint:
                return Other()
            if owner is None:
                return Missed() if body is None else Kept(turn, request_id, content_type, body)
            return self._take(db, name, now) if turn == stale else Elsewhere(owner, turn)

    def _begin(
        self, db: sqlite3.Connection, name: bytes, fingerprint: bytes, now: float, limits: Idempotency
    ) -> Mine | Full:
        if not _fits(db, ROOM, limits):
            while self._expire(db, now, limits) == _AT_ONCE:
                pass
        if not _fits(db, ROOM, limits):
            return Full(_retry_s(db, now, limits))
        turn = _turn()
        db.execute(_BEGIN, (name, fingerprint, self.owner, turn, ROOM, now))
        return Mine(turn)

    def _take(self, db: sqlite3.Connection, name: bytes, now: float) -> Mine:
        turn = _turn()
        db.execute(_TAKE, (self.owner, turn, ROOM, now, name))
        return Mine(turn)

    def grow(self, name: bytes, turn: int, size: int, limits: Idempotency) -> bool:
        """Set more room aside for a reply of ours; False if there is none, then it has none at all any more.

        Raises:
            RepliesError: The same for another reason.
        """
        with self._transaction() as db:
            found = db.execute(_SIZE, (name, self.owner, turn)).fetchone()
            fits = found is not None and _fits(db, size - found[0], limits)
            db.execute(_GROW, (size if fits else ENTRY, name, self.owner, turn))
            return fits

    def keep(self, name: bytes, turn: int, now: float, limits: Idempotency, reply: Kept | None) -> bool:
        """Our reply is complete: from now on everybody gets it. Without one, that it was too large to be kept.

        Returns:
            Whether it is kept.

        Raises:
            RepliesError: It is not, and the key is still ours.
        """
        with self._transaction() as db:
            found = db.execute(_SIZE, (name, self.owner, turn)).fetchone()
            if found is None:
                return False
            size = ENTRY + (0 if reply is None else len(reply.body))
            if reply is None or not _fits(db, size - found[0], limits):
                db.execute(_KEEP, (ENTRY, now, None, None, None, name, self.owner, turn))
                return False
            what = (reply.request_id, reply.content_type, reply.body)
            db.execute(_KEEP, (size, now, *what, name, self.owner, turn))
            return True

    def release(self, name: bytes, turn: int) -> None:
        """There is no reply to be kept: the next request with this key begins anew.

        Raises:
            RepliesError: It could not be written down.
        """
        with self._transaction() as db:
            db.execute(_RELEASE, (name, self.owner, turn))

    # --- upkeep

    def sweep(self, now: float, limits: Idempotency) -> bool:
        """Remove some of what is too old, and what processes have claimed that are gone; whether there is more.

        A clock that was set back makes nothing older than it may get: what seems to come from the future is as of now.

        Raises:
            RepliesError: It could not.
        """
        with self._transaction() as db:
            owners = [owner for (owner,) in db.execute("SELECT DISTINCT owner FROM entries WHERE owner IS NOT NULL")]
        dead = [owner for owner in owners if owner != self.owner and not self._alive(owner)]
        with self._transaction() as db:
            db.executemany("DELETE FROM entries WHERE owner = ?", [(owner,) for owner in dead])
            db.execute("UPDATE entries SET at = ? WHERE owner IS NULL AND at > ?", (now, now))
            return self._expire(db, now, limits) == _AT_ONCE

    def used(self) -> int:
        """Bytes that are taken, or set aside."""
        with self._transaction() as db:
            return _total(db)

    def exists(self) -> bool:
        """Whether there is anything to look after."""
        return self._connection is not None or (self._directory is not None and (self._directory / _FILE).exists())

    def close(self) -> None:
        """Let go of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _expire(self, db: sqlite3.Connection, now: float, limits: Idempotency) -> int:
        rows = db.execute(_EXPIRED, (now - limits.keep_s, _AT_ONCE)).fetchall()
        db.executemany("DELETE FROM entries WHERE rowid = ?", rows)
        return len(rows)

    # --- the file

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self._connection = self._connection or self._open()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as error:
            with contextlib.suppress(sqlite3.Error):
                self.close()  # the next one opens it anew
            raise RepliesError(f"{self._directory}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        if self._directory is None:
            return _connect(":memory:")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self._directory):
            path = self._directory / _FILE
            try:
                return _connect(path)
            except sqlite3.OperationalError:  # it is locked, or the disk has failed: that may pass
                raise
            except sqlite3.DatabaseError:  # it is no database any more, so nothing in it can be trusted
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                return _connect(path)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One process at a time, so that nobody removes what another one has just made."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _connect(path: Path | str) -> sqlite3.Connection:
    if isinstance(path, Path):  # SQLite gives its other files the same mode
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA secure_delete = ON")  # what has expired is gone
        db.execute(f"PRAGMA journal_size_limit = {_JOURNAL}")
        db.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
    except BaseException:
        db.close()
        raise
    return db


def _turn() -> int:
    return secrets.randbits(62)


def _total(db: sqlite3.Connection) -> int:
    (total,) = db.execute("SELECT bytes FROM total").fetchone()
    return int(total)


def _fits(db: sqlite3.Connection, more: int, limits: Idempotency) -> bool:
    return more <= 0 or _total(db) + more <= limits.bytes


def _retry_s(db: sqlite3.Connection, now: float, limits: Idempotency) -> int:
    """When the oldest reply expires; running ones may end any time."""
    (oldest,) = db.execute("SELECT min(at) FROM entries WHERE owner IS NULL").fetchone()
    left_s = 1.0 if oldest is None else oldest + limits.keep_s - now
    return max(1, min(_LONGEST_RETRY_S, math.ceil(left_s)))
