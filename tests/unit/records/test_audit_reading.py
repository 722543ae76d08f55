"""The audit log as others read it: events of a time and a tenant, and heads that are sent elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from tests.support.audits import NOW, Clock, events, small_log
from tuneplex.errors import AuditError
from tuneplex.records.audit import AuditEvent, AuditLog, Head, Selection, newest_head, post_head, selected
from tuneplex.records.audit.chain import START


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of two tenants, some of whose events are lost."""
    with AuditLog(tmp_path, clock=Clock()) as log:
        lost = AuditEvent(source="gateway-0", seq=4, at=NOW + 5, event="lost", count=1)
        log.append([*events(1, 3), lost, *events(5, 6, tenant="zeta")])
    return tmp_path


def picked(directory: Path, wanted: Selection) -> list[int]:
    """The numbers of the events that are read."""
    return [found.event.seq for found in selected(directory, wanted) if found is not None]


@pytest.mark.parametrize(
    "wanted, numbers",
    [
        (Selection(), [1, 2, 3, 4, 5, 6]),
        (Selection(tenant="acme"), [1, 2, 3, 4]),
        (Selection(tenant="zeta"), [4, 5, 6]),
        (Selection(tenant="nobody"), [4]),
        (Selection(since=NOW + 2, until=NOW + 5), [2, 3]),
        (Selection(since=NOW + 7), []),
    ],
)
def test_events_are_selected(directory: Path, wanted: Selection, numbers: list[int]) -> None:
    """The first moment is in, the last one is not; that events are lost is told to each tenant."""
    assert picked(directory, wanted) == numbers


def test_events_come_as_they_stand(directory: Path) -> None:
    """Each has its number in the chain and its own bytes, so that it can be found again in the log."""
    raw = (directory / "000001.jsonl").read_bytes()
    for found in selected(directory, Selection()):
        assert found is not None
        assert found.raw in raw
        assert json.loads(found.raw)["n"] == found.n


def test_lines_that_cannot_be_read_are_counted(directory: Path) -> None:
    """A line that is none, or an event that says what none says, does not stop the others; an unfinished one waits."""
    path = directory / "000001.jsonl"
    raw = path.read_bytes().replace(b'"seq":2,', b'"seq":"",').replace(b',"seq":3,', b'\n"seq":3,')
    path.write_bytes(raw + b'{"n":')
    assert picked(directory, Selection()) == [1, 4, 5, 6]
    assert [found for found in selected(directory, Selection()) if found is None] == [None, None, None]


def test_events_of_all_segments(tmp_path: Path) -> None:
    """They come in the log's order, whichever files they are in."""
    small_log(tmp_path)
    assert picked(tmp_path, Selection()) == list(range(1, 10))


@pytest.mark.parametrize("text", ["", "7", "7:", ":" + "0" * 64, "7:" + "G" * 64, "-7:" + "0" * 64])
def test_what_is_no_head(text: str) -> None:
    """Only a number and a chain value are a head."""
    with pytest.raises(ValueError, match="is not a head"):
        Head.parse(text)


def test_head_is_read_as_it_is_written() -> None:
    """A head comes back from a file, with or without its newline."""
    assert Head.parse(f"{Head(7, START)}\n") == Head(7, START)


async def test_head_is_sent(directory: Path) -> None:
    """Another place gets the head with its time and key, as JSON."""
    asked: list[httpx2.Request] = []

    def take(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(204)

    signed = newest_head(directory)
    assert signed is not None
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(take)) as client:
        await post_head(client, "https://heads.example/tuneplex", signed)
    assert str(asked[0].url) == "https://heads.example/tuneplex"
    assert json.loads(asked[0].content) == {
        "head": str(signed.head),
        "n": signed.n,
        "at": NOW,
        "key_id": signed.key_id,
    }


async def test_head_that_is_not_taken(directory: Path) -> None:
    """A refusal and a server that is away are errors in words, for whoever sends the next one."""

    def away(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("nobody there", request=request)

    signed = newest_head(directory)
    assert signed is not None
    for answer, words in ((away, "nobody there"), (lambda _request: httpx2.Response(403), "status 403")):
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            with pytest.raises(AuditError, match=words):
                await post_head(client, "https://heads.example/", signed)


def test_event_says_nothing_of_the_prompt() -> None:
    """There is no member that could hold a prompt or an answer; the two that sound so are numbers."""
    kinds = AuditEvent.__annotations__
    assert {kinds["prompt"], kinds["completion"]} == {"int"}
    assert not {"messages", "text", "body", "input", "output", "content"} & set(kinds)
