"""The fake's tokenizer and language keep their promises for any text."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneplex.testing import FakeEngine, Tokenizer
from tuneplex.testing.generation import Reply, steps
from tuneplex.testing.instances import instance
from tuneplex.testing.protocol import Ask
from tuneplex.testing.tokens import Detokenizer

# A busy machine is no failure.
UNTIMED = settings(deadline=None)
TOKENIZER = Tokenizer()
LIBRARY = tokenizers.Tokenizer.from_str(TOKENIZER.as_json())
ENGINE = FakeEngine(adapters=["ada"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
IDS = st.lists(st.integers(0, TOKENIZER.size - 1), max_size=60)


@UNTIMED
@given(TEXTS)
def test_nothing_is_lost(text: str) -> None:
    """Text comes back from its ids as it was."""
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special=False) == text


@UNTIMED
@given(TEXTS)
def test_bytes_are_counted_in_full(text: str) -> None:
    """The bytes of the tokens are the bytes of the text, so a count of tokens is a true count."""
    ids = TOKENIZER.encode(text)
    assert b"".join(TOKENIZER.bytes_of(i) or Tokenizer.specials[i].encode() for i in ids) == text.encode()


@UNTIMED
@given(TEXTS, st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_a_stream_of_tokens_is_the_text_up_to_a_stop(text: str, stops: list[str]) -> None:
    """What is shown token by token adds up to the text before the stop string that was complete first."""
    detokenizer = Detokenizer(TOKENIZER, stops)
    shown, stopped = "", None
    for token_id in TOKENIZER.encode(text.replace("<|", "")):
        stopped = detokenizer.add(token_id)
        shown += detokenizer.take(finished=stopped is not None)
        if stopped is not None:
            break
    shown += detokenizer.take(finished=True)
    assert not any(stop in shown for stop in stops)
    assert text.replace("<|", "").startswith(shown + (stopped or ""))
    assert stopped is not None or shown == text.replace("<|", "")


@UNTIMED
@given(TEXTS)
def test_its_json_is_the_same_tokenizer(text: str) -> None:
    """The library of the bases' tokenizers makes the same ids of a text with it, and the text of the ids."""
    ids = TOKENIZER.encode(text)
    assert LIBRARY.encode(text, add_special_tokens=False).ids == ids
    assert LIBRARY.decode(ids, skip_special_tokens=False) == text


def test_a_token_that_ends_a_reply_has_no_text() -> None:
    """A stop token is told but not shown, unless it was asked for; before `min_tokens` neither it nor a string ends."""

    def said(**more: Any) -> tuple[str, list[int]]:  # noqa: ANN401 - fields of `Ask`
        reply = Reply(token_ids=[])
        for step in steps(TOKENIZER, Ask(model="base", prompts=[[5]], room=9, ignore_eos=True, **more), 0, ""):
            reply.add(step)
        return reply.text, reply.token_ids

    whole, ids = said()
    start = TOKENIZER.decode(ids[:4])
    stop = ids[4]
    assert stop not in ids[:4]
    assert said(stop_token_ids=[stop]) == (start, ids[:5])
    assert said(stop_token_ids=[stop], include_stop=True) == (TOKENIZER.decode(ids[:5]), ids[:5])
    assert said(stop_token_ids=[stop], min_tokens=9) == (whole, ids)
    string = TOKENIZER.decode([stop])
    assert said(stop=[string])[1] == ids[:5]
    assert said(stop=[string], min_tokens=9) == (whole, ids)


@UNTIMED
@given(IDS, st.integers(0, 30))
def test_any_reply_continues(prompt: list[int], cut: int) -> None:
    """For any prompt and any cut, prompt and said ids together bring the rest of the reply."""
    whole = ENGINE.reply(prompt, model="ada", room=31, ignore_eos=True).token_ids
    rest = ENGINE.reply(prompt + whole[:cut], model="ada", room=31 - cut, ignore_eos=True).token_ids
    assert rest == whole[cut:]


@UNTIMED
@given(IDS)
def test_a_reply_ends_on_whole_characters(prompt: list[int]) -> None:
    """A reply that ends by itself has no broken character in it."""
    reply = ENGINE.reply([*prompt, Tokenizer.eos], room=2000)
    assert reply.finish_reason == "stop"
    assert "\ufffd" not in reply.text


@pytest.mark.parametrize(
    "schema, value",
    [
        ({"type": "integer", "minimum": 2.5}, 3),
        ({"type": "number", "exclusiveMaximum": 0}, -0.5),
        ({"type": "integer", "multipleOf": 5}, 10),
        ({"type": ["null", "string"]}, None),
        ({"type": "string", "minLength": 7}, "helloxx"),
        ({"type": "array", "maxItems": 0}, []),
        ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}]}, [1, 2]),
        ({"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]}, {"a": 1, "b": 2}),
        ({"oneOf": [{"type": "boolean"}]}, True),
        ({"$defs": {"x": {"enum": ["y"]}}, "$ref": "#/$defs/x"}, "y"),
        ({}, "hello"),
    ],
)
def test_instances(schema: dict[str, Any], value: Any) -> None:  # noqa: ANN401 - any JSON
    """Each keyword that is understood is satisfied."""
    assert instance(schema, "hello") == value
    json.dumps(value)
