"""Request bodies: the few fields that are read, and `model` exchanged in them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.engines.wire import with_fields
from tuneplex.errors import BadRequest
from tuneplex.gateway.body import read_body

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "x", "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    fields=st.dictionaries(st.text(max_size=5).filter(lambda key: key != "model"), JSON, max_size=4),
    asked=st.none() | st.text(min_size=1, max_size=10),
    at=st.integers(0, 4),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_only_model_changes(
    fields: dict[str, Any],
    asked: str | None,
    at: int,
    indent: int | None,
    ascii_only: bool,  # noqa: FBT001 - the same
) -> None:
    """Whatever else a body has, nested `model` keys too, reaches the engine as it was."""
    items = list(fields.items())
    if asked is not None:
        items.insert(at, ("model", asked))
    body = json.dumps(dict(items), indent=indent, ensure_ascii=ascii_only).encode()
    encoded = with_fields(read_body(body).fields, model="legal@0123")
    assert json.loads(encoded) == fields | {"model": "legal@0123"}


def test_other_fields_keep_their_spelling() -> None:
    """Numbers are not read and written anew: 1.50 stays 1.50."""
    body = b'{"temperature":1.50,"model": "legal","big":123456789012345678901234567890}'
    assert with_fields(read_body(body).fields, model="l@1") == (
        b'{"temperature":1.50,"model":"l@1","big":123456789012345678901234567890}'
    )


@pytest.mark.parametrize(
    "body", [b'{"model":"base","model":"legal"}', b'{"model":"base","mod\\u0065l":"legal"}', b'{"mod\\u0065l":"legal"}']
)
def test_a_repeated_model_cannot_slip_past(body: bytes) -> None:
    """The model that was checked is the only one that the engine can find."""
    read = read_body(body)
    assert read.model == "legal"
    pairs = json.loads(with_fields(read.fields, model="l@1"), object_pairs_hook=list)
    assert pairs == [("model", "l@1")]


@pytest.mark.parametrize(
    "body, param, words",
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"\xff", None, "not valid JSON"),
        (b"[]", None, "must be a JSON object"),
        (b'{"model":3}', "model", "Expected `str | null`, got `int`"),
        (b'{"stream":"yes"}', "stream", "Expected `bool | null`"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "nested too deeply"),
    ],
)
def test_a_wrong_body_is_refused_with_the_reason(body: bytes, param: str | None, words: str) -> None:
    """The error names the field, if it is one."""
    with pytest.raises(BadRequest, match=re.escape(words)) as caught:
        read_body(body)
    assert caught.value.param == param
