"""Gives the newest heads of the audit log to another place, at a pace of its own: nothing waits for that place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2

from tuneplex.errors import AuditError
from tuneplex.log import get_logger
from tuneplex.records.audit import SignedHead, post_head

__all__ = ["Heads"]

_log = get_logger(__name__)
_LOOK_S = 1.0
_LONGEST_S = 60.0


class Heads:
    """Posts each newest head once; after a failure it waits longer and longer.

    Args:
        url: Tells where to; empty for nowhere.
        newest: Tells the newest head, if there is one.
    """

    def __init__(self, url: Callable[[], str], newest: Callable[[], SignedHead | None]) -> None:
        self._url = url
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
        url, signed = self._url(), self._newest()
        if not url or signed is None or (url, signed) == self._posted:
            return self._pause_s
        try:
            await self._post(url, signed)
        except Exception as error:  # noqa: BLE001 - the fleet must not depend on its records
            self._pause_s = min(_LONGEST_S, 2 * self._pause_s)
            why = str(error) if isinstance(error, AuditError) else type(error).__name__
            _log.warning("the head was not taken", why=why, again_in_s=self._pause_s)
        else:
            self._posted, self._pause_s = (url, signed), _LOOK_S
        return self._pause_s

    async def _post(self, url: str, signed: SignedHead) -> None:
        if self._client is None:
            self._client = httpx2.AsyncClient()
        await post_head(self._client, url, signed)
