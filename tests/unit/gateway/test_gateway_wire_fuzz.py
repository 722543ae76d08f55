"""Whatever bytes a client sends, in whatever pieces: each request gets one whole reply, and nothing is left behind."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.wire_fuzz import FAR, LIMITS, Cutting, cuts, open_wires, requests, spoilt, talk

PLACES = st.lists(st.integers(0, 2**16), max_size=8)
EXAMPLES = settings(max_examples=400, derandomize=True)


@EXAMPLES
@given(data=st.binary(max_size=300), at=PLACES)
def test_noise_gets_at_most_one_answer(data: bytes, at: list[int]) -> None:
    """What is no HTTP is refused once, as JSON, or the connection just ends."""
    replies = talk(cuts(data, at)).replies
    assert all(reply.status == 400 for reply in replies)
    assert len(replies) <= 1


@EXAMPLES
@given(data=st.lists(requests(sane=True), min_size=1, max_size=6), at=PLACES, later=st.booleans())
def test_each_request_gets_one_reply_however_it_is_cut(data: list[bytes], at: list[int], later: bool) -> None:  # noqa: FBT001 - hypothesis names it
    """Pipelined, cut anywhere, answered at once or later: as many replies as requests, in their order."""
    talked = talk(cuts(b"".join(data), at), later=later)
    assert len(talked.replies) == len(data)
    for reply, request in zip(talked.replies, data, strict=True):
        method, path = request.split()[:2]
        if method != b"HEAD" and reply.status == 200:
            assert json.loads(reply.body)[:2] == [method.decode(), path.decode().partition("?")[0]]
    assert not talked.closed


@EXAMPLES
@given(
    data=st.lists(
        requests(sane=True) | requests() | spoilt(requests()) | spoilt(requests(sane=True)), min_size=1, max_size=4
    ),
    at=PLACES,
    later=st.booleans(),
)
def test_pieces_change_nothing(data: list[bytes], at: list[int], later: bool) -> None:  # noqa: FBT001 - hypothesis names it
    """Wrong requests among right ones: the replies are the same in one piece and in many, at once or later."""
    whole, pieces = talk([b"".join(data)]), talk(cuts(b"".join(data), at), later=later)
    common = [*zip(whole.replies, pieces.replies, strict=False)]
    too_large = [431 in (one.status, other.status) for one, other in common]
    if any(too_large):  # how the bytes come decides whether line ends count as well; the connection ends with it
        common = common[: too_large.index(True)]
    assert all(one == other for one, other in common)
    # Only where a refused request was not read to its end, the connection is over sooner.
    assert (
        any(too_large)
        or len(pieces.replies) == len(whole.replies)
        or (pieces.closed and pieces.replies[-1].status >= 400)
    )


HEAD_LIMIT = 4096


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("request_line", [b"GET /%b HTTP/1.1", b"GET / HTTP/1.1\r\nx: %b"])
def test_the_head_has_one_limit_wherever_it_is_cut(request_line: bytes, pieces: int) -> None:
    """The target counts as headers do, and a head in two pieces is no larger than one in one."""
    for size, status in ((HEAD_LIMIT + 1, 431), (HEAD_LIMIT // 2, 200)):
        data = request_line % (b"x" * size) + b"\r\nhost: x\r\n\r\n"
        step = -(-len(data) // pieces)
        replies = talk([data[at : at + step] for at in range(0, len(data), step)]).replies
        assert [reply.status for reply in replies] == [status]


@pytest.mark.parametrize(
    "target, path, query",
    [
        (b"http://host/a?b", "/a", "b"),
        (b"https://host", "/", ""),
        (b"http://host?c=/d", "/", "c=/d"),
        (b"*?x=://y/z", "*", "x=://y/z"),
        (b"/a?x=http://y/z", "/a", "x=http://y/z"),
    ],
)
def test_a_target_means_one_path(target: bytes, path: str, query: str) -> None:
    """What stands in a query is never taken for the path, which something before the gateway may have checked."""
    (reply,) = talk([b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % target]).replies
    assert json.loads(reply.body)[1:3] == [path, query]


def test_an_offer_to_upgrade_changes_nothing_else() -> None:
    """An old client stays one, and one that wants the connection closed gets it closed."""
    old = talk([b"GET /stream HTTP/1.0\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"])
    assert [reply.status for reply in old.replies] == [200]
    assert b"chunked" not in old.wires.written
    closing = b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: Close, Upgrade\r\n\r\n"
    talked = talk([closing * 2])
    assert talked.closed
    assert len(talked.replies) == 1


def test_old_clients_are_not_told_to_continue() -> None:
    """HTTP/1.0 knows no interim replies, so such a client would take one for the answer."""
    head = b"POST / HTTP/1.%d\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
    assert b"100 Continue" in talk([head % 1, b"abc"]).wires.written
    assert b"100 Continue" not in talk([head % 0, b"abc"]).wires.written


def test_a_cut_reply_is_not_held_for_a_client_that_does_not_read() -> None:
    """What was written before the cut has its time to be read; then the connection ends."""
    connection, wires, _ = open_wires(Cutting())
    connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (wires.closed, wires.aborted) == (True, False)
    connection.tick(FAR)
    connection.tick(FAR + LIMITS.stalled_s / 2)
    assert not wires.aborted
    connection.tick(FAR + LIMITS.stalled_s)
    assert wires.aborted
