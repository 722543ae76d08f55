"""The control side of an engine: how it is started, how it does, which adapters it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tuneplex.engines.command import Command, Place
from tuneplex.engines.openai.driver import OpenAIDriver
from tuneplex.engines.server import EngineMetrics, EngineModel, EngineServer
from tuneplex.engines.vllm.driver import VllmDriver
from tuneplex.types import AdapterVersion, Base, PoolSpec, Residency, Route

__all__ = ["KINDS", "Command", "Driver", "EngineMetrics", "EngineModel", "EngineServer", "Place", "driver_for"]


class Driver(Protocol):
    """What control needs to know about a kind of engine. A driver keeps nothing between calls."""

    @property
    def loads_adapters(self) -> bool:
        """Whether adapters can be loaded and unloaded while the engine runs."""
        ...

    @property
    def routes(self) -> frozenset[Route]:
        """The API routes it offers."""
        ...

    @property
    def without_residency(self) -> str:
        """What a person should know of an engine that has no `residency`; empty where nobody expects one."""
        ...

    async def command(self, pool: PoolSpec, base: Base, place: Place, inherited: Mapping[str, str]) -> Command:
        """What starts it; `inherited` is the environment that it may see. The engine's Python may be asked for it.

        Raises:
            EngineStartError: This kind of engine is never started here.
        """
        ...

    def phase(self, log: str) -> str:
        """What a starting engine is doing, in a few words, from the end of its log."""
        ...

    def engine_name(self, version: AdapterVersion) -> str:
        """The name that the engine has, or will have, for an adapter version."""
        ...

    async def check(self, server: EngineServer, timeout_s: float) -> None:
        """Return if it can take requests; a busy engine may take some time to say so.

        Raises:
            EngineError: It cannot, and the message says why; EngineTimeout, if it was reached and did not answer.
        """
        ...

    async def load(self, server: EngineServer, version: AdapterVersion) -> None:
        """Load an adapter version under `engine_name`; one that is loaded already is fine.

        Raises:
            EngineError: It does not; the message holds its own words.
        """
        ...

    async def unload(self, server: EngineServer, name: str) -> None:
        """Unload what the engine calls `name`, as soon as its requests have ended; one that is not loaded is fine.

        Raises:
            EngineError: It does not.
        """
        ...

    async def move(self, server: EngineServer, way: str, name: str) -> None:
        """`pin`, `unpin` or `prefetch` what the engine calls `name`.

        Raises:
            EngineError: It does not, or this kind of engine cannot.
        """
        ...

    async def residency(self, server: EngineServer) -> Residency | None:
        """Where it has its adapters; None if it cannot tell.

        Raises:
            EngineError: It does not answer, or with something else.
        """
        ...

    async def metrics(self, server: EngineServer) -> EngineMetrics | None:
        """Its figures; None if it has none.

        Raises:
            EngineError: It does not answer, or with something else.
        """
        ...


_DRIVERS: Mapping[str, type[Driver]] = {"vllm": VllmDriver, "openai": OpenAIDriver}
KINDS = frozenset(_DRIVERS)


def driver_for(kind: str) -> Driver:
    """The driver of a `PoolSpec.engine`.

    Raises:
        KeyError: It is none of `KINDS`.
    """
    return _DRIVERS[kind]()
