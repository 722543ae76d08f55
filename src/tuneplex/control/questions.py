"""Questions to the store whose answers can take a while: in a thread and over connections of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tuneplex.control.registry import Records
from tuneplex.control.worker import Worker

__all__ = ["Questions"]

T = TypeVar("T")
_PATIENCE_S = 25.0


class Questions:
    """Asks one after the other; tenants and keys are not held up by it.

    Args:
        store: Nobody else uses it.
        patience_s: How long to wait for an answer.
    """

    def __init__(self, store: Records, *, patience_s: float = _PATIENCE_S) -> None:
        self._store = store
        self._worker = Worker(patience_s)

    async def read(self, work: Callable[[Records], T]) -> T:
        """What `work` finds in the store.

        Raises:
            StoreError: It cannot answer, or not in time.
        """

        def ask() -> T:
            try:
                return work(self._store)
            finally:
                self._store.close()  # a file that was put in the place of another one is seen the next time

        return await self._worker.call(ask)

    def close(self) -> None:
        """Let go of the database, once no question is being answered."""
        self._worker.close()
