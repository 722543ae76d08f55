"""`restart`: new processes in the place of the old ones, while the fleet runs."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tuneplex.adapters.progress import Progress
from tuneplex.app.state import StateDir
from tuneplex.cli.progress import shown
from tuneplex.cli.terminal import Terminal
from tuneplex.cli.times import seconds
from tuneplex.errors import EngineError, EngineStartError, StateError
from tuneplex.launchers.spawner import Answer, Question, Restart, greeted
from tuneplex.types import Part
from tuneplex.units import format_duration

__all__ = ["restart"]

_NUMBER = 1


def restart(state: StateDir, part: Part, *, timeout: str, drain: str, as_json: bool) -> int:
    """Replace processes one after the other; Ctrl-C leaves of each the old one or the new one.

    Raises:
        UserError: A time is none.
        StateError: The supervisor does not answer.
        EngineError: A new process did not come up, so the old one goes on; or another restart is under way.
    """
    terminal, began = Terminal.standard(), time.monotonic()
    wish = Restart(part, seconds(timeout, "--timeout"), seconds(drain, "--drain"))
    with shown(terminal) as progress, _supervisor(state.supervisor_socket) as supervisor:
        _ask(supervisor, wish, progress)
    took_s = time.monotonic() - began
    if as_json:
        terminal.json({"restarted": part.value, "seconds": round(took_s, 1)})
    else:
        words = "control and gateways" if part is Part.ALL else part.value
        terminal.say(f"{state.path.name}: {words} restarted in {format_duration(took_s)}")
    return 0


@contextlib.contextmanager
def _supervisor(path: Path) -> Iterator[socket.socket]:
    """Talk to the supervisor, whatever becomes of control.

    Raises:
        StateError: It is not there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError as error:
            raise StateError(f"the fleet's supervisor does not answer: {error.strerror}") from error
        yield connection


def _ask(supervisor: socket.socket, wish: Restart, progress: Progress) -> None:
    with supervisor.makefile("rb") as lines:
        greeted(lines.readline())
        supervisor.sendall(msgspec.json.encode(Question(_NUMBER, wish)) + b"\n")
        for line in lines:
            answer = msgspec.json.decode(line, type=Answer)
            if answer.number == _NUMBER and answer.step:
                progress.step(answer.step)
            elif answer.number == _NUMBER:
                return _judge(answer)
    raise EngineError("the fleet ended meanwhile")


def _judge(answer: Answer) -> None:
    if answer.tail:
        raise EngineStartError(answer.error, tail=answer.tail)
    if answer.error:
        raise EngineError(answer.error)
