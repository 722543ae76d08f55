"""What the engine's statistics say, kept where the routes can read it: KV cache, requests and tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

__all__ = ["Figures", "StatLogger", "figures_of", "listen"]


@dataclass
class Figures:
    """The newest statistics of one engine core; None for what has not been told yet.

    Attributes:
        kv_use: The used part of the KV cache, from 0 to 1.
        running: Requests in the batch.
        waiting: Requests that wait for their turn.
        prompt_tokens: Since the start.
        generation_tokens: Since the start.
    """

    kv_use: float | None = None
    running: int | None = None
    waiting: int | None = None
    prompt_tokens: int = 0
    generation_tokens: int = 0


@dataclass
class _Engine:
    cores: dict[int, Figures]
    listeners: list[Callable[[], None]]


_engines: dict[str, _Engine] = {}


def _engine(instance: str) -> _Engine:
    return _engines.setdefault(instance, _Engine({}, []))


def figures_of(instance: str) -> Figures:
    """The figures of an engine, added up over its cores; `kv_use` is their mean."""
    cores = [*_engine(instance).cores.values()]
    uses = [core.kv_use for core in cores if core.kv_use is not None]
    return Figures(
        sum(uses) / len(uses) if uses else None,
        _sum([core.running for core in cores]),
        _sum([core.waiting for core in cores]),
        sum(core.prompt_tokens for core in cores),
        sum(core.generation_tokens for core in cores),
    )


def listen(instance: str, listener: Callable[[], None]) -> None:
    """Call something after each step of an engine, in the API server's event loop."""
    _engine(instance).listeners.append(listener)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class StatLogger(StatLoggerBase):  # type: ignore[misc]
    """vLLM makes one for each engine core in the API server and tells it of each step."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:  # noqa: ANN401 - vLLM's own
        self._engine = _engine(vllm_config.instance_id)
        self._figures = self._engine.cores.setdefault(engine_index, Figures(running=0, waiting=0, kv_use=0.0))

    def record(  # noqa: D102 - vLLM's own
        self,
        scheduler_stats: Any,  # noqa: ANN401 - vLLM's own
        iteration_stats: Any,  # noqa: ANN401 - vLLM's own
        mm_cache_stats: object = None,  # noqa: ARG002 - nothing of it is told
        engine_idx: int = 0,  # noqa: ARG002 - the figures are this core's own
    ) -> None:
        figures = self._figures
        if scheduler_stats is not None:
            figures.kv_use = scheduler_stats.kv_cache_usage
            figures.running = scheduler_stats.num_running_reqs
            figures.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        if iteration_stats is not None:
            figures.prompt_tokens += iteration_stats.num_prompt_tokens
            figures.generation_tokens += iteration_stats.num_generation_tokens
        for listener in self._engine.listeners:
            listener()

    def log_engine_initialized(self) -> None:  # noqa: D102 - vLLM's own
        return
