"""Events that begin and end like one before are passed on unread; that changes nothing of what the client gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine_fuzz import NAME, Exchanged, exchange
from tuneplex.types import Route

DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
NASTY = ['"model":"' + NAME + '"', '"finish_reason":null}]}', '"choices":[', "[DONE]", "\n\n", "\\", '"', "é🦜"]
TEXT = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=4)), max_size=3).map("".join)
COMPACT = ("vllm", "last", "both", "timed")  # as one JSON writer would write them
LAYOUTS = (*COMPACT, "spaced", "crlf")


def event(text: str, layout: str = "vllm", *, name: str = NAME, number: int = 0, finish: str | None = None) -> bytes:
    """One event, as an engine of this kind writes it, or as the client is to get it."""
    choice = {"index": number % 2, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    value: dict[str, Any] = {"id": "chatcmpl-1", "created": number if layout == "timed" else 7}
    value |= {} if layout == "last" else {"model": name}
    value |= {"choices": [choice]} | ({"model": name} if layout in {"last", "both"} else {})
    if layout == "both":  # not an engine's, but it must not be passed on with the engine's name
        written = json.dumps(value, separators=(",", ":"))[:-1] + f',"model":"{name}"' + "}"
    else:
        written = json.dumps(value, separators=(", ", ": ") if layout == "spaced" else (",", ":"))
    return b"data: " + written.encode() + (b"\r\n\r\n" if layout == "crlf" else b"\n\n")


def served(events: list[bytes], fields: dict[str, object] | None = None) -> Exchanged:
    """What comes of a stream of which each event comes by itself."""
    pieces = [b"%x\r\n%b\r\n" % (len(one), one) for one in events]
    return exchange(Route.CHAT, {"stream": True, **(fields or {})}, [[HEAD + pieces[0], *pieces[1:], b"0\r\n\r\n"]])


@settings(max_examples=300, derandomize=True)
@given(
    said=st.lists(st.tuples(TEXT, st.sampled_from([None, None, None, "stop"])), min_size=1, max_size=9),
    layouts=st.one_of(
        st.sampled_from(LAYOUTS).map(lambda one: [one]), st.lists(st.sampled_from(COMPACT), min_size=1, max_size=9)
    ),
    together=st.booleans(),
)
def test_nothing_changes_but_the_name(
    *, said: list[tuple[str, str | None]], layouts: list[str], together: bool
) -> None:
    """Byte for byte, whatever the engine's events look like, and if it looks like another one's in between."""

    def written(name: str) -> list[bytes]:
        kinds = [layouts[number % len(layouts)] for number in range(len(said))]
        return [
            event(text, kind, name=name, number=number, finish=finish)
            for number, ((text, finish), kind) in enumerate(zip(said, kinds, strict=True))
        ]

    told = [*written(NAME), DONE]
    wanted = b"".join([*written("legal"), DONE])
    got = served([told[0] + told[1], *told[2:]] if together else told, {"stream_options": {"include_usage": True}})
    assert got.answered.body == wanted
    assert got.outcomes == {"complete": 1}


@pytest.mark.parametrize("more", [b'data: {"error":{"message":"boom","code":500}}\n\n', b"data: {]}\n\n", b""])
def test_a_failure_among_events_that_are_alike_is_seen(more: bytes) -> None:
    """An error, nonsense or an end before the last event is none of the usual events."""
    events = [event(str(number), number=2 * number) for number in range(5)]
    got = served([*events, *filter(None, [more])])
    assert got.answered.body.startswith(b"".join(event(str(n), name="legal", number=2 * n) for n in range(5)))
    assert got.outcomes != {"complete": 1}
    assert b"[DONE]" not in got.answered.body


def test_what_was_learned_is_forgotten_with_the_next_other_event() -> None:
    """Rubbish that ends as events did, behind something else, does not get their beginning."""
    events = [event(str(number), number=2 * number) for number in range(3)]
    rubbish = b"\0garbage" + events[0][6:]
    got = served([*events, b": ping\n\n", rubbish, DONE])
    shown = b"".join(event(str(n), name="legal", number=2 * n) for n in range(3)) + b": ping\n\n"
    assert got.answered.body.startswith(shown)
    assert b"data: {" not in got.answered.body[len(shown) : len(shown) + 6]
    assert NAME.encode() not in got.answered.body


def test_two_events_in_one_piece_are_not_taken_for_one() -> None:
    """They begin and end like one event."""
    events = [event(str(number), number=2 * number) for number in range(6)]
    got = served([*events[:3], b"".join(events[3:]), DONE])
    assert got.answered.body == b"".join(event(str(n), name="legal", number=2 * n) for n in range(6)) + DONE


def of(choices: list[dict[str, Any]], **fields: object) -> bytes:
    """One event with these choices."""
    written = json.dumps({"id": "1", "model": NAME, "choices": choices, **fields}, separators=(",", ":"))
    return b"data: " + written.encode() + b"\n\n"


ROLE = of([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
STOP = of([{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}])
USAGE = of([], usage={"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5})
TOKENS = [event(str(number)) for number in range(4)]


@pytest.mark.parametrize(
    "events, gaps",
    [
        ([ROLE, *TOKENS, STOP, USAGE, DONE], 3),
        ([ROLE + TOKENS[0], *TOKENS[1:], STOP + USAGE + DONE], 3),
        ([ROLE, TOKENS[0] + TOKENS[1], TOKENS[2] + TOKENS[3], STOP, DONE], 1),
        ([ROLE, b": ping\n\n", *TOKENS, event("!", finish="length"), DONE], 4),
        ([ROLE, TOKENS[0], STOP, USAGE, DONE], 0),
        ([ROLE, STOP, DONE], 0),
    ],
)
def test_gaps_are_between_pieces_that_bring_tokens(events: list[bytes], gaps: int) -> None:
    """Who speaks, why it ended, what was used, and comments bring none; tokens that come together are one piece."""
    got = served(events, {"stream_options": {"include_usage": True}})
    assert got.outcomes == {"complete": 1}
    assert got.gaps == gaps


def test_gaps_of_responses_are_between_their_deltas() -> None:
    """What else such a stream tells brings no token."""
    said = [("created", ""), *[("output_text.delta", str(n)) for n in range(3)], ("output_text.done", "012")]
    events = [
        b"event: response.%b\ndata: %b\n\n"
        % (kind.encode(), json.dumps({"type": f"response.{kind}", "x": text}).encode())
        for kind, text in said
    ]
    end = (
        b'event: response.completed\ndata: {"type":"response.completed","response":{"model":"'
        + NAME.encode()
        + b'"}}\n\n'
    )
    pieces = [b"%x\r\n%b\r\n" % (len(one), one) for one in (*events, end)]
    got = exchange(Route.RESPONSES, {"stream": True, "input": "hi"}, [[HEAD + pieces[0], *pieces[1:], b"0\r\n\r\n"]])
    assert got.outcomes == {"complete": 1}
    assert got.gaps == 2
