"""Processes that are started for a benchmark, and end with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import IO

__all__ = ["end", "free_ports", "start", "tail"]

_GRACE_S = 3.0
_LOG_TAIL = 2000


def start(command: Sequence[str], log: IO[bytes], pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """A process that leads a group of its own, so that a Ctrl-C in the terminal is for us alone to pass on."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=pass_fds,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, wait, then kill its whole group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: IO[bytes]) -> str:
    """The end of what it wrote."""
    log.seek(0)
    return log.read()[-_LOG_TAIL:].decode(errors="replace")


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now; all are held until the last one is found, so they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
