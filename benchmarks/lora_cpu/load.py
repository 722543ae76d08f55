"""The load: clients side by side, each of which sends its next request as soon as it has the last reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu.client import Answer, Client, Question
from benchmarks.lora_cpu.plan import Cell
from benchmarks.lora_cpu.workloads import PROMPT_TOKENS, REPLY_TOKENS, WORKLOADS

__all__ = ["Outcome", "Prompts", "drive", "warm_up"]

_FIRST = 64  # smaller ids are special tokens
_STUCK_S = 1800.0
_SHORT = (16, 2)


class Outcome(msgspec.Struct, frozen=True):
    """What came back.

    Attributes:
        wall_s: From the first request to the end of the last reply.
        answers: By the model, the client and the number of its request.
    """

    wall_s: float
    answers: dict[tuple[str, int, int], Answer]


class Prompts:
    """Random prompts.

    Args:
        vocabulary: How many token ids the base knows.
    """

    def __init__(self, vocabulary: int) -> None:
        self._ids = range(_FIRST, vocabulary)

    def draw(self, *key: object, tokens: int = PROMPT_TOKENS) -> tuple[int, ...]:
        """Random token ids, always the same ones for the same key."""
        draw = Random(repr(key))  # noqa: S311 - no secret is made here
        return tuple(draw.choices(self._ids, k=tokens))


@asynccontextmanager
async def _clients(uds: Path, count: int) -> AsyncIterator[list[Client]]:
    clients = [Client(uds) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()


async def warm_up(uds: Path, cell: Cell, prompts: Prompts) -> None:
    """One short request for each model of the workload: adapters are in their slots, weights in the caches."""
    models = WORKLOADS[cell.workload].models
    tokens, reply = _SHORT
    async with _clients(uds, len(models)) as clients:
        questions = [Question(model, prompts.draw(model, tokens=tokens), reply) for model in models]
        await asyncio.gather(*(client.ask(question) for client, question in zip(clients, questions, strict=True)))


async def drive(uds: Path, cell: Cell, prompts: Prompts, key: object) -> Outcome:
    """Send all requests of a cell; prompts follow from `key`, so that all cells of a round get the same ones.

    Raises:
        BenchmarkError: A reply is not as it must be, or does not come.
    """
    workload = WORKLOADS[cell.workload]
    answers: dict[tuple[str, int, int], Answer] = {}

    async def work(number: int, client: Client) -> None:
        for request in range(cell.requests):
            model = workload.model(number, request)
            question = Question(model, prompts.draw(key, number, request), REPLY_TOKENS)
            answers[model, number, request] = await client.ask(question)

    async with _clients(uds, cell.clients) as clients:
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(_STUCK_S), asyncio.TaskGroup() as group:
                for number, client in enumerate(clients):
                    group.create_task(work(number, client))
        except TimeoutError:
            raise BenchmarkError(f"no end after {_STUCK_S:.0f} s") from None
        except ExceptionGroup as errors:
            raise BenchmarkError(str(errors.exceptions[0])) from errors
        return Outcome(time.perf_counter() - begin, answers)
