"""The supervisor's children: each leads a session, holds the lifeline, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from tuneplex.launchers.processes import adopt_orphans, kill_session

__all__ = ["ProcessTable"]


class ProcessTable:
    """Starts children and reaps them.

    Every child inherits the read end of one pipe, the lifeline, whose write end only this process has. When this
    process ends, in whatever way, the kernel closes the write end, and all children read the end of the pipe.
    """

    def __init__(self) -> None:
        self.lifeline, self._life = os.pipe()
        self._children: dict[int, tuple[subprocess.Popen[bytes], Callable[[int], None]]] = {}
        adopt_orphans()

    def start(
        self,
        command: Sequence[str],
        *,
        on_end: Callable[[int], None],
        output: int,
        errors: int = subprocess.STDOUT,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a child; `on_end` gets its exit code (-N for signal N) once it and all of its session are gone.

        Raises:
            OSError: The command cannot be started.
        """
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=env,
            pass_fds=(self.lifeline, *descriptors),
            start_new_session=True,
        )
        self._children[child.pid] = (child, on_end)
        return child

    def signal(self, child: subprocess.Popen[bytes], number: int) -> None:
        """Send a signal to a child whose `on_end` has not been called yet.

        `Popen`'s own methods look first whether it has ended, and would take that from `reap`, which calls `on_end`.
        """
        if child.pid in self._children:  # then its number belongs to nobody else
            os.kill(child.pid, number)

    def reap(self) -> None:
        """Take note of every child that has ended; to be called on SIGCHLD."""
        while (pid := _next_ended()) is not None:
            known = self._children.pop(pid, None)
            if known is None:
                os.waitpid(pid, 0)  # an orphan that came to us when a keeper was killed
                continue
            # It is still a zombie, so its number, which is its session's, belongs to nobody else.
            kill_session(pid, spare={pid, *self._children}, adopted_by=os.getpid())
            child, on_end = known
            on_end(child.wait())

    def kill_all(self) -> None:
        """SIGKILL every child and its session."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            kill_session(pid, spare={pid})


def _next_ended() -> int | None:
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if ended is None else ended.si_pid
