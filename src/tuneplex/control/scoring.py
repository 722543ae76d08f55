"""Asks somebody else how good an answer is: by HTTP, or by a command."""

from __future__ import annotations

import asyncio
import contextlib
import math

import httpx2
import msgspec

from tuneplex.errors import EngineError
from tuneplex.releases import Scorer

__all__ = ["Asked", "score"]

_TIMEOUT_S = 60.0


class Asked(msgspec.Struct, frozen=True):
    """What the scorer is told, as JSON.

    Attributes:
        adapter: The adapter's name.
        version: The id of the version.
        prompt: The text, or
        messages: the conversation, that was answered.
        answer: The answer.
    """

    adapter: str
    version: str
    prompt: str
    messages: tuple[dict[str, str], ...]
    answer: str


class _Said(msgspec.Struct):
    score: float


async def score(scorer: Scorer, asked: Asked) -> float:
    """How good an answer is: the number `score` of the JSON object that comes back. More is better.

    Raises:
        EngineError: It does not say; the message says why.
    """
    body = msgspec.json.encode(asked)
    said = await (_post(scorer.url, body) if scorer.url else _run(scorer.command, body))
    try:
        value = msgspec.json.decode(said, type=_Said).score
    except msgspec.MsgspecError as error:
        raise EngineError(f'the scorer did not answer with {{"score": NUMBER}}: {said[:100]!r}') from error
    if not math.isfinite(value):
        raise EngineError(f"the scorer answered with {value}")
    return value


async def _post(url: str, body: bytes) -> bytes:
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
            reply = await client.post(url, content=body, headers={"content-type": "application/json"})
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise EngineError(f"the scorer at {url} does not answer: {type(error).__name__}") from error
    if not reply.is_success:
        raise EngineError(f"the scorer at {url} answers {reply.status_code}")
    return reply.content


async def _run(command: tuple[str, ...], body: bytes) -> bytes:
    """Its standard input is the question, its standard output the answer."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise EngineError(f"the scorer {command[0]} cannot be run: {error.strerror}") from error
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            said, words = await process.communicate(body)
    except TimeoutError as error:
        raise EngineError(f"the scorer {command[0]} has not answered within {_TIMEOUT_S:.0f} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        last = words.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise EngineError(f"the scorer {command[0]} ended with {process.returncode}: {last}")
    return said
