"""The supervisor: owns the listening socket and the process tree, and starts again what dies.

::

    python -m tuneplex.app.supervisor --state-dir DIR [--lifeline FD]

It reads `fleet.json` in the state directory, binds, writes `supervisor.json`, and runs until SIGTERM or SIGINT, or
until the other end of the lifeline closes. Then: gateways finish their streams within a bounded time, control ends,
engines end, the run directory is removed, exit code 0. A second signal kills everything at once (exit code 130).
SIGHUP replaces the gateways, like `tuneplex restart gateways`.
If it cannot start, it says why on stderr and exits with code 2.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tuneplex.app.crew import Crew
from tuneplex.app.keepers import Keepers
from tuneplex.app.listener import bind, public_url
from tuneplex.app.logs import log_to
from tuneplex.app.process_table import ProcessTable
from tuneplex.app.services import Service
from tuneplex.app.state import StateDir, SupervisorInfo
from tuneplex.app.wishes import WishServer
from tuneplex.errors import TuneplexError, UserError
from tuneplex.launchers.spawner import Restart
from tuneplex.log import get_logger
from tuneplex.types import Listen, Part

__all__ = ["Supervisor", "main"]

_NAME = "tuneplex.app.supervisor"  # it runs as `__main__`
_KILLED = 130


class Supervisor:
    """Runs one fleet's processes.

    Args:
        state: The fleet's directory, locked by this process.
        listen: Where the gateways listen, and how many there are.
        listener: The bound socket.
    """

    def __init__(self, state: StateDir, listen: Listen, listener: socket.socket) -> None:
        self._state = state
        self._listener = listener
        self._table = ProcessTable()
        self._keepers = Keepers(self._table)
        self._crew = Crew(self._control, partial(self._gateway, listen), gateways=listen.gateways)
        self._wishes = WishServer(self._keepers, self._crew)
        self._hung_up: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._was_signalled = False

    async def run(self, lifeline: int | None) -> None:
        """Run until something asks for the end; everything is gone when this returns."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._table.reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        if lifeline is not None:
            loop.add_reader(lifeline, self._lifeline_closed, lifeline)
        async with self._wishes.listening(self._state.supervisor_socket):
            self._crew.start()
            await self._stop.wait()
            await self._end()

    def _service(self, name: str, module: str, arguments: Sequence[str], descriptors: Sequence[int] = ()) -> Service:
        command = [sys.executable, "-m", module, "--state-dir", str(self._state.path)]
        lifeline = ["--lifeline", str(self._table.lifeline)]
        return Service(
            name,
            [*command, *lifeline, *arguments],
            table=self._table,
            logs=self._state.logs,
            descriptors=descriptors,
        )

    def _control(self) -> Service:
        return self._service("control", "tuneplex.app.control_process", ())

    def _gateway(self, listen: Listen, index: int, name: str) -> Service:
        arguments = ["--index", str(index), "--name", name, "--listener", str(self._listener.fileno())]
        if listen.tls_cert and listen.tls_key:
            arguments += ["--tls-cert", listen.tls_cert, "--tls-key", listen.tls_key]
        return self._service(name, "tuneplex.app.gateway_process", arguments, (self._listener.fileno(),))

    def _hang_up(self) -> None:
        self._hung_up = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        log = get_logger(_NAME)
        try:
            await self._crew.restart(Restart(Part.GATEWAYS), lambda step: log.info("a step after SIGHUP", step=step))
        except TuneplexError as error:
            log.warning("a restart after SIGHUP failed", error=error)

    def _lifeline_closed(self, lifeline: int) -> None:
        asyncio.get_running_loop().remove_reader(lifeline)
        self._stop.set()

    def _signalled(self) -> None:
        if self._was_signalled:  # whoever asks again does not want to wait
            self._table.kill_all()
            self._state.close_run()
            os._exit(_KILLED)
        self._was_signalled = True
        self._stop.set()

    async def _end(self) -> None:
        """Take the fleet down from the outside in: streams need their engines until the last token."""
        self._listener.close()
        await self._crew.end()
        await self._keepers.stop_all()


def main(arguments: Sequence[str]) -> int:
    """Run the supervisor from its command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="supervisor")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--lifeline", type=int)
    options = parser.parse_args(arguments)
    state = StateDir(options.state_dir)
    try:
        state.create()
        state.lock()
        _serve(state, options.lifeline)
    except UserError as error:
        sys.stderr.write(f"tuneplex: {error}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return 2
    return 0


def _serve(state: StateDir, lifeline: int | None) -> None:
    spec = state.read_spec()
    listener = bind(spec.listen)
    try:
        log_to(state.logs / "supervisor.log", "supervisor", spec.logs)
        state.open_run()
        info = SupervisorInfo(os.getpid(), time.time(), public_url(spec.listen, listener))
        state.write_supervisor(info)
        asyncio.run(_run(state, spec.listen, listener, lifeline))
    finally:
        listener.close()
        state.close_run()


async def _run(state: StateDir, listen: Listen, listener: socket.socket, lifeline: int | None) -> None:
    await Supervisor(state, listen, listener).run(lifeline)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
