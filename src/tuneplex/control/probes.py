"""Asks an engine how likely a model finds the tokens of given texts, and how it answers them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tuneplex.engines.driver import EngineServer
from tuneplex.errors import EngineError
from tuneplex.releases import Probing

__all__ = ["USUAL", "answer", "logprobs"]

_TIMEOUT_S = 120.0
# What is read where nobody says what an adapter is for: a change of all that a model does shows in any text.
USUAL = tuple(
    Probing(prompt=text)
    for text in (
        "The report lists three customers who asked for a refund last week, and the reasons that they gave.",
        "Question: Which planet is the largest in our solar system? Answer: Jupiter is the largest planet.",
        '{"name": "example", "kind": "invoice", "total": 128.5, "currency": "EUR"}',
        "def add(first: int, second: int) -> int:\n    return first + second\n",
        "Dear team, thank you for the quick reply. Please find the updated schedule attached to this message.",
        "SELECT name, city FROM customers WHERE city = 'Lyon' ORDER BY name;",
    )
)


async def logprobs(server: EngineServer, name: str, probe: Probing) -> tuple[float, ...]:
    """The natural logarithm of the probability of each token of a text but the first, by one of an engine's models.

    Args:
        server: The engine.
        name: Its own name for the model.
        probe: The text.

    Raises:
        EngineError: It does not say.
    """
    body = {"model": name, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0, "return_token_ids": True}
    if probe.messages:
        ends = probe.messages[-1].get("role") == "assistant"
        turns = {"messages": probe.messages, "add_generation_prompt": not ends, "continue_final_message": ends}
        told = await _ask(server, "/v1/chat/completions", {**body, **turns})
        return _likely(told.get("prompt_logprobs"), told.get("prompt_token_ids"))
    told = await _ask(server, "/v1/completions", {**body, "prompt": probe.prompt})
    try:
        choice = told["choices"][0]
        return _likely(choice.get("prompt_logprobs"), choice.get("prompt_token_ids"))
    except (LookupError, TypeError, AttributeError) as error:
        raise EngineError(f"its answer is of another form: {error!r}") from error


async def answer(server: EngineServer, name: str, probe: Probing, *, seed: int, tokens: int) -> str:
    """What one of an engine's models answers, in so many tokens at most.

    Raises:
        EngineError: It does not.
    """
    body = {"model": name, "max_tokens": tokens, "temperature": 0.7, "seed": seed}
    try:
        if probe.messages:
            asked = [message for message in probe.messages if message.get("role") != "assistant"]
            told = await _ask(server, "/v1/chat/completions", {**body, "messages": asked})
            return str(told["choices"][0]["message"]["content"] or "")
        told = await _ask(server, "/v1/completions", {**body, "prompt": probe.prompt})
        return str(told["choices"][0]["text"])
    except (LookupError, TypeError) as error:
        raise EngineError(f"its answer is of another form: {error!r}") from error


async def _ask(server: EngineServer, path: str, body: Mapping[str, object]) -> dict[str, Any]:
    reply = await server.post(path, body, timeout_s=_TIMEOUT_S)
    if not reply.ok:
        raise EngineError(f"{path} answers {reply.status}: {reply.words}")
    try:
        told = json.loads(reply.body)  # which reads NaN and Infinity, as an engine with broken weights may write them
    except ValueError as error:
        raise EngineError(f"{path} answers with something else than JSON") from error
    if not isinstance(told, dict):
        raise EngineError(f"{path} answers with something else than an object")
    return told


def _likely(told: Any, ids: Any) -> tuple[float, ...]:  # noqa: ANN401 - an engine's JSON
    """Of each token the entry with its own id; the first token has none."""
    if not isinstance(told, list) or not isinstance(ids, list) or len(told) != len(ids):
        raise EngineError("it tells no log-probabilities of a prompt")
    return tuple(_one(entry, token) for entry, token in zip(told[1:], ids[1:], strict=True))


def _one(entry: Any, token: Any) -> float:  # noqa: ANN401 - the same
    found = entry.get(str(token)) if isinstance(entry, dict) else None
    value = found.get("logprob") if isinstance(found, dict) else None
    return float(value) if isinstance(value, int | float) else math.nan
