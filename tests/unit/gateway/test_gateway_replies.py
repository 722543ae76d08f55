"""The store of replies: who may work on what, how much is kept, and for how long."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.gateway.replies import ENTRY, ROOM, Elsewhere, Full, Kept, Mine, Missed, Other, Replies, RepliesError
from tuneplex.types import Idempotency

LIMITS = Idempotency(bytes=4 * ROOM, keep_s=100.0)
PRINT = b"request"
OTHER_PRINT = b"another"


def claimed(store: Replies, name: bytes = b"n", now: float = 0.0, limits: Idempotency = LIMITS) -> Mine:
    """A claim that has succeeded."""
    found = store.claim(name, PRINT, now, limits, None)
    assert isinstance(found, Mine)
    return found


def kept(store: Replies, name: bytes = b"n", body: bytes = b"body", now: float = 0.0) -> Kept:
    """A reply that is kept."""
    mine = claimed(store, name, now)
    reply = Kept(mine.turn, b"id", b"text/plain", body)
    assert store.keep(name, mine.turn, now, LIMITS, reply)
    return reply


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Replies, Replies]]:
    """Two processes that share a directory and know each other to be alive."""
    a, b = (Replies(tmp_path, name, alive=lambda _: True) for name in ("a.sock", "b.sock"))
    yield a, b
    a.close()
    b.close()


def test_one_works_and_the_other_hears_of_it(places: tuple[Replies, Replies]) -> None:
    """Who comes second learns who is first, and at last gets the reply."""
    a, b = places
    mine = claimed(a)
    assert b.claim(b"n", PRINT, 0, LIMITS, None) == Elsewhere("a.sock", mine.turn)
    assert a.claim(b"n", PRINT, 0, LIMITS, None) == Elsewhere("a.sock", mine.turn)
    assert b.claim(b"n", OTHER_PRINT, 0, LIMITS, None) == Other()
    reply = Kept(mine.turn, b"id", b"text/plain", b"body")
    assert a.keep(b"n", mine.turn, 0, LIMITS, reply)
    assert b.claim(b"n", PRINT, 1, LIMITS, None) == reply
    assert b.claim(b"n", OTHER_PRINT, 1, LIMITS, None) == Other()
    assert a.used() == ENTRY + len(b"body")


def test_only_one_takes_over(places: tuple[Replies, Replies]) -> None:
    """Two that found the same owner gone do not both work, and the owner, should it live, keeps nothing any more."""
    a, b = places
    first = claimed(a)
    second = b.claim(b"n", PRINT, 0, LIMITS, first.turn)
    assert isinstance(second, Mine)
    assert a.claim(b"n", PRINT, 0, LIMITS, first.turn) == Elsewhere("b.sock", second.turn)
    assert not a.keep(b"n", first.turn, 0, LIMITS, Kept(first.turn, b"", b"", b"old"))
    a.release(b"n", first.turn)
    assert a.claim(b"n", PRINT, 0, LIMITS, None) == Elsewhere("b.sock", second.turn)


def test_a_release_makes_the_key_new() -> None:
    """Also for another request."""
    store = Replies()
    mine = claimed(store)
    store.release(b"n", mine.turn)
    assert isinstance(store.claim(b"n", OTHER_PRINT, 0, LIMITS, None), Mine)
    assert store.used() == ROOM


def test_a_full_store_says_until_when() -> None:
    """By the oldest reply; running requests alone may end at any time; what has expired makes room at once."""
    store = Replies()
    for number in range(4):
        claimed(store, b"%d" % number)
    assert store.claim(b"n", PRINT, 0, LIMITS, None) == Full(1)
    store = Replies()
    for number in range(4):
        kept(store, b"%d" % number, b"x" * (ROOM - ENTRY), now=10.0 * number)
    assert store.claim(b"n", PRINT, 40.0, LIMITS, None) == Full(60)
    assert store.claim(b"n", PRINT, 99.5, LIMITS, None) == Full(1)
    assert isinstance(store.claim(b"n", PRINT, 100.0, LIMITS, None), Mine)
    assert store.claim(b"m", PRINT, 0.0, Idempotency(bytes=ROOM, keep_s=86400.0), None) == Full(3600)


def test_what_grows_takes_room_and_gives_it_back() -> None:
    """A reply that no room is left for is remembered as one that was too large."""
    store = Replies()
    mine = claimed(store)
    assert store.grow(b"n", mine.turn, 3 * ROOM, LIMITS)
    assert store.used() == 3 * ROOM
    assert not store.grow(b"n", mine.turn, 5 * ROOM, LIMITS)
    assert store.used() == ENTRY
    assert not store.keep(b"n", mine.turn, 0, LIMITS, None)
    assert store.claim(b"n", PRINT, 0, LIMITS, None) == Missed()
    assert isinstance(store.claim(b"n", PRINT, 100, LIMITS, None), Mine)


def test_upkeep_removes_what_is_old_and_what_the_dead_have_claimed(tmp_path: Path) -> None:
    """What lives, and what is young, stays, however long it runs."""
    alive = {"a.sock", "b.sock"}
    a, b = (Replies(tmp_path, name, alive=alive.__contains__) for name in ("a.sock", "b.sock"))
    kept(a, b"old")
    kept(a, b"young", now=50.0)
    claimed(a, b"mine")
    claimed(b, b"theirs")
    assert not a.sweep(120.0, LIMITS)
    assert a.used() == ENTRY + 4 + 2 * ROOM
    alive.remove("b.sock")
    a.sweep(120.0, LIMITS)
    assert a.used() == ENTRY + 4 + ROOM


def test_a_lot_is_removed_in_rounds() -> None:
    """So that others have their turns in between."""
    store = Replies()
    for number in range(150):
        kept(store, b"%d" % number, b"")
    assert store.sweep(200.0, LIMITS)
    assert not store.sweep(200.0, LIMITS)
    assert store.used() == 0


def test_a_clock_that_was_set_back_makes_nothing_immortal() -> None:
    """What seems to come from the future lives as long again as anything else, and no longer."""
    store = Replies()
    kept(store, now=1_000_000.0)
    store.sweep(500.0, LIMITS)
    assert isinstance(store.claim(b"n", PRINT, 599.0, LIMITS, None), Kept)
    store.sweep(600.0, LIMITS)
    assert store.used() == 0


@given(st.lists(st.tuples(st.sampled_from("cgkrs"), st.integers(0, 5), st.integers(0, 3 * ROOM)), max_size=40))
def test_the_sum_is_right_and_in_bounds(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is claimed, grows, is kept, released or swept."""
    store, turns, now = Replies(), dict[bytes, int](), 0.0
    for step, number, size in steps:
        name, now = b"%d" % number, now + 7
        turn = turns.get(name, 0)
        match step:
            case "c":
                found = store.claim(name, PRINT, now, LIMITS, None)
                turns[name] = found.turn if isinstance(found, Mine) else turn
            case "g":
                store.grow(name, turn, size, LIMITS)
            case "k":
                store.keep(name, turn, now, LIMITS, Kept(turn, b"", b"", bytes(size)))
            case "r":
                store.release(name, turn)
            case _:
                store.sweep(now, LIMITS)
        with store._transaction() as db:
            (summed,) = db.execute("SELECT coalesce(sum(bytes), 0) FROM entries").fetchone()
        assert store.used() == summed <= LIMITS.bytes
    store.close()


FULL = """
import resource, signal, sys
from pathlib import Path
from tuneplex.gateway.replies import Kept, Mine, Replies, RepliesError
from tuneplex.types import Idempotency

store, limits = Replies(Path(sys.argv[1])), Idempotency()
first = store.claim(b"first", b"", 0, limits, None)
store.keep(b"first", first.turn, 0, limits, Kept(first.turn, b"", b"", b"small"))
second = store.claim(b"second", b"", 0, limits, None)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
try:
    store.keep(b"second", second.turn, 0, limits, Kept(second.turn, b"", b"", b"x" * 1_000_000))
except RepliesError as error:
    print("failed:", error)
assert isinstance(store.claim(b"first", b"", 0, limits, None), Kept)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.release(b"second", second.turn)
assert isinstance(store.claim(b"second", b"", 0, limits, None), Mine)
"""


def test_a_disk_that_is_full_loses_nothing(tmp_path: Path) -> None:
    """What does not fit is an error, what was there stays, and with room it goes on."""
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("failed:")


KILLED = """
import os, signal, sys
from pathlib import Path
from tuneplex.gateway.replies import Kept, Replies
from tuneplex.types import Idempotency

store, limits = Replies(Path(sys.argv[1]), "gone.sock"), Idempotency()
mine = store.claim(b"n", b"request", 0, limits, None)
with store._transaction() as db:
    db.execute("UPDATE entries SET owner = NULL, body = ?", (b"x" * 10_000_000,))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_in_the_middle_leaves_no_half_reply(tmp_path: Path) -> None:
    """The claim stands as it was, and is taken over."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    store = Replies(tmp_path)
    found = store.claim(b"n", PRINT, 0, LIMITS, None)
    assert isinstance(found, Elsewhere)
    assert isinstance(store.claim(b"n", PRINT, 0, LIMITS, found.turn), Mine)
    store.close()


def test_a_directory_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    """And it is used as soon as it can be."""
    place = tmp_path / "place"
    place.write_text("in the way")
    store = Replies(place)
    with pytest.raises(RepliesError):
        store.claim(b"n", PRINT, 0, LIMITS, None)
    place.unlink()
    claimed(store)
    store.close()
