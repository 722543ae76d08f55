"""`up` and `down`: start a fleet and watch it, or end it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tuneplex import fleetfile
from tuneplex.app.prepare import prepare
from tuneplex.app.state import StateDir, default_path
from tuneplex.cli import supervisor
from tuneplex.cli.ports import refuse_taken
from tuneplex.cli.progress import shown
from tuneplex.cli.render import welcome
from tuneplex.cli.supervisor import ChildSupervisor
from tuneplex.cli.terminal import Terminal
from tuneplex.cli.times import seconds
from tuneplex.cli.watch import Watch
from tuneplex.control.snapshot import read_snapshot
from tuneplex.types import FleetSpec, Listen

__all__ = ["Stopped", "down", "say_stopping", "stopping", "up"]


class Stopped(BaseException):
    """A signal asks this command to end; like KeyboardInterrupt it is not an error that anybody should handle.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """While the block runs, Ctrl-C, SIGTERM and a terminal that goes away raise `Stopped`."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def up(fleet: Path, *, state_dir: Path | None, detach: bool, timeout: str) -> int:
    """Start a fleet; without `detach` stay until something ends it.

    Raises:
        UserError: The fleet file, a source or this machine does not allow it; nothing was started.
        EngineError: It did not become ready; nothing is left running.
    """
    terminal = Terminal.standard()
    timeout_s = seconds(timeout, "--timeout")
    try:
        with stopping():
            state = _vacant(fleet, state_dir)
            with shown(terminal) as progress:
                spec = prepare(fleet, progress)
            return (
                _detached(terminal, state, spec, timeout_s) if detach else _attached(terminal, state, spec, timeout_s)
            )
    except Stopped as stopped:
        return stopped.exit_code


def _vacant(fleet: Path, state_dir: Path | None) -> StateDir:
    """Where the fleet's state belongs; what would stop its start is said before anything is fetched.

    Raises:
        FleetFileError: The file is wrong.
        StateError: The fleet runs already, or another program has its port.
    """
    file = fleetfile.load(fleet)
    name = file.name or ""
    state = StateDir((state_dir or default_path(name)).absolute())
    supervisor.refuse_running(state, name)
    refuse_taken(Listen(host=file.gateway.host, port=file.gateway.port))
    return state


def _attached(terminal: Terminal, state: StateDir, spec: FleetSpec, timeout_s: float) -> int:
    with supervisor.started(state, spec) as child:
        watch = Watch(terminal, state, child.check)
        try:
            status = watch.until_ready(timeout_s)
            terminal.show(welcome(status, spec, watch.elapsed_s, "Ctrl-C", keys=_has_keys(state)))
            watch.for_ever()
        except Stopped:
            say_stopping(terminal)
            raise
    return 0


def say_stopping(terminal: Terminal) -> None:
    """Tell that the end has begun."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        terminal.note("stopping the fleet (Ctrl-C again: at once)")


def _detached(terminal: Terminal, state: StateDir, spec: FleetSpec, timeout_s: float) -> int:
    """Start a fleet that outlives this command; one that does not become ready is ended."""
    supervisor.write(state, spec)
    child = ChildSupervisor(state, foreground=False)
    try:
        watch = Watch(terminal, state, child.check)
        status = watch.until_ready(timeout_s)
    except BaseException:
        child.stop(supervisor.GRACE_S)
        raise
    terminal.show(welcome(status, spec, watch.elapsed_s, "tuneplex down", keys=_has_keys(state)))
    return 0


def _has_keys(state: StateDir) -> bool:
    """Whether tenants have ever been given keys, as far as control has written it down."""
    access = read_snapshot(state.access_file)
    return access is not None and access.required


def down(state: StateDir, *, timeout: str) -> int:
    """End a running fleet.

    Raises:
        StateError: None runs there.
    """
    terminal = Terminal.standard()
    in_order = supervisor.end(state, seconds(timeout, "--timeout"))
    name = state.path.name
    terminal.say(f"{name}: ended" if in_order else f"{name}: ended at once, because it took longer than {timeout}")
    return 0
