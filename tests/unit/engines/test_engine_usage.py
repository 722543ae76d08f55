"""How a stream is asked for its usage, and how the usage is read from replies."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.engines.usage import Usage, UsageFinder, asking, estimated_tokens, read_document

CHAT = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
NASTY = '"usage":{"prompt_tokens":999,"completion_tokens":999}'
SCHEMA = {"usage": {"type": "object", "properties": {"prompt_tokens": {"type": "integer"}}}}


def fields(options: str) -> dict[str, msgspec.Raw]:
    """A request's fields as the gateway has them, with these `stream_options` or, where they are empty, without."""
    text = f'{{"stream_options":{options}}}' if options else "{}"
    return msgspec.json.decode(text, type=dict[str, msgspec.Raw])


@pytest.mark.parametrize(
    "given_options, sent",
    [
        ("", {"include_usage": True}),
        ("null", {"include_usage": True}),
        ("{}", {"include_usage": True}),
        ('{"include_usage":false}', {"include_usage": True}),
        ('{"include_usage":null}', {"include_usage": True}),
        ('{"include_usage":0}', {"include_usage": True}),
        ('{"include_usage":"False"}', {"include_usage": True}),
        (
            '{"include_usage":false,"continuous_usage_stats":true}',
            {"include_usage": True, "continuous_usage_stats": False},
        ),
        ('{"include_obfuscation":false}', {"include_obfuscation": False, "include_usage": True}),
    ],
)
def test_a_stream_is_asked_for_its_usage(given_options: str, sent: dict[str, bool]) -> None:
    """Whatever a client says that does not want to know; its other options stay, and none of them shows more."""
    raw = asking(fields(given_options))
    assert raw is not None
    assert json.loads(bytes(raw)) == sent


@pytest.mark.parametrize(
    "given_options",
    [
        '{"include_usage":true}',
        '{"include_usage":1}',
        '{"include_usage":"yes","continuous_usage_stats":true}',
        '{"include_usage":"perhaps"}',
        '{"include_usage":7}',
        '{"include_usage":[]}',
        '{"continuous_usage_stats":"perhaps"}',
        '"all"',
        "[]",
        "7",
    ],
)
def test_options_stay_where_the_client_asks_or_is_wrong(given_options: str) -> None:
    """Who asks gets what the engine sends, and what is wrong is refused by the engine in its own words."""
    assert asking(fields(given_options)) is None


@pytest.mark.parametrize(
    "body, usage",
    [
        ({"usage": CHAT}, Usage(7, 5)),
        ({"usage": {**CHAT, "prompt_tokens_details": {"cached_tokens": 4}}}, Usage(7, 5, 4)),
        ({"usage": {**CHAT, "prompt_tokens_details": None}}, Usage(7, 5)),
        ({"usage": {"prompt_tokens": 7, "total_tokens": 7}}, Usage(7, 0)),
        (
            {"usage": {"input_tokens": 7, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 3}}},
            Usage(7, 5, 3),
        ),
        ({"usage": None}, None),
        ({"usage": {}}, None),
        ({"usage": []}, None),
        ({"usage": {**CHAT, "prompt_tokens": -1}}, None),
        ({"usage": {**CHAT, "completion_tokens": "many"}}, None),
        ({"choices": [{"message": {"content": NASTY, "usage": CHAT}}]}, None),
        ({}, None),
        ([{"usage": CHAT}], None),
        ("text", None),
    ],
)
def test_whole_replies_are_read(body: object, usage: Usage | None) -> None:
    """Of every route; what is no usage is none, and no reason to fail."""
    assert read_document(json.dumps(body).encode()) == usage


def test_what_is_not_json_is_not_read() -> None:
    """The caller learns that the reply is not what it says to be."""
    for body in (b"", b"{", b"<html>", b'{"usage":'):
        with pytest.raises(msgspec.DecodeError):
            read_document(body)


TEXT = st.lists(st.one_of(st.sampled_from([NASTY, '"usage":', '"', "\\", "\n", "é"]), st.text(max_size=5)), max_size=6)


@given(
    text=TEXT.map("".join),
    cuts=st.lists(st.integers(0, 20_000), max_size=8),
    compact=st.booleans(),
    before=st.integers(0, 6000),
    after=st.integers(0, 6000),
)
def test_any_split_of_a_large_document_gives_its_usage(
    *, text: str, cuts: list[int], compact: bool, before: int, after: int
) -> None:
    """Wherever it is cut, whatever the generated text and the tools' schemas say."""
    body: dict[str, Any] = {"tools": SCHEMA, "text": text + "x" * before, "usage": CHAT, "more": [text, "y" * after]}
    data = json.dumps(body, separators=(",", ":") if compact else None).encode()
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    finder = UsageFinder()
    for start, end in itertools.pairwise(borders):
        finder.feed(data[start:end])
    finder.flush()
    assert finder.usage == Usage(7, 5)


def test_estimates_are_never_nothing() -> None:
    """A prompt has at least one token."""
    assert [estimated_tokens(size) for size in (0, 1, 4, 5, 400)] == [0, 1, 1, 2, 100]
