"""Usage, the audit log and traces: what control makes of the gateways' journals, and what keeps it going."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from tuneplex.control.auditor import Auditor
from tuneplex.control.bookkeeper import Bookkeeper
from tuneplex.control.controller import Controller
from tuneplex.control.journals import Journals, Taker
from tuneplex.control.questions import Questions
from tuneplex.control.registry import Registry
from tuneplex.control.tracing import Tracing
from tuneplex.journal import Finished
from tuneplex.releases import AdapterEvent

__all__ = ["Recording"]

_AT_ONCE = 1000  # changes of tenants and keys have to wait for it


class Recording:
    """Keeps both for a fleet.

    Args:
        journal: Where the gateways' journals lie.
        audit: Where the audit log lies.
        controller: Knows the fleet.
        registry: Has the store.
        questions: Answers from the store that can take a while.
        heard: Told of requests that are over, once they are in the store; of some perhaps twice.

    Attributes:
        auditor: Writes the audit log.
        journals: Reads the journals.
        questions: Answers from the store that can take a while.
    """

    def __init__(
        self,
        journal: Path,
        audit: Path,
        controller: Controller,
        registry: Registry,
        questions: Questions,
        *,
        heard: Callable[[Sequence[Finished]], None] | None = None,
    ) -> None:
        self._controller = controller
        self._registry = registry
        self.questions = questions
        self.heard = heard
        self.auditor = Auditor(audit, base=lambda: controller.spec.base.name, settings=lambda: controller.spec.records)
        self._tracing = tracing = Tracing(lambda: controller.spec)
        takers: list[Taker] = [Bookkeeper(self._keep), self.auditor]
        self.journals = Journals(journal, takers, [(tracing, lambda: tracing.wanted)])

    async def run(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.journals.run())
            group.create_task(self.auditor.run())
            group.create_task(self._tracing.run())

    async def acted(self, event: AdapterEvent) -> None:
        """Tuneplex has decided something of an adapter by itself: into the audit log."""
        details = {"adapter": event.adapter, "version": event.version, "why": event.why}
        await self.auditor.acted(event.who, f"adapter {event.action}", status=0, details=details)

    async def _keep(self, finished: Sequence[Finished]) -> None:
        fleet = self._controller.spec.name
        for start in range(0, len(finished), _AT_ONCE):
            await self._keep_some(fleet, finished[start : start + _AT_ONCE])

    async def _keep_some(self, fleet: str, finished: Sequence[Finished]) -> None:
        await self._registry.read(lambda store: store.keep_requests(fleet, finished))
        if self.heard is not None:
            self.heard(finished)
