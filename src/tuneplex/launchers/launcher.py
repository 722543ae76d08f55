"""The seam between control and whatever makes engines run."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from tuneplex.types import Base, PoolSpec

__all__ = ["Launched", "Launcher", "Order"]


class Order(msgspec.Struct, frozen=True):
    """One replica that should run.

    Attributes:
        replica: Its name, unique in the fleet.
        pool: Its settings.
        base: The model it serves.
        settings: A digest of all that it is started with; see `Launched.settings`.
        url: Of an engine that already runs; empty for one that is to be started.
        failures: When earlier starts of it ended, Unix times.
        restarts: How often it was started before.
        peers: How many replicas share this machine, this one among them.
    """

    replica: str
    pool: PoolSpec
    base: Base
    settings: str
    url: str = ""
    failures: tuple[float, ...] = ()
    restarts: int = 0
    peers: int = 1


class Launched(msgspec.Struct, frozen=True):
    """One replica that was launched, living or ended. Control remembers nothing that is not in here.

    Attributes:
        replica: Its name.
        pool: Its pool's name.
        launcher: Which launcher it came from.
        engine: The kind of engine.
        settings: A digest of all that it was started with; another digest means it must be replaced.
        endpoint: As in `Replica.endpoint`.
        secret: The bearer token it wants, or empty.
        log: The path of its log, or empty.
        started: Unix time, seconds.
        failures: When earlier starts of it ended, Unix times.
        restarts: How often it was started before.
        cores: Processor cores it computes on.
        gpus: GPUs it uses.
        pid: The engine's first process, once it is known.
        ended: Unix time, seconds; None while it lives.
        exit_code: The engine's, 128 + N for signal N.
        drain_s: How long it may finish its requests when it goes away, as its pool said when it was launched.
    """

    replica: str
    pool: str
    launcher: str
    engine: str
    settings: str
    endpoint: str
    secret: str = ""
    log: str = ""
    started: float = 0.0
    failures: tuple[float, ...] = ()
    restarts: int = 0
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    pid: int | None = None
    ended: float | None = None
    exit_code: int | None = None
    drain_s: float = 300.0

    def __repr__(self) -> str:
        """Without the secret, so that it cannot slip into a log."""
        return f"Launched({self.replica!r}, {self.endpoint!r}, pid={self.pid}, ended={self.ended})"


class Launcher(Protocol):
    """Makes replicas run, and remembers them for a control that was away."""

    @property
    def changed(self) -> asyncio.Event:
        """Set whenever `launched` changed; whoever waits for it clears it."""
        ...

    @property
    def launched(self) -> tuple[Launched, ...]:
        """All that were launched and not forgotten."""
        ...

    @property
    def free_gpus(self) -> int | None:
        """How many GPUs no replica uses; None where that is not this launcher's business."""
        ...

    async def launch(self, order: Order) -> None:
        """Make a replica run. It takes the place of an ended one of the same name.

        Raises:
            EngineError: It cannot be started.
        """
        ...

    async def stop(self, replica: str) -> None:
        """End it, gracefully and then for sure; `ended` is set when it is gone.

        Raises:
            EngineError: It cannot be asked to.
        """
        ...

    async def forget(self, replica: str) -> None:
        """Drop the record of one that has ended.

        Raises:
            EngineError: It cannot be dropped.
        """
        ...
