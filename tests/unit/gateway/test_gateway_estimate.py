"""How many tokens a request may need."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.estimates import estimate
from tuneplex.gateway.estimate import UNSAID_COMPLETION, Estimate, longest_answer
from tuneplex.types import Route


def estimated(route: Route, **fields: Any) -> Estimate:  # noqa: ANN401 - whatever a client sends
    """The estimate of a request with these fields."""
    return estimate(route, {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()})


def message(content: object) -> dict[str, object]:
    """A message of a chat."""
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    "route, fields, prompt",
    [
        (Route.CHAT, {"messages": [message("12345678"), message("123")]}, 2 + 1 + 8),
        (Route.CHAT, {"messages": [message("äöü€")]}, 3 + 4),
        (Route.CHAT, {"messages": [message([{"type": "text", "text": "1234"}, {"type": "image_url"}])]}, 1 + 4),
        (Route.CHAT, {"messages": [message(None)]}, 4),
        (Route.COMPLETIONS, {"prompt": "12345"}, 2),
        (Route.COMPLETIONS, {"prompt": [1, 2, 3]}, 3),
        (Route.COMPLETIONS, {"prompt": [[1, 2], [3]]}, 3),
        (Route.RESPONSES, {"input": "1234", "instructions": "12345678"}, 3),
        (Route.RESPONSES, {"input": [message([{"type": "input_text", "text": "1234"}])]}, 5),
        (Route.EMBEDDINGS, {"input": ["1234", "1234"]}, 2),
        (Route.CHAT, {}, 0),
        (Route.CHAT, {"tools": ["12345678"], "documents": [{}]}, 4),
        (Route.CHAT, {"messages": [message("1234") | {"reasoning": "1234"}]}, 2 + 4),
    ],
)
def test_prompts_are_estimated_by_their_text(route: Route, fields: dict[str, Any], prompt: int) -> None:
    """Four bytes of text are a token, a message has four more, and tokens that a client sends are counted."""
    assert estimated(route, **fields).prompt == prompt


@pytest.mark.parametrize(
    "route, fields, completion",
    [
        (Route.CHAT, {"max_tokens": 7}, 7),
        (Route.CHAT, {"max_tokens": 7, "max_completion_tokens": 5, "n": 3}, 15),
        (Route.RESPONSES, {"max_output_tokens": 9}, 9),
        (Route.COMPLETIONS, {"max_tokens": 2, "prompt": ["a", "b", "c"], "n": 2}, 12),
        (Route.COMPLETIONS, {"max_tokens": 2, "prompt": [1, 2]}, 2),
        (Route.CHAT, {}, UNSAID_COMPLETION),
        (Route.CHAT, {"max_tokens": None}, UNSAID_COMPLETION),
        (Route.CHAT, {"max_tokens": "many", "n": -3}, UNSAID_COMPLETION),
        (Route.CHAT, {"max_tokens": -5}, 0),
        (Route.CHAT, {"max_tokens": "4096", "n": "3"}, 12288),
        (Route.CHAT, {"max_tokens": 4096.0, "n": 2.0}, 8192),
        (Route.CHAT, {"max_tokens": "5.0", "n": True}, 5),
        (Route.CHAT, {"max_tokens": "-inf"}, UNSAID_COMPLETION),
        (Route.CHAT, {"max_output_tokens": 1, "max_tokens": 7}, 7),
        (Route.COMPLETIONS, {"max_completion_tokens": 1, "max_tokens": 5000}, 5000),
        (Route.RESPONSES, {"max_completion_tokens": 1, "max_tokens": 1, "max_output_tokens": 5000}, 5000),
        (Route.EMBEDDINGS, {"max_tokens": 5}, 0),
    ],
)
def test_what_is_to_come_is_what_the_client_allows(route: Route, fields: dict[str, Any], completion: int) -> None:
    """For each choice and prompt; what makes no sense is the engine's to refuse."""
    assert estimated(route, **fields).completion == completion


@given(
    st.sampled_from(list(Route)),
    st.dictionaries(
        st.sampled_from(["messages", "prompt", "input", "instructions", "n", "max_tokens", "max_completion_tokens"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["content", "text", "role"]), inner),
        ),
    ),
)
def test_anything_can_be_estimated(route: Route, fields: dict[str, Any]) -> None:
    """Whatever a client sends, there is a number that is not negative and not endless."""
    found = estimated(route, **fields)
    assert found.prompt >= 0
    assert 0 <= found.completion <= 2**40


def test_deep_nesting_is_no_trouble() -> None:
    """A prompt of lists in lists is looked through as far as it can be read."""
    assert estimate(Route.COMPLETIONS, {"prompt": msgspec.Raw(b"[" * 500 + b'"1234"' + b"]" * 500)}).prompt == 1
    assert estimate(Route.COMPLETIONS, {"prompt": msgspec.Raw(b"[" * 90000 + b"]" * 90000)}).prompt == 45000


@pytest.mark.parametrize("strange", [rb'"\ud800"', b"1e400", b'"\xff"'])
def test_a_part_that_cannot_be_read_does_not_hide_the_rest(strange: bytes) -> None:
    """An engine may take what is no text or number here, so the prompt then counts by all of its bytes."""
    messages = b'[{"role":"user","content":"%b","x":%b}]' % (b"long" * 100, strange)
    assert estimate(Route.CHAT, {"messages": msgspec.Raw(messages)}).prompt == -(-len(messages) // 4)
    assert estimate(Route.CHAT, {"messages": msgspec.Raw(b"null")}).prompt == 0


@pytest.mark.parametrize(
    "route, fields, longest",
    [
        (Route.CHAT, {}, None),
        (Route.CHAT, {"max_tokens": 7}, 7),
        (Route.CHAT, {"max_completion_tokens": 5, "max_tokens": 7}, 5),
        (Route.COMPLETIONS, {"max_completion_tokens": 5, "max_tokens": 7}, 7),
        (Route.RESPONSES, {"max_output_tokens": 3, "max_tokens": 7}, 3),
        (Route.CHAT, {"max_tokens": None}, None),
        (Route.CHAT, {"max_tokens": "many"}, None),
        (Route.CHAT, {"max_tokens": -4}, 0),
        (Route.EMBEDDINGS, {"max_tokens": 4}, None),
    ],
)
def test_the_longest_answer_is_what_the_client_allows(
    route: Route, fields: dict[str, object], longest: int | None
) -> None:
    """By whichever name the route has for it; nonsense is the engine's to refuse."""
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    assert longest_answer(route, raw) == longest
