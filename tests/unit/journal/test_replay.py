"""What becomes of the entries of a journal: requests that are over, each once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tuneplex.journal import (
    CRASHED,
    Closed,
    Entered,
    Entry,
    Finished,
    Follower,
    Journal,
    JournalLimits,
    Opened,
    Progress,
    Refused,
    Replay,
)

AT = 1_700_000_000.0


def opened(number: int, *, attempt: int = 1, prompt: int = 10, at: float = AT) -> Opened:
    """An attempt at a request."""
    who = ("acme", "k1", "legal", "legal@1")
    return Opened(number, attempt, at, AT, f"req-{number}", *who, "chat", True, "p", f"p-{attempt}", "1", prompt)


def replayed(*entries: Entry, ended: bool = False) -> list[Finished]:
    """What these entries end, one after the other."""
    replay = Replay("g-1")
    found = [replay.take(number, entry) for number, entry in enumerate(entries, 1)]
    return [one for one in found if one is not None] + (replay.abandon() if ended else [])


def test_a_request_is_over_once() -> None:
    """A request that was closed is over with what its closing says, and another closing changes nothing."""
    closed = Closed(1, 0, AT + 2, "complete", 200, 12, 4, 30, exact=True, first_token_s=0.5)
    (one,) = replayed(opened(1), closed, closed, ended=True)
    assert (one.id, one.outcome, one.prompt, one.cached, one.completion) == ("g-1/1", "complete", 12, 4, 30)
    assert not one.estimated
    assert [(tried.replica, tried.outcome, tried.took_s) for tried in one.attempts] == [("p-1", "complete", 2.0)]


def test_a_crash_closes_what_was_open() -> None:
    """What was under way is closed as crashed, by its last progress, and marked as an estimate."""
    (one,) = replayed(opened(1), Progress(1, AT + 1, 11, 64), Progress(1, AT + 3, 11, 128), ended=True)
    assert (one.outcome, one.prompt, one.completion, one.estimated, one.closed) == (CRASHED, 11, 128, True, AT + 3)


def test_a_crash_before_any_progress_is_the_prompt() -> None:
    """A request of which nothing had come is charged for the prompt that was sent."""
    (one,) = replayed(opened(1), ended=True)
    assert (one.outcome, one.prompt, one.completion, one.estimated) == (CRASHED, 10, 0, True)


def test_each_attempt_has_its_own_tokens() -> None:
    """A stream that went on elsewhere is charged once, and each engine is known to have done its part."""
    (one,) = replayed(
        opened(1),
        Closed(1, 1, AT + 1, "broken", prompt=10, completion=7),
        opened(1, attempt=2, at=AT + 2),
        Closed(1, 0, AT + 5, "complete", 200, 10, 0, 20, exact=True),
    )
    assert (one.prompt, one.completion, one.replica) == (10, 20, "p-2")
    assert [(tried.outcome, tried.prompt, tried.completion) for tried in one.attempts] == [
        ("broken", 10, 7),
        ("complete", 17, 13),
    ]


def test_a_request_that_waited_in_vain_is_one() -> None:
    """A request that entered and was refused later is one request, with its number."""
    entered = Entered(1, AT, "req-1", "acme", "k1", "legal", "legal@1", "chat")
    refused = Refused(AT + 9, AT, "req-1", "acme", "k1", "legal", "legal@1", "chat", 503, "queue_timeout", number=1)
    (one,) = replayed(entered, refused, ended=True)
    assert (one.id, one.outcome, one.status, one.code) == ("g-1/1", "rejected", 503, "queue_timeout")


def test_a_request_that_only_entered_has_crashed() -> None:
    """A request that was let in and got no engine before the process ended took no tokens."""
    (one,) = replayed(Entered(1, AT, "req-1", "acme", "k1", "legal", "legal@1", "chat"), ended=True)
    assert (one.outcome, one.prompt, one.completion) == (CRASHED, 0, 0)


steps = st.lists(st.tuples(st.integers(1, 5), st.sampled_from("opafc")), max_size=60)


@settings(max_examples=40)
@given(steps, st.integers(200, 3000), st.data())
def test_nothing_is_lost_and_nothing_is_twice(wishes: list[tuple[int, str]], size: int, data: st.DataObject) -> None:
    """Whenever readers begin anew, and whatever files are gone by then, each request ends once, with its tokens."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "g-1"
        journal = Journal(Path(place), "g-1", limits=JournalLimits(segment=size))
        wanted = written(journal, wishes)
        journal.close()
        kept: dict[str, Finished] = {}
        follower, replay = Follower(directory), Replay("g-1")
        while entries := follower.read():
            keep(kept, [replay.take(one.number, one.entry) for one in entries])
            if data.draw(st.booleans()):
                for path in follower.finished:
                    path.unlink(missing_ok=True)
            if data.draw(st.booleans()):
                follower, replay = Follower(directory), Replay("g-1")
        keep(kept, list(replay.abandon()))
        assert not follower.damages
        assert {one.id: (one.outcome, one.completion) for one in kept.values()} == wanted


def keep(kept: dict[str, Finished], found: list[Finished | None]) -> None:
    """As the store does: what is there already stays."""
    for one in found:
        if one is not None:
            kept.setdefault(one.id, one)


def written(journal: Journal, wishes: list[tuple[int, str]]) -> dict[str, tuple[str, int]]:
    """Write what a gateway could write for these wishes; how each request ends, and its tokens."""
    tokens: dict[int, int] = {}
    tries: dict[int, int] = {}
    number_of: dict[int, int] = {}
    ends: dict[str, tuple[str, int]] = {}
    for which, what in wishes:
        if what == "o" and which not in number_of:
            number = number_of[which] = len(ends) + len(number_of) + 1
            tokens[number], tries[number] = 0, 1
            journal.write(opened(number))
        elif which in number_of:
            number = number_of[which]
            if what == "p":
                tokens[number] += 64
                journal.write(Progress(number, AT, 10, tokens[number]))
            elif what == "a":
                journal.write(Closed(number, tries[number], AT, "broken", prompt=10, completion=tokens[number]))
                tries[number] += 1
                journal.write(opened(number, attempt=tries[number]))
            elif what == "c":
                journal.write(Closed(number, 0, AT, "complete", 200, 10, 0, tokens[number] + 1))
                ends[f"g-1/{number}"] = "complete", tokens[number] + 1
                del number_of[which]
    for number in number_of.values():
        ends[f"g-1/{number}"] = CRASHED, tokens[number]
    return ends
