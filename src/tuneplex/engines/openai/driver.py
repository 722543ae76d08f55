"""Any server that speaks OpenAI's API: it is not started here, and its adapters are what it lists."""

from __future__ import annotations

from collections.abc import Mapping

from tuneplex.engines.command import Command, Place
from tuneplex.engines.server import EngineServer
from tuneplex.errors import EngineError, EngineStartError
from tuneplex.types import AdapterVersion, Base, PoolSpec, Route

__all__ = ["OpenAIDriver"]


class OpenAIDriver:
    """A server that somebody else runs. It answers as an adapter if it lists a model of the adapter's name."""

    loads_adapters = False
    routes = frozenset(Route)
    without_residency = ""

    async def command(self, pool: PoolSpec, base: Base, place: Place, inherited: Mapping[str, str]) -> Command:
        """Refuse: such an engine runs already."""
        del base, place, inherited
        raise EngineStartError(f"pool {pool.name}: an engine of kind openai cannot be started here; give its urls")

    def phase(self, log: str) -> str:
        """There is no log to look at."""
        del log
        return "waiting for its answer"

    def engine_name(self, version: AdapterVersion) -> str:
        """The server knows the adapter by its plain name."""
        return version.name

    async def check(self, server: EngineServer, timeout_s: float) -> None:
        """See that it lists its models: the one route that every such server has."""
        await server.models(timeout_s=timeout_s)

    async def load(self, server: EngineServer, version: AdapterVersion) -> None:
        """Refuse: OpenAI's API has no way to load an adapter."""
        del server
        raise EngineError(f"the server does not list a model named {version.name}, and cannot load one")

    async def unload(self, server: EngineServer, name: str) -> None:
        """Nothing was loaded, so there is nothing to unload."""
        del server, name

    async def move(self, server: EngineServer, way: str, name: str) -> None:
        """Refuse: OpenAI's API has no adapters."""
        del server
        raise EngineError(f"the server cannot {way} {name}")

    async def residency(self, server: EngineServer) -> None:
        """OpenAI's API has no adapters, and so no place where they are."""
        del server

    async def metrics(self, server: EngineServer) -> None:
        """OpenAI's API has no figures."""
        del server
