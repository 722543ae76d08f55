"""Streams whose usage only the gateway has asked for look as if nobody had asked, however they are cut."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.engines.meters import HiddenUsage, Meter, Pattern, ResponseUsage, ShownUsage
from tuneplex.engines.usage import Telling, Usage
from tuneplex.http import EventFramer

DONE = b"data: [DONE]\n\n"
NASTY = [
    '"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}',
    'data: {"choices":[],"usage":{"prompt_tokens":9}}\n\n',
    ',"usage":null',
    '"finish_reason":"stop"',
    '"finish_reason":null',
    ',"system_fingerprint":"x"',
    "[DONE]",
    '"role":"assistant","content":""',
    "\\",
    '"',
    "é🦜",
]
TEXT = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=4)), max_size=3).map("".join)
CUTS = st.lists(st.integers(0, 9000), max_size=12)


class Engine:
    """Writes a stream as an engine does that was asked for the usage, and as one that was not.

    Args:
        style: `vllm`, `openai`, or `plain` for one without fingerprints.
        compact: Without spaces.
        crlf: With CR LF at the ends of lines.
    """

    def __init__(self, style: str, *, compact: bool = True, crlf: bool = False) -> None:
        self._style = style
        self._separators = (",", ":") if compact else (", ", ": ")
        self._end = b"\r\n\r\n" if crlf else b"\n\n"

    def stream(self, texts: list[list[str]], *, asked: bool, roles: bool = True) -> bytes:
        """The events of a stream with a list of texts for each choice, which take turns."""
        events = [self._chunk(index, {"role": "assistant", "content": ""}, None, asked) for index in range(len(texts))]
        events = events if roles else []
        for turn in range(max(map(len, texts))):
            for index, choice in enumerate(texts):
                if turn < len(choice):
                    finish = "stop" if turn == len(choice) - 1 else None
                    events.append(self._chunk(index, {"content": choice[turn]}, finish, asked))
        if asked:
            events.append(self._usage(sum(map(len, texts))))
        return b"".join(events) + b"data: [DONE]" + self._end

    def _chunk(self, index: int, delta: dict[str, str], finish: str | None, asked: bool) -> bytes:  # noqa: FBT001 - a helper
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk: dict[str, Any] = {"id": "chatcmpl-1", "model": "m", "choices": [choice]}
        if self._style == "openai":
            chunk = {"id": "chatcmpl-1", "system_fingerprint": "fp_1", "choices": [choice]}
            return self._event(chunk | ({"usage": None} if asked else {}) | {"obfuscation": "abc"})
        if self._style == "vllm" and finish and not asked:
            chunk["system_fingerprint"] = 'vllm-"0.32\\'
        return self._event(chunk)

    def _usage(self, completion: int) -> bytes:
        usage = {"prompt_tokens": 11, "completion_tokens": completion, "total_tokens": 11 + completion}
        chunk: dict[str, Any] = {"id": "chatcmpl-1", "model": "m", "choices": [], "usage": usage}
        if self._style == "vllm":
            chunk["system_fingerprint"] = 'vllm-"0.32\\'
        return self._event(chunk)

    def _event(self, value: dict[str, Any]) -> bytes:
        return b"data: " + json.dumps(value, separators=self._separators).encode() + self._end


def through(meter: Meter, data: bytes, cuts: list[int]) -> bytes:
    """What a client sees of a stream that comes in these pieces, handled as the gateway does."""
    framer, shown = EventFramer(), b""
    pattern: Pattern | None = None
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in itertools.pairwise(borders):
        piece = data[start:end]
        alone = piece.find(b"\n") == len(piece) - 2 and piece.endswith(b"\n\n") and not framer.held
        if pattern and alone and piece.startswith(pattern.begins) and piece.endswith(pattern.ends):
            shown += pattern.shown + meter.between(piece)
            continue
        shown += meter.one(piece) if alone else meter.many(framer.feed(piece))
        pattern = meter.pattern(piece)
    return shown + meter.rest()


def event_borders(data: bytes) -> list[int]:
    """Cuts after each event, as they usually come."""
    return [found.end() for found in re.finditer(rb"\n\r?\n", data)]


@given(
    texts=st.lists(st.lists(TEXT, min_size=1, max_size=4), min_size=1, max_size=3),
    style=st.sampled_from(["vllm", "openai", "plain"]),
    cuts=st.one_of(CUTS, st.none()),
    compact=st.booleans(),
    crlf=st.booleans(),
    roles=st.booleans(),
    known=st.booleans(),
)
def test_nobody_sees_that_the_usage_was_asked_for(
    *,
    texts: list[list[str]],
    style: str,
    cuts: list[int] | None,
    compact: bool,
    crlf: bool,
    roles: bool,
    known: bool,
) -> None:
    """Byte for byte, for every engine, number of choices, text and split; and the usage is what the engine says."""
    engine = Engine(style, compact=compact, crlf=crlf)
    asked = engine.stream(texts, asked=True, roles=roles)
    plain = engine.stream(texts, asked=False, roles=roles)
    telling = Telling()
    if known:
        through(HiddenUsage(telling), asked, [])
    meter = HiddenUsage(telling)
    assert through(meter, asked, event_borders(asked) if cuts is None else cuts) == plain
    assert meter.used() == Usage(11, sum(map(len, texts)))


@pytest.mark.parametrize("style", ["vllm", "openai", "plain"])
@pytest.mark.parametrize("choices", [1, 2])
def test_events_that_are_alike_are_told_apart_where_it_matters(style: str, choices: int) -> None:
    """Events of which something is to be hidden, and those that say who speaks, are looked at one by one."""
    engine, texts = Engine(style), [["a", "b", "c", "d"]] * choices
    asked = engine.stream(texts, asked=True)
    telling = Telling()
    for _ in range(2):
        assert through(HiddenUsage(telling), asked, event_borders(asked)) == engine.stream(texts, asked=False)
    borders = event_borders(asked)
    for meter in (HiddenUsage(telling), ShownUsage()):
        through(meter, asked[: borders[3 * choices]], borders)
        assert meter.used() == Usage(0, 2 * choices + 1, exact=False)


@given(texts=st.lists(st.lists(TEXT, min_size=1, max_size=4), min_size=1, max_size=3), cuts=CUTS)
def test_a_client_that_asks_sees_all(*, texts: list[list[str]], cuts: list[int]) -> None:
    """The stream is untouched, and the usage is read on the way."""
    asked = Engine("vllm").stream(texts, asked=True)
    meter = ShownUsage()
    assert through(meter, asked, cuts) == asked
    assert meter.used() == Usage(11, sum(map(len, texts)))


@pytest.mark.parametrize("meter", [HiddenUsage(Telling()), ShownUsage()])
def test_a_stream_that_breaks_is_counted_by_its_events(meter: Meter) -> None:
    """The events that say who speaks are no tokens; the count is marked as not exact."""
    stream = Engine("vllm").stream([["a", "b", "c"], ["d", "e"]], asked=True)
    events = stream.split(b"\n\n")
    for event in events[:5]:
        meter.one(event + b"\n\n")
    assert meter.used() == Usage(0, 3, exact=False)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("kind", [HiddenUsage, ShownUsage])
def test_comments_are_no_tokens(kind: type[HiddenUsage | ShownUsage], together: bool) -> None:  # noqa: FBT001 - a parameter
    """Engines and proxies send them to keep a connection open; a stream that breaks is not billed for them."""
    meter = HiddenUsage(Telling()) if kind is HiddenUsage else ShownUsage()
    opening, one, *_ = Engine("vllm").stream([["a", "b"]], asked=True).split(b"\n\n")
    events = [event + b"\n\n" for event in (opening, b": ping", b"event: ping", one, b": ping", b": ping")]
    if together:
        meter.many(b"".join(events))
    else:
        for event in events:
            meter.one(event)
    assert meter.used() == Usage(0, 1, exact=False)


def test_a_break_after_the_usage_changes_nothing() -> None:
    """The usage was told, so it is exact although the client never saw the end."""
    stream = Engine("vllm").stream([["a", "b"]], asked=True)
    for meter in (HiddenUsage(Telling()), ShownUsage()):
        through(meter, stream.removesuffix(DONE), [])
        assert meter.used() == Usage(11, 2)


@pytest.mark.parametrize("cuts", [[], None])
def test_an_engine_that_always_tells_is_not_touched(cuts: list[int] | None) -> None:
    """Where every event has a usage, the client would see that without us, so it still does."""
    events: list[dict[str, Any]] = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]},
        {"choices": [], "system_fingerprint": "fp"},
    ]
    stream = b"".join(
        b"data: %b\n\n"
        % json.dumps({**event, "usage": {"prompt_tokens": 3, "completion_tokens": max(0, number)}}).encode()
        for number, event in enumerate(events)
    )
    meter = HiddenUsage(Telling())
    assert through(meter, stream + DONE, event_borders(stream) if cuts is None else cuts) == stream + DONE
    assert meter.used() == Usage(3, 3)


@pytest.mark.parametrize("behind", [b"", b":\n", b"id: 1\n"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_usage_is_found_whatever_lines_follow(behind: bytes, end: bytes) -> None:
    """An event can have more lines than its data."""
    event = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n' + behind + b"\n"
    meter = ShownUsage()
    meter.one(event.replace(b"\n", end))
    assert meter.used() == Usage(3, 2)


def test_a_usage_with_the_last_choice_is_read() -> None:
    """Some engines have no event of its own for it."""
    stream = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,'
    stream += b'"completion_tokens":1}}\n\n'
    meter = HiddenUsage(Telling())
    assert through(meter, stream, []) == stream
    assert meter.used() == Usage(2, 1, exact=False)
    assert meter.many(DONE) == DONE
    assert meter.used() == Usage(2, 1)


def test_an_engine_without_usage_is_counted_by_its_events() -> None:
    """It was asked and does not know what that means: nothing is kept back for long, and nothing is lost."""
    stream = Engine("plain").stream([["a", "b"]], asked=False)
    telling = Telling()
    for _ in range(2):
        meter = HiddenUsage(telling)
        assert through(meter, stream, event_borders(stream)) == stream
        assert meter.used() == Usage(0, 2, exact=False)
    assert telling.fingerprint == b""


def test_what_waits_for_the_fingerprint_is_given_out_when_nothing_more_comes() -> None:
    """An engine that dies before it has told the usage for the first time takes no event with it."""
    stream = Engine("vllm").stream([["a", "b"]], asked=True)
    *events, _usage, _done, _ = stream.split(b"\n\n")
    meter = HiddenUsage(Telling())
    shown = [meter.one(event + b"\n\n") for event in events]
    assert shown[-1] == b""
    assert b"".join(shown) + meter.rest() == b"".join(event + b"\n\n" for event in events)
    assert meter.rest() == b""


def test_an_endless_choice_is_not_kept() -> None:
    """However many events follow one that ends a choice, the gateway does not fill its memory with them."""
    meter = HiddenUsage(Telling())
    ended = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    assert sum(len(meter.one(ended)) for _ in range(6000)) >= 4000 * len(ended)


@pytest.mark.parametrize("lines", [True, False])
def test_a_response_tells_its_usage_in_its_last_event(*, lines: bool) -> None:
    """Until then its pieces of text are counted; a tool whose schema has a `usage` does not matter."""

    def event(kind: str, **more: object) -> bytes:
        data = json.dumps({**more, "type": kind}, separators=(",", ":")).encode()
        return (b"event: %b\n" % kind.encode() if lines else b"") + b"data: " + data + b"\n\n"

    tools = [{"parameters": {"properties": {"usage": {"input_tokens": {"type": "integer"}}}}}]
    response = {"tools": tools, "usage": None}
    meter = ResponseUsage()
    stream = [event("response.created", response=response), event("response.in_progress", response=response)]
    stream += [event("response.output_text.delta", delta=text) for text in ('"usage":{"input_tokens":9}', "b")]
    for one in stream:
        assert (meter.many(one) if lines else meter.one(one)) == one
    assert meter.used() == Usage(0, 2, exact=False)
    told = {"input_tokens": 5, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 1}}
    meter.many(event("response.completed", response={**response, "usage": told, "metadata": {"usage": "x"}}))
    assert meter.used() == Usage(5, 4, 1)
