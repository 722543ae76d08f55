"""A registry with its admin API, on a store of the test's choice."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2

from tuneplex.control import Controller, Deploying, Leasing, Questions, Registry, admin_app
from tuneplex.control.registry import Patience, Records
from tuneplex.identity import Access
from tuneplex.launchers.external import ExternalLauncher
from tuneplex.releases import AdapterEvent
from tuneplex.types import Base, FleetSpec

__all__ = ["HASTY", "Desk"]

HASTY = Patience(first_s=0.2, call_s=0.5, poll_s=0.02, close_s=0.1, expired_s=0.0)


class Desk:
    """A registry that runs, its admin API, and what it has published.

    Args:
        store: Where it keeps everything.
        directory: For the snapshot.
        file: The store's file, if it has one.
        patience: How long the registry waits.
    """

    def __init__(
        self, store: Records, directory: Path, file: Path | None = None, *, patience: Patience = HASTY
    ) -> None:
        self.published: list[Access] = []
        self.snapshot = directory / "access.snapshot"
        self.controller = Controller(
            FleetSpec("fleet", Base("base", "/models/base")), applied_at=0.0, url="http://127.0.0.1:1/v1",
            started=0.0, launchers={"external": ExternalLauncher()},
        )  # fmt: skip
        self.registry = Registry(store, snapshot=self.snapshot, publish=self._publish, file=file, patience=patience)
        self.saved: list[FleetSpec] = []
        self.leasing = Leasing(self.controller, self.registry)
        self._questions = Questions(store)
        self.deploying = Deploying(
            directory / "versions.snapshot", self.controller, self.registry, self._questions, self._note
        )
        self.acted: list[AdapterEvent] = []
        self.app = admin_app(self.controller, self.registry, self.leasing, self.saved.append, deploying=self.deploying)
        self.client = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url="http://control")

    async def _publish(self, access: Access) -> None:
        self.published.append(access)

    async def _note(self, event: AdapterEvent) -> None:
        self.acted.append(event)

    @property
    def ids(self) -> set[str]:
        """The keys that gateways know."""
        return {key.id for key in self.published[-1].keys}

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - what is waited for happens in other threads
                await asyncio.sleep(0.01)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the store for as long as the block runs."""
        task = asyncio.create_task(self.registry.run())
        try:
            await self.until(lambda: self.published or self.registry.trouble(time.time()))
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await self.client.aclose()
            self._questions.close()

    async def make_key(self, **wish: object) -> httpx2.Response:
        """Ask for a key."""
        return await self.client.post("/keys", json={"tenant": "default", **wish})
