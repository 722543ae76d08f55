"""Run another program to its end, watch its lines, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Finished", "run"]

_TICK_S = 0.25
_TAIL_LINES = 30


@dataclass(frozen=True)
class Finished:
    """How a program ended.

    Attributes:
        code: Its exit status; negative for the signal that killed it.
        tail: Its last lines, standard output and error together.
    """

    code: int
    tail: str


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
) -> Finished:
    """Run `argv` until it ends; whatever interrupts the wait kills it with all its children.

    Args:
        argv: The program and its arguments; no shell is involved.
        env: Its whole environment.
        on_line: Gets each line of output, without the line end.
        on_tick: Is called a few times a second while the program runs.

    Raises:
        OSError: The program cannot be started.
    """
    process = subprocess.Popen(
        [str(part) for part in argv],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def take(line: str) -> None:
        tail.append(line)
        if on_line is not None:
            on_line(line)

    try:
        _watch(process, take, on_tick)
        code = process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
    return Finished(code, "\n".join(tail))


def _watch(
    process: subprocess.Popen[bytes], on_line: Callable[[str], None], on_tick: Callable[[], None] | None
) -> None:
    """Hand over lines and ticks until the program closes its output."""
    if process.stdout is None:
        return
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if on_tick is not None:
                on_tick()
            if not selector.select(_TICK_S):
                continue
            block = os.read(process.stdout.fileno(), 65536)
            *lines, pending = (pending + block).replace(b"\r", b"\n").split(b"\n")
            for line in lines if block else [*lines, pending]:
                if line.strip():
                    on_line(line.decode(errors="replace").rstrip())
            if not block:
                return
