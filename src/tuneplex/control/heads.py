"""Gives the newest heads of the audit log to another place, at a pace of its own: nothing waits for that place."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2

from tuneplex.errors import AuditError
from tuneplex.log import get_logger
from tuneplex.objects import Place
from tuneplex.records.audit import SignedHead, lock_head, post_head
from tuneplex.types import Keeping

__all__ = ["Heads"]

_log = get_logger(__name__)
_LOOK_S = 1.0
_OBJECT_S = 60.0
_LONGEST_S = 60.0


class Heads:
    """Posts each newest head once; after a failure it waits longer and longer.

    One that goes to an object store becomes an object for long, so only one a minute does.

    Args:
        settings: Tells where to, if anywhere.
        newest: Tells the newest head, if there is one.
    """

    def __init__(self, settings: Callable[[], Keeping], newest: Callable[[], SignedHead | None]) -> None:
        self._settings = settings
        self._newest = newest
        self._posted: tuple[str, SignedHead] | None = None
        self._client: httpx2.AsyncClient | None = None
        self._pause_s = _LOOK_S

    async def run(self) -> None:
        """Go on until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._pause_s)
                await self.look()
        finally:
            if self._client is not None:
                await self._client.aclose()

    async def look(self) -> float:
        """Post the newest head, unless that was done; after how many seconds to look again."""
        settings, signed = self._settings(), self._newest()
        if not settings.head_url or signed is None or (settings.head_url, signed) == self._posted:
            return self._pause_s
        to_store = settings.head_url.startswith("s3:")
        try:
            await (_lock(settings, signed) if to_store else self._post(settings.head_url, signed))
        except Exception as error:  # noqa: BLE001 - the fleet must not depend on its records
            self._pause_s = min(_LONGEST_S, 2 * self._pause_s)
            why = "; ".join(filter(None, (str(error), error.hint))) if isinstance(error, AuditError) else _name(error)
            _log.warning("the head was not taken", why=why, again_in_s=self._pause_s)
        else:
            self._posted, self._pause_s = (settings.head_url, signed), _OBJECT_S if to_store else _LOOK_S
        return self._pause_s

    async def _post(self, url: str, signed: SignedHead) -> None:
        if self._client is None:
            self._client = httpx2.AsyncClient()
        await post_head(self._client, url, signed)


async def _lock(settings: Keeping, signed: SignedHead) -> None:
    """In a thread that nobody waits for when control ends: the store may be silent for a minute."""
    place, until = Place.parse(settings.head_url), time.time() + settings.head_lock_s
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def work() -> None:
        try:
            lock_head(place, settings.store, signed, until)
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            _tell(done.set_exception, error)
        else:
            _tell(done.set_result, None)

    def _tell(settle: Callable[[Any], None], value: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if done.done() else settle(value))

    threading.Thread(target=work, name="head", daemon=True).start()
    await done


def _name(error: Exception) -> str:
    return type(error).__name__
