"""The versions of adapters and their rollouts: what control does for them, and what keeps it going."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tuneplex.control.catalog import Catalog
from tuneplex.control.controller import Controller
from tuneplex.control.questions import Questions
from tuneplex.control.registry import Registry
from tuneplex.control.rollouts import Rollouts
from tuneplex.journal import Finished
from tuneplex.releases import AdapterEvent

__all__ = ["Deploying"]


class Deploying:
    """Both, for a fleet.

    Args:
        snapshot: The file that holds the versions for a start without the store.
        controller: The fleet.
        registry: Has the store.
        questions: Answers from the store that can take a while.
        acted: Told of what tuneplex has decided by itself.

    Attributes:
        catalog: The versions.
        rollouts: Of those that nobody has promoted yet.
    """

    def __init__(
        self,
        snapshot: Path,
        controller: Controller,
        registry: Registry,
        questions: Questions,
        acted: Callable[[AdapterEvent], Awaitable[None]] | None = None,
    ) -> None:
        self._controller = controller
        self._questions = questions
        self.catalog = Catalog(controller, registry, snapshot, acted)
        self.rollouts = Rollouts(self.catalog, controller, self._kept)

    async def run(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.catalog.run())
            group.create_task(self.rollouts.run())

    async def _kept(self, since: float) -> Sequence[Finished]:
        fleet = self._controller.spec.name
        return await self._questions.read(lambda store: store.requests_since(fleet, since))
