"""What a gateway counts before a request, against what vLLM counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.support.contract import CHAT, COMPLETIONS, RESPONSES
from tests.support.real_engine import RealEngine
from tests.support.thinned import thinned
from tuneplex.gateway.body import read_body
from tuneplex.gateway.estimate import Estimate
from tuneplex.gateway.tokens import Pending
from tuneplex.types import Route

pytestmark = pytest.mark.engine

TEXTS = {
    "prose": "The river runs through the old town, and floods the lower streets.\n" * 20,
    "code": Path(__file__).read_text()[:1_000],
    "no space": "abcdefghij" * 30,
    "digits": "31415926535" * 20,
    "emoji": "😀👩‍👩‍👧 " * 20,
    "Chinese": "東京は大きい都市です。" * 20,
    "white space": "a \n\n\t  b" * 30,
    "special tokens": "<|im_start|>user\nhi<|im_end|>" * 20,
    "empty": "",
}


def counted(tokenizer: Tokenizer, route: Route, body: dict[str, Any]) -> Estimate:
    """What a gateway makes of a body."""
    found: list[Estimate] = []
    pending = Pending(route, read_body(json.dumps(body).encode()).fields, found.append, None)
    while not pending.step(tokenizer):
        pass
    pending.deliver()
    return found[0]


@pytest.fixture(scope="module")
def tokenizer(base_model: Path) -> Tokenizer:
    """The base's."""
    return Tokenizer.from_file(str(base_model / "tokenizer.json"))


@pytest.mark.parametrize("name", thinned([name for name in TEXTS if name != "empty"], 3))
def test_a_completion_is_counted_as_the_engine_does(real_engine: RealEngine, tokenizer: Tokenizer, name: str) -> None:
    """A text that is not cut has exactly the tokens that vLLM finds in it."""
    body = {"model": "base", "prompt": TEXTS[name], "max_tokens": 1}
    with real_engine.client() as client:
        usage = client.post(COMPLETIONS, json=body).raise_for_status().json()["usage"]
    found = counted(tokenizer, Route.COMPLETIONS, body)
    assert found.prompt == usage["prompt_tokens"]
    assert found.at_least == usage["prompt_tokens"] + 1


@pytest.mark.parametrize("name", thinned(list(TEXTS), 3))
def test_a_chat_has_at_least_what_is_certain(real_engine: RealEngine, tokenizer: Tokenizer, name: str) -> None:
    """Of a chat, no more is taken for certain than vLLM finds; the estimate is near it."""
    text = TEXTS[name]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": "So?"}]},
    ]
    body = {"model": "base", "messages": messages, "max_tokens": 1}
    with real_engine.client() as client:
        real = client.post(CHAT, json=body).raise_for_status().json()["usage"]["prompt_tokens"]
    found = counted(tokenizer, Route.CHAT, body)
    assert found.at_least - 1 <= real
    assert abs(found.prompt - real) <= 24
    assert found.at_least - 1 >= 0.9 * real - 60


def test_a_response_has_at_least_what_is_certain(real_engine: RealEngine, tokenizer: Tokenizer) -> None:
    """The same holds for the input and the instructions of a response."""
    body = {"model": "base", "input": TEXTS["prose"], "instructions": TEXTS["code"], "max_output_tokens": 1}
    with real_engine.client() as client:
        real = client.post(RESPONSES, json=body).raise_for_status().json()["usage"]["input_tokens"]
    found = counted(tokenizer, Route.RESPONSES, body)
    assert found.at_least - 1 <= real
    assert abs(found.prompt - real) <= 24
