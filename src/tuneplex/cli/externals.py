"""Asks the external engines of a fleet file whether they answer, as control would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuneplex.engines.driver import EngineServer, driver_for
from tuneplex.errors import EngineError
from tuneplex.fleetfile import FleetFile

__all__ = ["EngineAnswer", "ask"]

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What one of them says.

    Attributes:
        pool: Its pool.
        url: Where it should be.
        models: How many it lists.
        trouble: Why it cannot be used; empty if it can.
    """

    pool: str
    url: str
    models: int = 0
    trouble: str = ""


def ask(file: FleetFile, env: Mapping[str, str]) -> tuple[EngineAnswer, ...]:
    """What all of them say; `env` is where their keys are looked up that the file only names."""
    return asyncio.run(_ask_all(tuple(_engines(file, env))))


@dataclass(frozen=True, slots=True)
class _Engine:
    pool: str
    kind: str
    url: str
    secret: str


def _engines(file: FleetFile, env: Mapping[str, str]) -> Iterator[_Engine]:
    for name, pool in file.pools.items():
        secret = pool.key.get_secret_value() if pool.key else env.get(pool.key_env or "", "").strip()
        for url in filter(None, (pool.url, *pool.urls)):
            yield _Engine(name, pool.engine, url, secret)


async def _ask_all(engines: tuple[_Engine, ...]) -> tuple[EngineAnswer, ...]:
    return tuple(await asyncio.gather(*map(_ask, engines)))


async def _ask(engine: _Engine) -> EngineAnswer:
    async with EngineServer(engine.url, engine.secret) as server:
        try:
            await driver_for(engine.kind).check(server, _TIMEOUT_S)
            models = await server.models(timeout_s=_TIMEOUT_S)
        except EngineError as error:
            return EngineAnswer(engine.pool, engine.url, trouble=str(error))
    return EngineAnswer(engine.pool, engine.url, len(models))
