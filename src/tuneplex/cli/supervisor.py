"""The supervisor as a child of this command: start it, see it end, end it for sure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tuneplex.app.cache_users import note_user
from tuneplex.app.prepare import cache_dir
from tuneplex.app.state import StateDir
from tuneplex.cli.terminal import Terminal
from tuneplex.errors import EngineStartError, StateError
from tuneplex.launchers.logfile import read_tail
from tuneplex.types import FleetSpec

__all__ = ["GRACE_S", "ChildSupervisor", "end", "refuse_running", "started", "write"]

GRACE_S = 60.0  # gateways finish their streams, then control, then the engines end
_LOOK_S = 0.05
_KILLED_S = 5.0
_TAIL = 4096
_USER_ERROR = 2


class ChildSupervisor:
    """A supervisor that this command started.

    Args:
        state: Where it keeps its state; `fleet.json` must be there.
        foreground: End the fleet when this process ends, however it ends: the supervisor holds the reading end of a
            pipe, and the system closes the writing end with us.
    """

    def __init__(self, state: StateDir, *, foreground: bool) -> None:
        self.state = state
        self._words = state.path / "supervisor.err"  # what it says before it has its log
        self._lifeline: int | None = None
        self._process = self._start(foreground=foreground)

    def _start(self, *, foreground: bool) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tuneplex.app.supervisor", "--state-dir", str(self.state.path)]
        if not foreground:
            return self._spawn(command, ())
        reading, self._lifeline = os.pipe()
        try:
            return self._spawn([*command, "--lifeline", str(reading)], (reading,))
        finally:
            os.close(reading)

    def _spawn(self, command: list[str], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C goes to this command alone, which then ends the fleet in order.
        with self._words.open("wb") as words:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                pass_fds=descriptors,
                start_new_session=True,
            )

    def check(self) -> None:
        """Do nothing while it lives.

        Raises:
            StateError: It could not start, and says why.
            EngineStartError: It ended; the tail is the last that it wrote.
        """
        code = self._process.poll()
        if code is None:
            return
        words = read_tail(self._words, _TAIL).strip()
        if code == _USER_ERROR and words:
            message, _, hint = words.removeprefix("tuneplex: ").partition("\n")
            raise StateError(message, hint=hint.strip())
        tail = words or read_tail(self.state.logs / "supervisor.log", _TAIL).strip()
        raise EngineStartError(f"the fleet's supervisor ended with exit code {code}", tail=tail)

    def stop(self, grace_s: float) -> bool:
        """End the fleet in order, or at once when that takes too long; whether it ended in order.

        Whatever interrupts the wait, a second Ctrl-C above all, ends the fleet at once, too.
        """
        try:
            self._terminate()
            in_order = self._wait(grace_s)
            if not in_order:
                self._kill()
        except BaseException:
            self._kill()
            raise
        finally:
            self.release()
            _clean_up(self.state)
        return in_order

    def _terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def _wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _kill(self) -> None:
        """A second SIGTERM asks the supervisor to end all at once; SIGKILL makes its keepers do it."""
        self._terminate()
        if not self._wait(_KILLED_S):
            self._process.kill()
            self._process.wait()

    def release(self) -> None:
        """Give the lifeline back: from now on a foreground fleet ends by itself."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


@contextmanager
def started(state: StateDir, spec: FleetSpec) -> Iterator[ChildSupervisor]:
    """A fleet that runs while the block does, and of which nothing is left afterwards.

    Raises:
        StateError: It runs already, or cannot start.
    """
    write(state, spec)
    child = ChildSupervisor(state, foreground=True)
    try:
        yield child
    finally:
        child.stop(GRACE_S)


def write(state: StateDir, spec: FleetSpec) -> None:
    """Write the fleet into a state directory in which none runs, and see that it can read its tenants and keys.

    Raises:
        StateError: One does, or the store cannot be used.
    """
    from tuneplex.app.store_ready import prepare_store  # noqa: PLC0415 - only a start pays for loading the database

    refuse_running(state, spec.name)
    state.create()
    note_user(cache_dir(), state)
    state.write_spec(spec)  # first, so that `tuneplex store` finds the store that cannot be used
    if words := prepare_store(state, spec):
        Terminal.standard().warn(words)


def refuse_running(state: StateDir, name: str) -> None:
    """Refuse to start what runs.

    Raises:
        StateError: A fleet runs in the directory.
    """
    if state.is_locked():
        hint = "bring a changed file live with `tuneplex apply FLEET`, or end it with `tuneplex down`"
        raise StateError(f"the fleet {name!r} runs already ({state.path})", hint=hint)


def end(state: StateDir, grace_s: float) -> bool:
    """End a fleet that another command started; whether it ended in order.

    Raises:
        StateError: It is not up yet.
    """
    info = state.supervisor()
    if info is None:
        raise StateError(f"the fleet in {state.path} is just starting", hint="try again in a moment")
    steps = ((signal.SIGTERM, grace_s), (signal.SIGTERM, _KILLED_S), (signal.SIGKILL, _KILLED_S))
    for step, (number, seconds) in enumerate(steps):
        with contextlib.suppress(ProcessLookupError):
            os.kill(info.pid, number)
        if _unlocked(state, seconds):
            _clean_up(state)
            return step == 0
    return False


def _clean_up(state: StateDir) -> None:
    """Remove the run directory that a killed supervisor leaves behind."""
    if not state.is_locked():
        state.close_run()


def _unlocked(state: StateDir, seconds: float) -> bool:
    """Wait until the lock is free: the supervisor holds it as long as it lives, whatever becomes of its pid."""
    deadline = time.monotonic() + seconds
    while state.is_locked():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
