"""Whatever an engine sends, in whatever pieces: the client gets a whole reply, an error or a cut, and knows which."""

from __future__ import annotations

import json
import re
from http import HTTPStatus

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine_fuzz import NAME, Answered, Exchanged, exchange
from tests.support.wire_fuzz import cuts, spoilt
from tuneplex.types import Route

EXAMPLES = settings(max_examples=400, derandomize=True)
PLACES = st.lists(st.integers(0, 2**16), max_size=8)
STREAM = b"text/event-stream"
DONE = b"data: [DONE]\n\n"
ENDINGS = ["eof", "reset", "silence"]
SHAPE = {"message", "type", "param", "code"}


def token(text: str, space: str = " ") -> bytes:
    """An event that says so."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    value = {"id": "chatcmpl-1", "model": NAME, "choices": [choice]}
    return b"data:" + space.encode() + json.dumps(value).encode() + b"\n\n"


ERRORS = [
    b'data: {"error":{"message":"boom","type":"x","param":null,"code":500}}\n\n',
    b'data: {"error": {"message": "too long", "code": 400}}\n\n',
    b'data:{"error":{"message":"no space","code":"400"}}\n\n',
    b'data: { "error":{"message":"a space more","code":499}}\n\n',
    b'event: error\ndata: {"error":"text"}\n\n',
    b'data: {"object":"error","message":"flat","code":400}\n\n',
    b'data: {"error":{"message":"\xff","code":' + b"9" * 5000 + b"}}\n\n",
    b'data: {"error":{"message":"huge","code":"' + b"9" * 5000 + b'"}}\n\n',
]
ASIDES = [
    b": a comment\n\n",
    b": [DONE]\n\n",
    b"id: 7\n\n",
    b"event: ping\n\n",
    b'data: "what [DONE]"\n\n',
    b'data: {"error":null,"choices":[]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":' + b"9" * 30 + b',"completion_tokens":-1}}\n\n',
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}\n\n',
    b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: "\xc3\xbf"\n\n',
    b"\n\n",
]


class Told(msgspec.Struct):
    """A stream as the engine means it."""

    body: bytes
    texts: list[str]
    end: str


@st.composite
def streams(draw: st.DrawFn) -> Told:
    """A stream of tokens with odd things between them, and one of the ends that it can have."""
    count = draw(st.integers(0, 6))
    texts = [f"t{number} " + "long" * draw(st.sampled_from([0, 0, 0, 5000])) for number in range(count)]
    events = []
    for text in texts:
        events += draw(st.lists(st.sampled_from(ASIDES), max_size=1))
        events.append(token(text, draw(st.sampled_from([" ", " ", ""]))))
    end = draw(st.sampled_from(["done", "done", "surplus", "error", "none"]))
    if end == "error":
        events += [draw(st.sampled_from(ERRORS)), *draw(st.sampled_from([[], [DONE], [token("late"), DONE]]))]
    elif end != "none":
        events.append(DONE)
    if end == "surplus":
        events += draw(st.lists(st.sampled_from([DONE, token("late"), ERRORS[0], *ASIDES]), min_size=1, max_size=3))
    body = b"".join(events)
    if draw(st.booleans()):
        body = body.replace(b"\n", b"\r\n")
    return Told(body, texts, "done" if end == "surplus" else end)


def head(content_type: bytes, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    """The head of a reply."""
    return (
        b"".join(b"%b\r\n" % line for line in (b"HTTP/1.1 " + status, b"Content-Type: " + content_type, *lines))
        + b"\r\n"
    )


@st.composite
def framed(draw: st.DrawFn, body: bytes, content_type: bytes) -> tuple[bytes, bool]:
    """A whole reply with that body, and whether its framing is right."""
    before = draw(
        st.sampled_from([b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n"])
    )
    kind = draw(st.sampled_from(["length", "chunked", "chunked", "extended", "eof", "short", "long", "twice"]))
    if kind in {"length", "short", "long", "twice"}:
        length = max(0, len(body) + {"short": -3, "long": 3}.get(kind, 0))
        data = head(content_type, b"Content-Length: %d" % length) + body
        return before + data + (head(content_type, b"content-length: 1") + b"x" if kind == "twice" else b""), kind in {
            "length",
            "twice",
        }
    if kind == "eof":
        return before + head(content_type) + body, True
    extension, trailer = (b";a=b", b"t: v\r\n") if kind == "extended" else (b"", b"")
    chunks = [b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in cuts(body, draw(PLACES))]
    return before + head(content_type, b"Transfer-Encoding: chunked") + b"".join(
        chunks
    ) + b"0\r\n" + trailer + b"\r\n", True


def said(answered: Answered) -> list[str]:
    """What the client reads of the tokens."""
    values = [json.loads(event) for event in answered.events if event.startswith(b'{"id": "chatcmpl-1"')]
    assert all(value["model"] == "legal" for value in values)
    return [value["choices"][0]["delta"]["content"] for value in values]


def check_error(body: bytes) -> None:
    """It has OpenAI's shape."""
    assert set(json.loads(body)["error"]) == SHAPE


def check_end(got: Exchanged) -> bool:
    """The end is one of three, and nobody can take one for another; whether it is a complete stream."""
    answered = got.answered
    complete = got.outcomes == {"complete": 1}
    if answered.status != HTTPStatus.OK:
        check_error(answered.body)
        assert not complete
        return False
    assert answered.complete, "a stream always ends as HTTP wants"
    assert answered.events.count(b"[DONE]") == complete
    if complete:
        assert answered.events[-1] == b"[DONE]"
        assert answered.body.rstrip(b"\r\n").endswith(b"[DONE]")
    else:
        check_error(answered.events[-1])
    return complete


@EXAMPLES
@given(data=st.data(), told=streams(), at=PLACES, end=st.sampled_from(ENDINGS))
def test_a_stream_is_complete_failed_or_broken(data: st.DataObject, told: Told, at: list[int], end: str) -> None:
    """Cut, framed and ended anyhow: the client has all that came before the end, and knows which end it is."""
    reply, right = data.draw(framed(told.body, STREAM))
    whole = data.draw(st.booleans())
    if not whole:
        reply = reply[: data.draw(st.integers(0, len(reply)))]
    engine, http = data.draw(st.sampled_from(["vllm", "openai"])), data.draw(st.sampled_from(["1.1", "1.0"]))
    asked = data.draw(st.sampled_from([{}, {"stream_options": {"include_usage": True}}]))
    got = exchange(Route.CHAT, {"stream": True, **asked}, [cuts(reply, at)], engine=engine, end=end, http=http)
    complete = check_end(got)
    texts = said(got.answered) if got.answered.status == HTTPStatus.OK else []
    assert texts == told.texts[: len(texts)]
    if complete:
        assert told.end == "done"
        assert texts == told.texts
    elif whole and right:
        assert told.end != "done"
        assert got.answered.status != HTTPStatus.OK or texts == told.texts


@EXAMPLES
@given(data=st.data(), told=streams(), at=PLACES, end=st.sampled_from(ENDINGS))
def test_a_spoilt_stream_ends_well_all_the_same(data: st.DataObject, told: Told, at: list[int], end: str) -> None:
    """Bytes changed, lost or put in, in the head, the framing or the events: still one of the three ends."""
    reply, _ = data.draw(framed(told.body, STREAM))
    reply = data.draw(spoilt(st.just(reply)))
    route = data.draw(st.sampled_from([Route.CHAT, Route.COMPLETIONS]))
    got = exchange(route, {"stream": True}, [cuts(reply, at)], end=end)
    if got.answered.status != HTTPStatus.OK:
        check_error(got.answered.body)
    elif got.outcomes != {"complete": 1}:
        assert not re.search(rb"^data: ?\[DONE\]\s*$", got.answered.body.rstrip(b"\r\n").rpartition(b"\n")[2])
        check_error(got.answered.events[-1])


TYPED = [
    b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{}}\n\n',
    b'event: response.text.delta\ndata: {"type":"response.text.delta","sequence_number":1,"delta":"x"}\n\n',
    b'event: response.x\ndata: {"type":"response.x","sequence_number":' + b"9" * 5000 + b"}\n\n",
    b'event: response.x\ndata: {"type":"response.x","sequence_number":' + b"9" * 25 + b"}\n\n",
    b": ping\n\n",
]
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","sequence_number":9,'
    b'"response":{"usage":{"input_tokens":1,"output_tokens":2}}}\n\n'
)


@EXAMPLES
@given(
    data=st.data(),
    before=st.lists(st.sampled_from(TYPED), max_size=5),
    after=st.none() | st.lists(st.sampled_from([DONE, *TYPED]), max_size=2),
    at=PLACES,
    end=st.sampled_from(ENDINGS),
)
def test_a_response_that_was_completed_does_not_fail_any_more(
    data: st.DataObject, before: list[bytes], after: list[bytes] | None, at: list[int], end: str
) -> None:
    """The event that closes a response is its end, whatever follows; without it the last event is an error."""
    body = b"".join(before) + (b"" if after is None else COMPLETED + b"".join(after))
    reply, _ = data.draw(framed(body, STREAM))
    got = exchange(Route.RESPONSES, {"stream": True}, [cuts(reply, at)], end=end)
    if got.answered.status != HTTPStatus.OK:
        check_error(got.answered.body)
        assert COMPLETED not in body[:-3]
        return
    completed = COMPLETED in got.answered.body
    assert got.outcomes == {"complete": 1} if completed else got.outcomes != {"complete": 1}
    assert (b'"type":"error"' in got.answered.body) is not completed


PART = st.sampled_from(
    ["error", "message", "code", "detail", "loc", "msg", "type", "param", "object", NAME, "\0", "400"]
)
SCALARS = st.none() | st.booleans() | st.integers(-5, 10**25) | st.floats(allow_nan=False) | PART
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PART, inner, max_size=3))


@EXAMPLES
@given(
    status=st.sampled_from([*range(201, 210), *range(300, 310), *range(400, 600), 600, 999]),
    body=st.builds(lambda value: json.dumps(value).encode(), JSON) | st.binary(max_size=20),
    retry=st.sampled_from([b"", b"0", b"3", b"-1", b"x", b"9" * 30, b"9" * 5000, b"Wed, 21 Oct 2026 07:28:00 GMT"]),
    at=PLACES,
    end=st.sampled_from(ENDINGS),
    stream=st.booleans(),
)
def test_an_engines_error_is_one_of_ours(  # noqa: PLR0917 - hypothesis names them
    status: int,
    body: bytes,
    retry: bytes,
    at: list[int],
    end: str,
    stream: bool,  # noqa: FBT001 - hypothesis names it
) -> None:
    """Any status with any body becomes an error with a status that HTTP knows, in OpenAI's shape, without our names."""
    data = head(
        b"application/json", b"retry-after: " + retry, b"content-length: %d" % len(body), status=b"%d X" % status
    )
    got = exchange(Route.CHAT, {"stream": stream}, [cuts(data + body, at)], end=end)
    assert got.answered.status in {known.value for known in HTTPStatus if known.value >= 400}
    check_error(got.answered.body)
    assert NAME.encode() not in got.answered.body
    refusals = [{"refused": 1}] if got.answered.status < HTTPStatus.INTERNAL_SERVER_ERROR else []
    assert got.outcomes in ({"engine_error": 1}, {"broken": 1}, *refusals)


@EXAMPLES
@given(data=st.data(), value=JSON, at=PLACES, end=st.sampled_from(ENDINGS), large=st.booleans())
def test_a_document_is_whole_or_an_error_or_a_cut(
    data: st.DataObject,
    value: object,
    at: list[int],
    end: str,
    large: bool,  # noqa: FBT001 - hypothesis names it
) -> None:
    """Half a document is never a complete reply; a whole one has the client's name for the model in it."""
    document = {"model": NAME, "value": value, "text": "x" * (2**20 if large else 0), "usage": value}
    body = json.dumps(document).encode()
    reply, right = data.draw(framed(body, b"application/json"))
    whole = data.draw(st.booleans())
    if not whole:
        reply = reply[: data.draw(st.integers(0, len(reply)))]
    got = exchange(Route.CHAT, {}, [cuts(reply, at)], end=end)
    if got.answered.status != HTTPStatus.OK:
        check_error(got.answered.body)
    elif got.answered.complete:
        assert json.loads(got.answered.body) == document | {"model": "legal"}
    else:
        assert large
    assert (got.outcomes == {"complete": 1}) == (got.answered.status == HTTPStatus.OK and got.answered.complete)
    if whole and right and not large and end == "eof":
        assert got.answered.complete


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_a_refused_option_costs_one_more_try_and_leaves_nothing(engine: str) -> None:
    """The first reply need not be over when the request is sent again; its connection is given up."""
    refusal = b'{"error":{"message":"unknown field stream_options"}}'.ljust(70_000)
    first = head(b"application/json", b"content-length: 100000", status=b"400 Bad Request") + refusal
    second = head(STREAM, b"content-length: %d" % len(DONE)) + DONE
    got = exchange(Route.CHAT, {"stream": True}, [[first], [second]], engine=engine)
    assert (got.tries, got.answered.status) == ((2, 200) if engine == "openai" else (1, 400))


@pytest.mark.parametrize("usage", [{"prompt_tokens": 10**25, "completion_tokens": 1}, {"prompt_tokens": 2**63}])
def test_usage_that_nobody_can_have_is_not_counted(usage: dict[str, int]) -> None:
    """An engine that makes up numbers must not make the gateway's reports unwritable."""
    body = json.dumps({"model": NAME, "usage": usage}).encode()
    got = exchange(Route.CHAT, {}, [[head(b"application/json", b"content-length: %d" % len(body)) + body]])
    assert got.answered.status == HTTPStatus.OK


@pytest.mark.parametrize(
    "content_type, coding, status",
    [
        (b"Application/JSON; charset=utf-8", b"identity", 200),
        (b"application/json", b"gzip", 502),
        (b"text/html", b"identity", 502),
    ],
)
def test_media_types_have_no_case(content_type: bytes, coding: bytes, status: int) -> None:
    """And a coding that changes nothing is none."""
    got = exchange(
        Route.CHAT,
        {},
        [[head(content_type, b"content-encoding: " + coding, b"content-length: 2") + b"{}"]],
        end="silence",
    )
    assert got.answered.status == status
    assert got.kept == (status == HTTPStatus.OK)


def test_an_endless_error_is_told_at_once() -> None:
    """More than holds a message is not waited for."""
    reply = head(b"text/html", b"transfer-encoding: chunked", status=b"500 X") + b"10000\r\n" + b"x" * 2**16
    got = exchange(Route.CHAT, {}, [[reply]], end="silence")
    assert (got.answered.status, got.outcomes) == (500, {"engine_error": 1})


def test_a_second_reply_is_not_mixed_with_the_first() -> None:
    """Two replies in one read, of which nobody asked for the second: the first one counts, the connection ends."""
    first = head(b"application/json", b"content-length: 7") + b'{"a":1}'
    second = head(b"application/json", b"content-length: 1", status=b"500 X") + b"x"
    got = exchange(Route.CHAT, {}, [[first + second]], end="silence")
    assert (got.answered.status, got.answered.body, got.kept) == (200, b'{"a":1}', 0)


@pytest.mark.parametrize("body", [b'{"x":"\xff"}', b'{"\xff":1,"usage":{}}', b'{"usage":"\xff"}'])
def test_a_document_is_unicode(body: bytes) -> None:
    """What no JSON parser would take is not passed on."""
    got = exchange(Route.CHAT, {}, [[head(b"application/json", b"content-length: %d" % len(body)) + body]])
    assert got.answered.status == HTTPStatus.BAD_GATEWAY


def test_a_large_document_needs_a_length() -> None:
    """Without one it ends where the connection does, so a part of it would look like all of it."""
    got = exchange(Route.CHAT, {}, [[head(b"application/json") + b'{"a":"' + b"x" * 2**21]])
    assert (got.answered.status, got.outcomes) == (502, {"broken": 1})


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_what_came_before_an_error_is_passed_on(line_end: bytes) -> None:
    """All in one read, with either kind of line ends."""
    body = (token("a") + token("b") + ERRORS[0] + DONE).replace(b"\n", line_end)
    got = exchange(Route.CHAT, {"stream": True}, [[head(STREAM, b"content-length: %d" % len(body)) + body]])
    assert said(got.answered) == ["a", "b"]
    check_error(got.answered.events[-1])


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("end", ENDINGS)
def test_nothing_follows_done(end: str, together: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Neither what an engine still says nor how it ends makes a complete stream anything else."""
    start = head(STREAM, b"transfer-encoding: chunked")
    pieces = [b"%x\r\n%b\r\n" % (len(event), event) for event in (token("a"), DONE, token("late"), ERRORS[0])]
    got = exchange(
        Route.CHAT, {"stream": True}, [[b"".join([start, *pieces])] if together else [start, *pieces]], end=end
    )
    assert got.answered.body == token("a").replace(NAME.encode(), b"legal") + DONE
    assert got.outcomes == {"complete": 1}


def test_embeddings_have_no_streams() -> None:
    """`stream` is one more field that goes to the engine there, whose reply is a document all the same."""
    reply = head(b"application/json", b"content-length: 2") + b"{}"
    got = exchange(Route.EMBEDDINGS, {"stream": True, "input": "x"}, [[reply]])
    assert (got.answered.status, got.answered.body) == (200, b"{}")
    assert got.asked is not None
    assert json.loads(got.asked)["stream"] is True


@pytest.mark.parametrize("nonsense", [b"data: what [DONE]\n\n", b"data: {nonsense\n\n", b'data: {"id":"x",\n\n'])
@pytest.mark.parametrize("crlf", [False, True])
@pytest.mark.parametrize("at", [[], [1, 2, 3, 5, 8]])
def test_an_event_that_is_no_json_ends_the_stream(nonsense: bytes, at: list[int], *, crlf: bool) -> None:
    """What came before it goes to the client, then an error, and neither it nor what follows."""
    body = token("a") + nonsense + token("b") + DONE
    reply = head(STREAM) + (body.replace(b"\n", b"\r\n") if crlf else body)
    got = exchange(Route.CHAT, {"stream": True}, [cuts(reply, at)])
    assert not check_end(got)
    assert said(got.answered) == ["a"]
    assert b"nonsense" not in got.answered.body


def test_a_cut_event_that_begins_as_usual_ends_the_stream() -> None:
    """Also when it comes alone, after events that need not be looked at closely."""
    spoilt = token("b")
    cut = spoilt[: spoilt.index(b'"b"')] + b"\n\n"
    parts = [head(STREAM) + token("a"), token("c"), cut, token("d"), DONE]
    got = exchange(Route.CHAT, {"stream": True}, [parts])
    assert not check_end(got)
    assert cut.rstrip() not in got.answered.body
