"""The control process, started by the supervisor.

::

    python -m tuneplex.app.control_process --state-dir DIR --lifeline FD [--ready FD]

Only one control acts at a time: it waits for a lock that another one may hold. With `--ready` it says when it has come
so far that the other one can end, and once more when it has taken over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn

from tuneplex.app.alive import end_when_hanging
from tuneplex.app.lifeline import watch_lifeline
from tuneplex.app.logs import log_as
from tuneplex.app.state import StateDir
from tuneplex.app.trial import Trial
from tuneplex.control import (
    Controller,
    Counting,
    Deploying,
    Dividing,
    Expiry,
    Holds,
    Leasing,
    Questions,
    Recording,
    Registry,
    Tally,
    admin_app,
)
from tuneplex.errors import TuneplexError
from tuneplex.feed.sockets import private_socket
from tuneplex.launchers.external import ExternalLauncher
from tuneplex.launchers.local import LocalLauncher, inheritable
from tuneplex.launchers.machine import survey
from tuneplex.launchers.spawner import Spawner, connect
from tuneplex.log import get_logger
from tuneplex.records import Store

__all__ = ["main"]

_NAME = "tuneplex.app.control_process"  # it runs as `__main__`
_PATIENCE_S = 60.0  # with an event loop that stands still
_LOOK_S = 0.02


def main(arguments: Sequence[str]) -> int:
    """Run control from its command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="control")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--ready", type=int)
    options = parser.parse_args(arguments)
    log_as("control", StateDir(options.state_dir))
    try:
        asyncio.run(_run(StateDir(options.state_dir), options, os.environ))
    except TuneplexError as error:
        get_logger(_NAME).critical("control ends", error=error)
        return 1
    return 0


async def _run(state: StateDir, options: argparse.Namespace, env: Mapping[str, str]) -> None:
    stop = asyncio.Event()
    watch_lifeline(options.lifeline, stop.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with Trial(options.ready) as trial:
        async with connect(state.supervisor_socket) as spawner:
            state.read_spec()
            trial.say("prepared")
            if await _alone(state, stop):
                await _act(state, spawner, env, stop, trial)


async def _alone(state: StateDir, stop: asyncio.Event) -> bool:
    """Wait until no other control acts; whether that came before the end."""
    while not stop.is_set():
        if state.try_control_lock() is not None:
            return True
        await asyncio.sleep(_LOOK_S)
    return False


async def _act(state: StateDir, spawner: Spawner, env: Mapping[str, str], stop: asyncio.Event, trial: Trial) -> None:
    controller = _controller(state, spawner, env)
    registry = _registry(state, controller)
    info = state.supervisor()
    leasing = Leasing(controller, registry, fleet_started=info.started if info else 0.0)
    questions = Questions(Store(state.store_url(controller.spec)))
    recording = Recording(state.journal, state.audit, controller, registry, questions)
    deploying = Deploying(state.versions_file, controller, registry, questions, recording.acted)
    recording.heard = deploying.rollouts.heard
    deploying.catalog.open()
    async with (
        controller.publisher.listening(state.feed_socket),
        _admin(controller, registry, leasing, state, recording, deploying=deploying),
        asyncio.TaskGroup() as group,
    ):
        runs = (
            controller.run(),
            registry.run(),
            Dividing(controller, registry).run(),
            recording.run(),
            deploying.run(),
            Expiry(registry, lambda: controller.spec).run(),
            end_when_hanging(_PATIENCE_S),
            _tell(controller, trial),
        )
        loops = [group.create_task(run) for run in runs]
        # These keep their last counts, by the registry.
        counting = [group.create_task(run) for run in (leasing.run(), Counting(controller, registry).run())]
        await stop.wait()
        for task in counting:
            task.cancel()
        await asyncio.wait(counting)
        for loop in loops:
            loop.cancel()


async def _tell(controller: Controller, trial: Trial) -> None:
    while not controller.view.models:  # noqa: ASYNC110 - it is waited for only once
        await asyncio.sleep(_LOOK_S)
    trial.say("serving")
    trial.close()


def _controller(state: StateDir, spawner: Spawner, env: Mapping[str, str]) -> Controller:
    info = state.supervisor()
    started = info.started if info else 0.0
    local = LocalLauncher(
        spawner, sockets=state.run_directory, logs=state.logs, machine=survey(env), env=inheritable(env)
    )
    started = info.started if info else 0.0
    return Controller(
        state.read_spec(),
        applied_at=state.fleet_file.stat().st_mtime,
        url=info.url if info else "",
        started=started,
        holds=Holds(state.holds_file, started),
        tally=Tally(state.tally_file, started),
        gateways=lambda: spawner.gateways,
        launchers={"local": local, "external": ExternalLauncher()},
    )


def _registry(state: StateDir, controller: Controller) -> Registry:
    return Registry(
        Store(state.store_url(controller.spec)),
        snapshot=state.access_file,
        publish=controller.publisher.publish,
        file=None if controller.spec.store else state.store_file,
    )


@contextlib.asynccontextmanager
async def _admin(
    controller: Controller,
    registry: Registry,
    leasing: Leasing,
    state: StateDir,
    recording: Recording,
    *,
    deploying: Deploying,
) -> AsyncIterator[None]:
    """Serve the admin API for as long as the block runs."""
    app = admin_app(controller, registry, leasing, state.write_spec, recording, deploying=deploying)
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None, ws="none")
    server = _Server(config)
    with private_socket(state.admin_socket) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving
            recording.questions.close()


class _Server(uvicorn.Server):
    """A uvicorn server that leaves the signals to the process it is a part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
