"""One thread for calls that may hang, so that the event loop never does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from tuneplex.errors import StoreDown, TuneplexError

__all__ = ["Unsure", "Worker"]

T = TypeVar("T")
_GRACE_S = 2.0
_PAUSE_S = 0.02


class Unsure(StoreDown):
    """The database does not answer any more; whether it has done what it was asked is not known."""


class Worker:
    """Calls the database, one call after the other.

    A call that hangs keeps the thread, and nobody can end it from outside; until it returns, further calls fail after
    a short wait. The thread is a daemon, so that a hanging call does not keep the process from ending either.

    Args:
        timeout_s: How long to wait for a call.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._late: Future[Any] | None = None
        threading.Thread(target=self._work, name="store", daemon=True).start()

    async def call(self, work: Callable[[], T], timeout_s: float | None = None) -> T:
        """What `work` returns or raises.

        Args:
            work: What to call.
            timeout_s: How long to wait for it, if not as long as usual.

        Raises:
            StoreDown: An earlier call still hangs; this one was not made.
            Unsure: It takes too long, or it fails in a way of its own.
        """
        patience = self._timeout_s if timeout_s is None else timeout_s
        await self._settled(min(patience, _GRACE_S))
        future: Future[T] = Future()
        self._jobs.put((future, work))
        try:
            async with asyncio.timeout(patience):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            if future.running():
                self._late = future
            raise Unsure(f"the store does not answer: nothing within {patience:g} s") from error

    async def _settled(self, patience: float) -> None:
        """Wait for the call that took too long: on a busy machine it may only have been slow."""
        deadline = time.monotonic() + patience
        while self._late is not None and not self._late.done():
            if time.monotonic() >= deadline:
                raise StoreDown("the store does not answer: it still owes an answer to an earlier question")
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """End the thread once it is idle."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if future.set_running_or_notify_cancel():
                _run(future, work)


def _run(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except TuneplexError as error:
        future.set_exception(error)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises, control has to go on
        # Only its kind: a driver's message may hold what was being written.
        failure = Unsure(f"the store failed: {type(error).__name__}")
        failure.__cause__ = error
        future.set_exception(failure)
    else:
        future.set_result(result)
