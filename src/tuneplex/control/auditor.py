"""Writes the audit log: from the gateways' journals who reached what, and from control itself who changed what."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tuneplex.control.heads import Heads
from tuneplex.errors import AuditError
from tuneplex.journal import Entered, Finished, Lost, Numbered, Opened, Replay
from tuneplex.log import get_logger
from tuneplex.records.audit import CONTROL, AuditEvent, AuditLog, SignedHead, checkpoint_due
from tuneplex.types import Keeping

__all__ = ["Auditor"]

_log = get_logger(__name__)
T = TypeVar("T")
_LOOK_S = 1.0
_PATIENCE_S = 5.0  # with the control that was before
_OWN_S = 2.0  # for one event; whoever changes something waits for it
_RETAIN_S = 3600.0
_MOST_PENDING = 10_000
_REFUSED = "rejected"


class Auditor:
    """Makes events of entries, see `journals.Taker`; the log itself is written by a thread of its own.

    Args:
        directory: Where the log lies.
        base: Tells the name of the base.
        settings: Tells how it is kept.
    """

    name = "the audit log"

    def __init__(self, directory: Path, *, base: Callable[[], str], settings: Callable[[], Keeping]) -> None:
        self._directory = directory
        self._base = base
        self._settings = settings
        self._opened: AuditLog | None = None
        self._thread = ThreadPoolExecutor(1, "audit")
        self._replays: dict[str, Replay] = {}
        self._numbers: dict[str, int] = {}
        self._taken: list[AuditEvent] = []
        self._own: list[AuditEvent] = []
        self._own_lock = threading.Lock()
        self._dropped = 0
        self._gone: list[str] = []
        self._retained = float("-inf")
        self._signed: SignedHead | None = None
        self._heads = Heads(settings, lambda: self._signed)

    # --- journals

    def take(self, journal: str, entries: Sequence[Numbered]) -> None:
        """Take the next entries of a journal."""
        replay = self._replays.setdefault(journal, Replay(journal))
        for one in entries:
            self._miss(journal, one)
            finished = replay.take(one.number, one.entry)
            self._taken.extend(self._events(journal, one, finished))
            self._numbers[journal] = one.number

    def end(self, journal: str) -> None:
        """The journal's process has ended."""
        replay, number = self._replays.pop(journal, None), self._numbers.pop(journal, 0)
        for at, finished in enumerate(replay.abandon() if replay is not None else (), number + 1):
            self._taken.append(self._over(journal, at, finished))

    def gone(self, journal: str) -> None:
        """The journal has been removed: before that, another control could read it again."""
        self._gone.append(journal)

    async def keep(self) -> None:
        """Write all that was taken.

        Raises:
            AuditError: It cannot be written now.
        """
        if self._taken:
            await self._append(self._taken)
            self._taken = []

    def _miss(self, journal: str, one: Numbered) -> None:
        """Say so where entries could not be read."""
        expected = self._numbers.get(journal, one.number - 1) + 1
        if one.number > expected:
            count, at = one.number - expected, time.time()
            lost = AuditEvent(source=journal, seq=one.number - 1, at=at, event="lost", count=count)
            self._taken.append(lost)

    def _events(self, journal: str, one: Numbered, finished: Finished | None) -> Iterator[AuditEvent]:
        entry = one.entry
        if finished is not None:
            yield self._over(journal, one.number, finished)
        elif isinstance(entry, Opened | Entered) and not entry.carried:
            yield self._admitted(journal, one.number, entry)
        elif isinstance(entry, Lost):
            yield AuditEvent(source=journal, seq=one.number, at=entry.at, event="lost", count=entry.count)

    def _admitted(self, journal: str, number: int, entry: Opened | Entered) -> AuditEvent:
        return AuditEvent(
            source=journal,
            seq=number,
            at=entry.at,
            event="admitted",
            request_id=entry.request_id,
            tenant=entry.tenant,
            key_id=entry.key_id,
            action=entry.route,
            model=entry.model,
            version=entry.version,
            base=self._base(),
            replica=entry.replica if isinstance(entry, Opened) else "",
            attempt=entry.attempt if isinstance(entry, Opened) else 0,
            decision="allow",
        )

    def _over(self, journal: str, number: int, one: Finished) -> AuditEvent:
        refused = one.outcome == _REFUSED
        return AuditEvent(
            source=journal,
            seq=number,
            at=one.closed,
            event="refused" if refused else "completed",
            request_id=one.request_id,
            tenant=one.tenant,
            key_id=one.key_id,
            action=one.route,
            model=one.model,
            version=one.version,
            base=self._base(),
            replica=one.replica,
            attempt=len(one.attempts),
            decision="deny" if refused else "allow",
            rule=one.code,
            status=one.status,
            outcome=one.outcome,
            prompt=one.prompt,
            completion=one.completion,
            estimated=one.estimated,
            count=one.count if one.count > 1 else 0,
        )

    # --- what control does itself

    async def note(self, event: AuditEvent) -> None:
        """Write an event of control's own.

        Raises:
            AuditError: It cannot be written.
        """
        await self._append([event])

    async def acted(self, actor: str, action: str, *, status: int, details: dict[str, str]) -> None:
        """Somebody has changed something, or has tried to; it is written now, or else soon."""
        event = AuditEvent(
            source=CONTROL,
            seq=0,
            at=time.time(),
            event="control",
            actor=actor,
            action=action,
            status=status,
            details=dict(details),
        )
        self._add_own(event)
        try:
            async with asyncio.timeout(_OWN_S):
                await self._call(self._write_own)
        except (AuditError, TimeoutError) as error:
            _log.warning("a change is not in the audit log yet", action=action, why=str(error) or "it takes long")
        except Exception:  # noqa: BLE001 - what was changed is changed
            _log.exception("a change is not in the audit log yet", action=action)

    def _add_own(self, event: AuditEvent) -> None:
        with self._own_lock:
            if len(self._own) < _MOST_PENDING:
                self._own.append(event)
            else:
                self._dropped += 1

    async def run(self) -> None:
        """Write control's own events, sign, drop what is old, and post heads, until cancelled; then close the log."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                group.create_task(self._heads.run())
        finally:
            await self._close()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._look()
            except AuditError as error:
                _log.warning("the audit log has to wait", why=str(error))
            except Exception:  # noqa: BLE001 - the fleet must not depend on its records
                _log.exception("the audit log could not be looked after")

    async def _look(self) -> None:
        await self._call(self._write_own)
        await self._forget()
        now = time.time()
        self._signed = await self._call(lambda log: _signed(log, now))
        if not 0 <= now - self._retained < _RETAIN_S:
            self._retained = now
            await self._call(lambda log: log.retain(self._settings().audit_s, now))

    async def _forget(self) -> None:
        gone, self._gone = self._gone, []
        if gone:
            await self._call(lambda log: log.forget(gone))

    def _write_own(self, log: AuditLog) -> None:
        """In the thread that writes: what is not written stays, and nothing is written twice when nobody waits."""
        with self._own_lock:
            own, dropped = list(self._own), self._dropped
        lost = [AuditEvent(source=CONTROL, seq=0, at=time.time(), event="lost", count=dropped)] if dropped else []
        if not own and not lost:
            return
        log.append([*own, *lost])
        with self._own_lock:
            del self._own[: len(own)]
            self._dropped -= dropped

    async def _close(self) -> None:
        """In the thread that writes, behind all that it still does."""
        self._thread.submit(self._write_last)
        await asyncio.to_thread(self._thread.shutdown)

    def _write_last(self) -> None:
        if self._opened is None and not self._own:
            return
        try:
            self._write_own(self._log())
        except AuditError as error:
            _log.warning("the last events are not in the audit log", events=len(self._own), why=str(error))
        if self._opened is not None:
            self._opened.close()

    # --- the log

    async def _append(self, events: Sequence[AuditEvent]) -> None:
        await self._call(lambda log: log.append(events))

    async def _call(self, work: Callable[[AuditLog], T]) -> T:
        """Do something with the log, in the one thread that does."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(self._log()))

    def _log(self) -> AuditLog:
        """The log, opened when it is needed: control must not depend on it."""
        if self._opened is None:
            self._opened = AuditLog(self._directory, patience_s=_PATIENCE_S)
        return self._opened


def _signed(log: AuditLog, now: float) -> SignedHead:
    """The newest checkpoint, made now if it is time for one."""
    return log.checkpoint() if checkpoint_due(now, log.signed.at, wrote=log.unsigned > 0) else log.signed
