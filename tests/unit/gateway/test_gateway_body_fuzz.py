"""Whatever a request's body is: the engine gets what the client sent, or the client gets an error that says why not."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine_fuzz import NAME, exchange
from tests.support.wire_fuzz import spoilt
from tuneplex.types import Route

EXAMPLES = settings(max_examples=500, derandomize=True)
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"

NUMBERS = [
    b"0",
    b"-0",
    b"1",
    b"-5",
    b"1.50",
    b"1e2",
    b"1e400",
    b"-1E-999",
    b"9" * 30,
    b"9" * 6000,
    b"4611686018427387904",
]
STRINGS = [
    rb'""',
    rb'"legal"',
    rb'"\ud83d\ude00"',
    rb'"\u0000"',
    '"é\U0001f600"'.encode(),
    rb'"\/"',
    b'"\x7f"',
]
OTHERS = [
    b"null",
    b"true",
    b"false",
    b"[]",
    b"{}",
    b" [ ] ",
    b'{"role":"user","content":"hello"}',
    b'{"include_usage":1}',
]
WRONG = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"01",
    b"+1",
    b".5",
    b"1.",
    b'"\x00"',
    b'"\xff"',
    b"'x'",
    b"tru",
    b"[1,]",
    b'"\\x"',
    b"",
    rb'"\ud800"',
    rb'"\udc00\ud800x"',
    rb'{"\ud800":1}',
]
FIELDS = [
    b'"model"', b'"stream"', b'"stream_options"', b'"max_tokens"', b'"max_completion_tokens"', b'"n"', b'"messages"',
    b'"prompt"', b'"input"', b'"previous_response_id"', b'"cache_salt"', b'"include_usage"', b'"content"', b'"x"',
    rb'"mod\u0065l"', '"é"'.encode(),
]  # fmt: skip
SPACE = st.sampled_from([b"", b"", b"", b" ", b"\n\t"])


def objects(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """JSON objects, with fields that come twice."""
    pair = st.builds(
        lambda name, value, space: name + space + b":" + space + value, st.sampled_from(FIELDS), values, SPACE
    )
    return st.builds(
        lambda pairs, space: b"{" + (space + b",").join(pairs) + space + b"}", st.lists(pair, max_size=6), SPACE
    )


def nested(depth: int) -> bytes:
    """As deep as that."""
    return b"[" * depth + b"]" * depth


GOOD = st.recursive(
    st.sampled_from(NUMBERS + STRINGS + OTHERS) | st.integers(1, 300).map(nested),
    lambda inner: objects(inner) | st.lists(inner, max_size=4).map(lambda parts: b"[" + b",".join(parts) + b"]"),
    max_leaves=12,
)
NAMED = st.builds(
    lambda rest: b'{"model":"legal"' + (b"," if rest[1:].strip() != b"}" else b"") + rest[1:], objects(GOOD)
)


def refuse(word: str) -> NoReturn:
    """No word of JSON's."""
    raise ValueError(word)


def spelt(body: bytes) -> Any:  # noqa: ANN401 - any JSON
    """The value, with numbers as they are spelt; of repeated fields the last."""
    return json.loads(body, parse_int=str, parse_float=str, parse_constant=refuse)


@EXAMPLES
@given(body=NAMED, route=st.sampled_from(Route), engine=st.sampled_from(["vllm", "openai"]), deployed=st.booleans())
def test_fields_reach_the_engine_as_they_came(body: bytes, route: Route, engine: str, deployed: bool) -> None:  # noqa: FBT001 - hypothesis names it
    """Whatever the values are, unless one that the gateway has to read is of another type: then the error names it."""
    got = exchange(route, body, [[OK]], engine=engine, base="/d/legal/v1" if deployed else "/v1")
    sent = spelt(body)
    if got.asked is None:
        assert got.answered.status in {400, 404}
        assert json.loads(got.answered.body)["error"]["param"] in {"model", "stream", "previous_response_id"}
        return
    assert isinstance(sent["model"], str | None)
    asked = spelt(got.asked)
    if sent.get("stream") is True:
        asked.pop("stream_options", None)
        sent.pop("stream_options", None)
    assert asked == sent | {"model": NAME}


@EXAMPLES
@given(
    body=spoilt(NAMED) | objects(st.sampled_from(WRONG)) | GOOD | st.binary(max_size=40),
    route=st.sampled_from(Route),
    deployed=st.booleans(),
)
def test_wrong_bodies_are_refused_or_passed_on_whole(body: bytes, route: Route, deployed: bool) -> None:  # noqa: FBT001 - hypothesis names it
    """Never a failure of ours; and what another parser takes for JSON, the gateway does not change."""
    got = exchange(route, body, [[OK]], base="/d/legal/v1" if deployed else "/v1")
    if got.asked is None:
        assert got.answered.status in {400, 404}
        assert set(json.loads(got.answered.body)["error"]) == {"message", "type", "param", "code"}
        return
    try:
        sent = spelt(body)
    except ValueError:
        return  # only what the gateway did not read can be wrong; the engine says so
    asked = spelt(got.asked)
    for fields in (sent, asked):
        fields.pop("stream_options", None)
    assert asked == sent | {"model": NAME}


@pytest.mark.parametrize("field", ["messages", "stream_options", "model", "n", "max_tokens", "x", "stream"])
def test_no_depth_of_nesting_is_a_failure_of_ours(field: str) -> None:
    """Around the depth that can still be read, and far beyond: passed on, or refused."""
    limit = sys.getrecursionlimit()
    for depth in (*range(limit - 120, limit + 10), 10 * limit):
        for value in (nested(depth), b'{"a":' * depth + b"1" + b"}" * depth):
            body = b'{"model":"legal","stream":true,"%b":%b}' % (field.encode(), value)
            got = exchange(Route.CHAT, body, [[OK]])
            assert got.answered.status in {400, 404} or got.asked is not None, (depth, got.answered.body)
            assert got.answered.status != 500


@pytest.mark.parametrize("base", ["/v1", "/d/legal/v1"])
def test_names_of_models_have_a_bound(base: str) -> None:
    """A name is repeated in each event of a stream and remembered afterwards, so a long one would cost without end."""
    body = json.dumps({"model": "x" * 1000}).encode()
    got = exchange(Route.CHAT, body, [[OK]], base=base)
    assert got.answered.status == 400
    assert json.loads(got.answered.body)["error"]["param"] == "model"
    assert len(got.answered.body) < 500
    assert got.asked is None
