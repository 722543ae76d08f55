"""The salt that keeps tenants apart in an engine's prefix cache."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.engines import dialect_for
from tuneplex.errors import BadRequest

ACME, ZETA = "a" * 43, "z" * 43


def encoded(body: object, salt: str, kind: str = "vllm") -> Any:  # noqa: ANN401 - JSON
    """What an engine gets of a body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return json.loads(dialect_for(kind).encode(fields, name="ada@1", salt=salt))


def test_vllm_gets_the_salt() -> None:
    """The tenant's salt is one more field; without one nothing but the model differs."""
    body = {"model": "ada", "prompt": "x", "n": 1}
    assert encoded(body, ACME) == {**body, "model": "ada@1", "cache_salt": ACME}
    assert encoded(body, "") == {**body, "model": "ada@1"}
    assert encoded({**body, "cache_salt": None}, ACME)["cache_salt"] == ACME


def test_other_engines_get_none() -> None:
    """OpenAI's API has no such field; a client's own goes on as it came, as everything else does."""
    assert "cache_salt" not in encoded({"model": "ada"}, ACME, "openai")
    assert encoded({"model": "ada", "cache_salt": "mine"}, ACME, "openai")["cache_salt"] == "mine"


@given(own=st.text(min_size=1), other=st.text(min_size=1))
def test_a_clients_own_salt_separates_and_never_joins(own: str, other: str) -> None:
    """Whatever a client sends, it gets what neither another tenant gets nor the same one without a salt or another."""
    mine = encoded({"cache_salt": own}, ACME)["cache_salt"]
    assert mine == encoded({"cache_salt": own}, ACME)["cache_salt"]
    assert mine not in {own, ACME, ZETA}
    for salt in (own, other, mine, ACME, ZETA):
        assert encoded({"cache_salt": salt}, ZETA)["cache_salt"] not in {mine, ACME}
    assert (encoded({"cache_salt": other}, ACME)["cache_salt"] == mine) == (own == other)


@pytest.mark.parametrize("body", [b'{"cache_salt":"a","cache_salt":"b"}', b'{"cache\\u005fsalt":"b"}'])
def test_no_spelling_of_the_field_gets_past(body: bytes) -> None:
    """A field that comes twice or with escapes is one field, and the engine gets one salt below the tenant's."""
    assert encoded(body, ACME) == {"model": "ada@1", **encoded({"cache_salt": "b"}, ACME)}


@pytest.mark.parametrize("own", ['""', "5", "[]", "{}", "true"])
def test_a_salt_that_is_none_is_refused(own: str) -> None:
    """In vLLM's own words, because the engine does not see it any more."""
    with pytest.raises(BadRequest, match="must be a non-empty string if provided") as caught:
        encoded(f'{{"cache_salt":{own}}}'.encode(), ACME)
    assert caught.value.param == "cache_salt"
