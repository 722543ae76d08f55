"""Watches a fleet from its start on: moving lines on a terminal, one line for each event elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import RenderableType
from rich.live import Live

from tuneplex.app.state import StateDir
from tuneplex.cli.admin import Admin
from tuneplex.cli.logfiles import tail
from tuneplex.cli.news import news, starting
from tuneplex.cli.terminal import Terminal
from tuneplex.errors import EngineStartError, StateError
from tuneplex.types import ReplicaState, ReplicaStatus, Status
from tuneplex.units import format_duration

__all__ = ["Watch"]

_LOOK_S = 0.25
_GLANCE_S = 1.0  # once it is up
_TAIL_LINES = 20


@dataclass
class Watch:
    """One fleet under observation.

    Attributes:
        terminal: Where to tell.
        state: The fleet's state directory.
        check: Called at each look; raises when the fleet's supervisor has ended.
    """

    terminal: Terminal
    state: StateDir
    check: Callable[[], None]
    _last: Status | None = None
    _began: float = field(default_factory=time.monotonic)

    def until_ready(self, timeout_s: float) -> Status:
        """Watch the start until the fleet answers.

        Raises:
            EngineStartError: A replica does not start, the supervisor ended, or the time is over; the tail holds
                the last lines of the log.
            StateError: The supervisor could not start.
        """
        with self._showing() as show:
            while True:
                status = self._look()
                show(status)
                if status is not None and status.ready:
                    return status
                self._refuse_failure(status, timeout_s)
                time.sleep(_LOOK_S)

    def for_ever(self) -> None:
        """Tell what happens, a line each, until the supervisor ends or somebody interrupts.

        Raises:
            EngineStartError: The supervisor ended.
        """
        while True:
            self._tell(self._look())
            time.sleep(_GLANCE_S)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def _look(self) -> Status | None:
        """The fleet as control sees it; None while control starts (or starts again)."""
        self.check()
        try:
            with Admin(self.state.admin_socket) as admin:
                return admin.status()
        except StateError:
            return None

    def _refuse_failure(self, status: Status | None, timeout_s: float) -> None:
        for replica in status.replicas if status else ():
            if _is_hopeless(replica):
                raise EngineStartError(f"{replica.name} does not start: {replica.detail}", tail=_tail(replica))
        if self.elapsed_s > timeout_s:
            words = f"the fleet was not ready within {format_duration(timeout_s)}"
            raise EngineStartError(words, tail=_tail_of_unready(status))

    @contextlib.contextmanager
    def _showing(self) -> Iterator[Callable[[Status | None], None]]:
        if not self.terminal.live:
            yield self._tell
            return
        with Live(console=self.terminal.out, transient=True, get_renderable=self._picture, refresh_per_second=8):
            yield self._remember

    def _picture(self) -> RenderableType:
        return starting(self._last, self.elapsed_s)

    def _remember(self, status: Status | None) -> None:
        self._last = status or self._last

    def _tell(self, status: Status | None) -> None:
        if status is None:
            return
        for line in news(self._last, status):
            self.terminal.say(line)
        self._last = status


def _is_hopeless(replica: ReplicaStatus) -> bool:
    """Whether waiting is in vain: one that ended twice before it was ever ready will do so again.

    Control itself is more patient, because it also looks after fleets that nobody watches.
    """
    return replica.gave_up or (replica.state is ReplicaState.DEAD and replica.restarts > 0)


def _tail_of_unready(status: Status | None) -> str:
    waiting = [replica for replica in status.replicas if replica.state is not ReplicaState.READY] if status else []
    return _tail(waiting[0]) if waiting else ""


def _tail(replica: ReplicaStatus) -> str:
    return "\n".join(tail(Path(replica.log), _TAIL_LINES)) if replica.log else ""
