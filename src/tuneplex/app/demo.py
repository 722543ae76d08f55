"""The demo: the example fleet, one question for each of its fine-tunes, and the answers of base and fine-tune."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import yaml

from tuneplex.errors import EngineError, SourceError
from tuneplex.types import FleetSpec

__all__ = ["Answers", "Question", "ask_all", "examples", "new_key", "questions", "with_key", "with_port"]

_ANSWER_S = 300.0


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the demo asks a fine-tune, and its base for comparison.

    Attributes:
        about: The fine-tune's task, in a few words.
        prompt: The user's message.
        max_tokens: Where the answer is cut.
    """

    about: str
    prompt: str
    max_tokens: int = 48

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages to send."""
        return [{"role": "user", "content": self.prompt}]


class Answers(msgspec.Struct, frozen=True):
    """One question and what the two models said."""

    adapter: str
    question: Question
    base: str
    tuned: str


def examples() -> Path:
    """The directory with the example fleet: in a checkout, or inside the installed package.

    Raises:
        SourceError: It is in neither.
    """
    package = Path(__file__).parents[1]
    places = (package / "_examples", package.parents[1] / "examples")
    for place in places:
        if (place / "demo" / "fleet.yaml").is_file():
            return place
    hint = "take a checkout of the repository, or install tuneplex from a wheel"
    raise SourceError("this installation has no examples", hint=hint)


def questions(path: Path) -> dict[str, Question]:
    """Read the questions: adapter -> question.

    Raises:
        SourceError: The file is missing or wrong.
    """
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), type=dict[str, Question])
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise SourceError(f"{path}: {error}") from error


def new_key() -> str:
    """A key for one run; long enough that nobody guesses it."""
    return f"sk-demo-{secrets.token_urlsafe(24)}"


def with_key(spec: FleetSpec, key: str) -> FleetSpec:
    """The fleet, guarded by `key`."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return msgspec.structs.replace(spec, gateway=msgspec.structs.replace(spec.gateway, key_sha256=digest))


def with_port(spec: FleetSpec, port: int) -> FleetSpec:
    """The fleet, listening on `port`."""
    return msgspec.structs.replace(spec, listen=msgspec.structs.replace(spec.listen, port=port))


def ask_all(
    url: str, key: str, base: str, asked: Mapping[str, Question], advance: Callable[[int, int], None]
) -> tuple[Answers, ...]:
    """Ask the base and each adapter its question through the gateway, all at once.

    Args:
        url: Of the gateway, with `/v1`.
        key: Its key.
        base: The base's name.
        asked: Adapter -> question.
        advance: Told how many of all answers there are.

    Raises:
        EngineError: An answer did not come.
    """
    return asyncio.run(_ask_all(url, key, base, asked, advance))


async def _ask_all(
    url: str, key: str, base: str, asked: Mapping[str, Question], advance: Callable[[int, int], None]
) -> tuple[Answers, ...]:
    headers = {"authorization": f"Bearer {key}"}
    pairs = [(model, question) for name, question in asked.items() for model in (base, name)]
    done = 0

    async def counted(model: str, question: Question) -> str:
        nonlocal done
        answer = await _ask(client, model, question)
        done += 1
        advance(done, len(pairs))
        return answer

    # The gateway is on this machine: a proxy from the environment could not reach it.
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=_ANSWER_S, trust_env=False) as client:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(counted(model, question)) for model, question in pairs]
        except ExceptionGroup as errors:  # the first failure; the group has cancelled the others
            raise errors.exceptions[0] from None
    return _paired(asked, [task.result() for task in tasks])


def _paired(asked: Mapping[str, Question], said: Sequence[str]) -> tuple[Answers, ...]:
    rows = zip(asked.items(), said[::2], said[1::2], strict=True)
    return tuple(Answers(name, question, base, tuned) for (name, question), base, tuned in rows)


async def _ask(client: httpx2.AsyncClient, model: str, question: Question) -> str:
    body = {
        "model": model,
        "messages": question.messages,
        "max_tokens": question.max_tokens,
        "temperature": 0,
    }
    try:
        reply = await client.post("/chat/completions", json=body)
        reply.raise_for_status()
    except httpx2.HTTPError as error:
        raise EngineError(f"{model} did not answer: {str(error) or type(error).__name__}") from error
    answer: dict[str, Any] = reply.json()
    choice = answer["choices"][0]
    cut = " …" if choice["finish_reason"] == "length" else ""
    return f"{choice['message']['content'].strip()}{cut}"
