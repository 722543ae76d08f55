"""The keeper: one small process between the supervisor and an engine, so that no part of the engine outlives either.

::

    python -m tuneplex.launchers.keeper --lifeline FD --log FILE --grace SECONDS -- COMMAND...

The supervisor starts it as the leader of a new session. Its engine gets a process group of its own inside that session,
so "everything of the engine" is "everything in the session but the keeper". What ends it:

* The engine's first process ends: the rest of the session is killed, and the keeper exits with the engine's code
  (128 + N for signal N, as a shell says it).
* SIGTERM, or the other end of the lifeline closes: the engine gets SIGTERM, some grace, then the session is killed.
* SIGKILL to the keeper: the kernel ends the engine's first process with it, and the supervisor kills the session.

The engine's output goes to the log, which is bounded in size. The keeper's own output is one line: the engine's pid.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from tuneplex.launchers.logfile import LogFile
from tuneplex.launchers.processes import adopt_orphans, die_with_parent, kill_session

__all__ = ["Keeper", "main"]

_CHUNK = 64 * 1024


class Keeper:
    """Holds one engine from its start until all of it is gone.

    Args:
        engine: Its first process, with `stdout` as a pipe.
        log: Where its output goes.
        lifeline: A descriptor that reads as closed when the supervisor is gone.
        grace_s: What the engine gets between SIGTERM and SIGKILL.
    """

    def __init__(self, engine: subprocess.Popen[bytes], log: LogFile, lifeline: int, grace_s: float) -> None:
        self._engine = engine
        self._log = log
        self._lifeline = lifeline
        self._grace_s = grace_s
        self._deadline: float | None = None
        self._selector = selectors.DefaultSelector()

    def hold(self) -> int:
        """Wait until the engine ends, by itself or because it should, and clean up behind it.

        Returns:
            The engine's exit code, or 128 + N for signal N.
        """
        with self._selector, signals_as_bytes() as wakeup:
            self._selector.register(self._lifeline, selectors.EVENT_READ, self.stop)
            self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._signalled(os.read(wakeup, 256)))
            self._selector.register(_output(self._engine), selectors.EVENT_READ, self._pump)
            while not _has_ended(self._engine.pid):
                self._step()
        self._kill()
        self._drain()
        code = self._engine.wait()
        _reap_orphans()
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """Ask the engine to end; what is still there after the grace is killed."""
        if self._deadline is not None:
            return
        self._deadline = time.monotonic() + self._grace_s
        self._selector.unregister(self._lifeline)  # once closed it would be readable for ever
        self._engine.send_signal(signal.SIGTERM)

    def _step(self) -> None:
        for key, _events in self._selector.select(self._remaining()):
            key.data()
        _reap_orphans(but=self._engine.pid)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill()

    def _kill(self) -> None:
        kill_session(os.getsid(0), spare={os.getpid()}, adopted_by=os.getpid())

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _signalled(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self.stop()

    def _pump(self) -> None:
        output = _output(self._engine)
        data = os.read(output.fileno(), _CHUNK)
        if data:
            self._log.write(data)
        else:
            self._selector.unregister(output)

    def _drain(self) -> None:
        """Keep the engine's last words: they tell why it died."""
        output = _output(self._engine)
        os.set_blocking(output.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(output.fileno(), _CHUNK):
                self._log.write(data)


def main(arguments: Sequence[str]) -> int:
    """Run a keeper from its command line; returns the exit code."""
    options = _parse(arguments)
    os.set_inheritable(options.lifeline, False)
    adopt_orphans()
    log = LogFile(options.log)
    try:
        engine = _start(options.command)
    except OSError as error:
        log.write(f"cannot start {options.command[0]}: {error.strerror}\n".encode())
        return 127
    sys.stdout.write(f"{engine.pid}\n")
    sys.stdout.flush()
    return Keeper(engine, log, options.lifeline, options.grace).hold()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="keeper")
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--grace", type=float, default=10.0)
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - the keeper has one thread, so nothing can hold a lock at the fork
    )


@contextlib.contextmanager
def signals_as_bytes() -> Iterator[int]:
    """Turn SIGTERM, SIGINT and SIGCHLD into bytes on a pipe, so that one `select` waits for everything."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    before = {number: signal.signal(number, _nothing) for number in numbers}
    wakeup = signal.set_wakeup_fd(writer)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Python writes the signal's number to the wake-up descriptor only if it has a handler."""


def _output(engine: subprocess.Popen[bytes]) -> IO[bytes]:
    if engine.stdout is None:
        raise ValueError("the engine was started without a pipe for its output")
    return engine.stdout


def _has_ended(pid: int) -> bool:
    """Whether a child has ended; it stays unreaped, so its number cannot pass to another process yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reap_orphans(*, but: int | None = None) -> None:
    """Reap what the engine left behind as zombies, but not the engine itself."""
    with contextlib.suppress(ChildProcessError):  # there is no child at all
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
