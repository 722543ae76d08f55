"""The story of a request that is over, in words."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.cli.stories import story
from tuneplex.journal import Finished, Tried

ONE = Finished(
    id="g/1",
    request_id="req-1",
    arrived=1000.0,
    closed=1003.05,
    tenant="acme",
    key_id="k1",
    model="contacts",
    version="contacts@1f0c",
    route="chat/completions",
    outcome="complete",
    stream=True,
    status=200,
    prompt=112,
    cached=96,
    completion=48,
    waited_s=0.84,
    first_token_s=0.97,
    attempts=[
        Tried("default-0", "default-0/1", "default", 1000.84, "broken", 1.2, 112, 20),
        Tried("default-1", "default-1/1", "default", 1002.31, "complete", 0.74, 132, 28),
    ],
)
REFUSED = Finished(
    id="g/e2",
    request_id="req-2",
    arrived=1000.0,
    closed=1000.0,
    tenant="acme",
    key_id="k1",
    model="contacts",
    version="contacts@1f0c",
    route="chat/completions",
    outcome="rejected",
    status=429,
    code="rate_limit_exceeded",
)


def test_all_that_happened_is_told_in_its_order() -> None:
    """Who came, the wait, each attempt with its pool and tokens, the first token, the tokens, and the end."""
    who, *rest = story(ONE)
    assert who.startswith("req-1 came 1970-01-01 ")
    assert who.endswith(" from acme, by the key k1, for contacts@1f0c, as a stream")
    assert rest == [
        "it waited 0.84 s",
        "after 0.84 s it went to default-0 of the pool default, and was broken 1.20 s later with 20 tokens",
        "after 2.31 s it went on to default-1 of the pool default, and was complete 0.74 s later with 28 tokens",
        "the first token came after 0.97 s, all of it after 3.05 s",
        "tokens: 112 of the prompt (96 of them from the prefix cache), 48 of the reply",
        "it was complete, with status 200",
    ]


@pytest.mark.parametrize(
    "change,end",
    [
        ({}, "it was refused, with status 429: rate_limit_exceeded"),
        ({"outcome": "client_gone", "status": 499, "code": ""}, "it ended as client_gone, with status 499"),
        ({"outcome": "gateway_crashed", "status": 0, "code": ""}, "it ended as gateway_crashed"),
    ],
)
def test_how_it_ended_is_told_last(change: dict[str, object], end: str) -> None:
    """A refusal has its status and code; an outcome that is not by a reply has none."""
    assert list(story(msgspec.structs.replace(REFUSED, **change)))[-1] == end


def test_a_request_that_no_engine_got_has_no_tokens() -> None:
    """Where nothing was sent, nothing is said of tokens or waiting."""
    assert list(story(REFUSED))[1:-1] == ["all of it after 0.00 s"]


def test_what_is_not_exact_is_told_as_such() -> None:
    """Tokens by our own count are told as about so many; requests that were put together as one of them."""
    assert "tokens: about 112 of the prompt" in "\n".join(story(msgspec.structs.replace(ONE, estimated=True)))
    nobody = msgspec.structs.replace(REFUSED, tenant="", key_id="", model="", version="", count=7)
    assert "from nobody that is known, for no model that there is, one of 7 like it" in next(story(nobody))
