"""What must be true of the engines before and while they are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu.client import Answer, Client, Question
from benchmarks.lora_cpu.load import Prompts
from benchmarks.lora_cpu.processes import RunningEngine
from benchmarks.lora_cpu.workloads import BASE, REPLY_TOKENS

__all__ = ["Tokens", "check_answers", "check_engine", "share_changed"]

_AGREE = 8  # tokens; after that, a rounding error may have chosen another way
_ACTIVE = "tuneplex-vllm is active"
Tokens: TypeAlias = "tuple[int, ...]"


async def check_engine(engine: RunningEngine, models: Sequence[str], prompts: Prompts) -> dict[str, Tokens]:
    """Ask every model the same question, alone; also shows whether the plugin is where it must be, and only there.

    Raises:
        BenchmarkError: The plugin is not active, or active where it must not be, or a reply is wrong.
    """
    active = _ACTIVE in engine.log()
    if active != (engine.kind.plugins == "tuneplex"):
        raise BenchmarkError(f"{engine.kind.name}: the plugin is {'' if active else 'not '}active")
    question = prompts.draw("check")
    client = Client(engine.uds)
    try:
        return {model: (await client.ask(Question(model, question, REPLY_TOKENS))).tokens for model in (BASE, *models)}
    finally:
        await client.close()


def check_answers(answers: Mapping[str, Mapping[str, Tokens]]) -> None:
    """Compare what the engines said.

    Args:
        answers: By engine and model.

    Raises:
        BenchmarkError: Engines disagree about the base, or two models of an engine say the same.
    """
    bases = {engine: said[BASE][:_AGREE] for engine, said in answers.items()}
    if len(set(bases.values())) > 1:
        raise BenchmarkError(f"the base's answer depends on the engine: {bases}")
    for engine, said in answers.items():
        if len(set(said.values())) < len(said):
            raise BenchmarkError(f"{engine}: two of {', '.join(said)} give the same answer")


def share_changed(
    answers: Mapping[tuple[str, int, int], Answer], base: Mapping[tuple[int, int], Tokens]
) -> float | None:
    """The share of the adapters' answers that differ from the base's to the same prompt; None if there is no pair.

    Args:
        answers: By model, client and request.
        base: The base's, by client and request.
    """
    differ = [
        answer.tokens != base[client, request]
        for (model, client, request), answer in answers.items()
        if model != BASE and (client, request) in base
    ]
    return sum(differ) / len(differ) if differ else None
