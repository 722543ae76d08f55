"""Which requests can be continued on another replica: only those of which every field is understood."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from tests.support.moves import raw
from tuneplex.engines.continuing import Terms, continuable
from tuneplex.engines.openai.dialect import OpenAIDialect
from tuneplex.engines.vllm.dialect import VllmDialect
from tuneplex.types import Route

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}


def chat(**more: object) -> Terms | None:
    """What a chat's continuation needs."""
    return continuable(Route.CHAT, raw(**{"messages": MESSAGES, **more}))


def completion(**more: object) -> Terms | None:
    """The same for a plain completion."""
    return continuable(Route.COMPLETIONS, raw(**{"prompt": "hi", **more}))


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1},
        {"logit_bias": {"5": 1}, "stop_token_ids": [5], "ignore_eos": True, "min_tokens": 3, "stop": "x"},
        {"n": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "echo": False, "bad_words": []},
        {"seed": None, "logprobs": None, "what_is_this": None},
        {"user": "u", "metadata": {"a": "b"}, "priority": 0, "cache_salt": "s", "request_id": "r"},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "return_token_ids": True},
        {"skip_special_tokens": False}, {"spaces_between_special_tokens": False}, {"response_format": {"type": "text"}},
    ],
)  # fmt: skip
def test_what_is_understood(more: dict[str, object]) -> None:
    """Fields that mean the same to the continuation do not keep a stream from it."""
    assert chat(**more) is not None
    assert completion(**more) is not None


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2}, {"n": True}, {"best_of": 2}, {"seed": 3}, {"presence_penalty": 0.5}, {"frequency_penalty": -1},
        {"logprobs": True}, {"logprobs": 2}, {"prompt_logprobs": 1}, {"echo": True}, {"suffix": "s"},
        {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "auto"}, {"bad_words": ["a"]},
        {"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a"}}, {"guided_json": {}},
        {"truncate_prompt_tokens": 4}, {"vllm_xargs": {"a": 1}}, {"what_is_this": 1}, {"use_beam_search": True},
        {"skip_special_tokens": False, "spaces_between_special_tokens": False},
        {"max_tokens": 0}, {"max_tokens": "5"}, {"max_tokens": 5.5}, {"min_tokens": "1"}, {"stop": ""}, {"stop": [1]},
        {"stream": False}, {"stream": 1}, {"stream": None}, {"stream_options": {"include_usage": "maybe"}},
    ],
)  # fmt: skip
def test_what_is_not_understood(more: dict[str, object]) -> None:
    """A field that the continuation would take otherwise, or that nobody knows, keeps a stream from it."""
    assert chat(**more) is None
    assert completion(**more) is None


@pytest.mark.parametrize("route", [Route.RESPONSES, Route.EMBEDDINGS])
def test_other_routes(route: Route) -> None:
    """Only chats and plain completions can be continued."""
    assert continuable(route, raw(input="hi")) is None


def test_fields_of_chats_only() -> None:
    """What shapes the prompt of a chat is done with; a plain completion has no such fields."""
    for more in (
        {"chat_template_kwargs": {"a": 1}},
        {"reasoning_effort": "low"},
        {"logprobs": False, "top_logprobs": 0},
    ):
        assert chat(**more) is not None
        assert completion(**more) is None
    assert chat(tools=TOOLS, tool_choice="none") is not None


@pytest.mark.parametrize(
    "messages, fine",
    [
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], True),
        ([{"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": "5"}], True),
        ([{"role": "user", "content": [{"type": "text", "text": "what is this?"}, PICTURE]}], False),
        ([{"role": "user", "content": [{"image_url": "data:,"}]}], False),
        ([{"role": "user", "content": [{"type": "text", "text": "hi", "image_url": "data:,"}]}], False),
        ([], False),
        ("hi", False),
        (None, False),
    ],
)
def test_prompts_of_chats(messages: object, fine: bool) -> None:  # noqa: FBT001 - parametrized
    """Only text is all in its tokens."""
    assert (chat(messages=messages) is not None) is fine


@pytest.mark.parametrize(
    "prompt, fine",
    [
        ("a", True), ([5, 6], True), (["a"], True), ([[5, 6]], True), (["a", "b"], False), ([[5], [6]], False),
        ([], False), (None, False), (5, False),
    ],
)  # fmt: skip
def test_prompts_of_completions(prompt: object, fine: bool) -> None:  # noqa: FBT001 - parametrized
    """One prompt, in words or in tokens."""
    assert (completion(prompt=prompt) is not None) is fine


@pytest.mark.parametrize(
    "route, more, most",
    [
        (Route.CHAT, {}, None),
        (Route.CHAT, {"max_tokens": 7}, 7),
        (Route.CHAT, {"max_tokens": 7, "max_completion_tokens": 5}, 5),
        (Route.COMPLETIONS, {}, 16),
        (Route.COMPLETIONS, {"max_tokens": 7}, 7),
    ],
)
def test_lengths(route: Route, more: dict[str, Any], most: int | None) -> None:
    """How long a reply may be, by the rules of its route."""
    terms = chat(**more) if route is Route.CHAT else completion(**more)
    assert terms is not None
    assert terms.max_tokens == most


def test_a_large_body_is_not_kept() -> None:
    """Of a body whose prompt is large, only the small fields stay in memory."""
    body = msgspec.json.encode({"stream": True, "messages": MESSAGES, "temperature": 0, "top_p": 0.5})
    before = sys.getrefcount(body)
    terms = continuable(Route.CHAT, msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    assert terms is not None
    assert sys.getrefcount(body) == before


def test_dialects_know_whether_their_engines_continue() -> None:
    """VLLM takes and tells token ids; of other servers nobody knows."""
    assert (VllmDialect().continues, OpenAIDialect().continues) == (True, False)
