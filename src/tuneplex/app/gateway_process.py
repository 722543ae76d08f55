"""A gateway process, started by the supervisor.

::

    python -m tuneplex.app.gateway_process --state-dir DIR --lifeline FD --index N --name NAME --listener FD
        [--tls-cert FILE --tls-key FILE] [--ready FD]

With `--ready` it takes the place of another gateway: it serves nobody before it knows all that the other one knows and
has its share of every limit, and then says so. On SIGUSR1 another one has taken its place: it accepts nothing more and
ends when all that it has is finished. On SIGTERM it gives the replies under way only some time to finish. When the
supervisor is gone it ends at once: its engines end, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from tuneplex.app.control_client import ControlClient
from tuneplex.app.lifeline import watch_lifeline
from tuneplex.app.logs import log_as
from tuneplex.app.state import StateDir
from tuneplex.app.trial import Trial
from tuneplex.errors import TuneplexError
from tuneplex.feed import Subscriber
from tuneplex.gateway import Gateway, Replies, serve
from tuneplex.identity import Access
from tuneplex.journal import Journal
from tuneplex.log import get_logger
from tuneplex.policy import MINUTE_S
from tuneplex.types import FleetView, GatewayReport, Leases, Stage

__all__ = ["main"]

_NAME = "tuneplex.app.gateway_process"  # it runs as `__main__`
_DRAIN_S = 15
_SWITCH_S = 0.0005  # a thread that computes lets go of the interpreter as soon as the event loop wants it
_FIRST_NEWS_S = 5.0
_FIRST_LEASES_S = 3.0
_LAST_WORDS_S = 10.0


def main(arguments: Sequence[str]) -> int:
    """Run a gateway from its command line; returns the exit code."""
    options = _parse(arguments)
    log_as(options.name, StateDir(options.state_dir))
    os.set_inheritable(options.listener, False)
    if options.ready is not None:
        os.set_inheritable(options.ready, False)
    sys.setswitchinterval(_SWITCH_S)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # prompts are counted by one thread, not by one per core
    uvloop.run(_run(options, StateDir(options.state_dir)))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gateway")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--tls-cert")
    parser.add_argument("--tls-key")
    parser.add_argument("--ready", type=int)
    return parser.parse_args(arguments)


class _Process:
    """What goes on around the gateway: what it was told, and the stage that it is in."""

    def __init__(self, options: argparse.Namespace, state: StateDir, control: ControlClient) -> None:
        self._options = options
        replies = Replies(state.replies, str(state.replies_socket(options.index)))
        name = f"{options.name}-{time.time_ns():x}-{secrets.token_hex(3)}"
        self._journal = Journal(state.journal, name, fleet=_fleet(state))
        self._gateway = Gateway(
            options.index,
            metrics_source=control.metrics,
            admin=control.admin,
            replies=replies,
            journal=self._journal,
        )
        self._viewed, self._admitted, self._leased = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._welcome = asyncio.Event()
        self._stop, self._leave = asyncio.Event(), asyncio.Event()
        self._stage = Stage.SERVING if options.ready is None else Stage.JOINING
        self._subscriber = Subscriber(
            state.feed_socket,
            on_view=self._take_view,
            on_access=self._take_access,
            on_leases=self._take_leases,
            on_turns=self._gateway.update_turns,
            on_lost=self._gateway.control_lost,
            report=self._report,
        )

    async def run(self) -> None:
        """Serve until the end; what control hears last is a report."""
        async with self._gateway.idempotency.listening(), asyncio.TaskGroup() as group:
            feeding = group.create_task(self._subscriber.run())
            await self._serve()
            feeding.cancel()
        await asyncio.to_thread(self._journal.close)
        if self._journal.lost:
            get_logger(__name__).error("entries of the journal are lost", entries=self._journal.lost)

    def _take_view(self, view: FleetView) -> None:
        self._gateway.update(view)
        self._viewed.set()

    def _take_access(self, access: Access) -> None:
        self._gateway.update_access(access)
        self._admitted.set()

    def _take_leases(self, leases: Leases) -> None:
        self._gateway.update_leases(leases)
        self._leased.set()
        if self._options.index in leases.welcome:
            self._welcome.set()

    def _report(self) -> GatewayReport:
        report, sharing = self._gateway.report(), self._gateway.view.gateways
        return msgspec.structs.replace(report, name=self._options.name, stage=self._stage, sharing=sharing)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGUSR1, self._begin_to_leave)
        serving = asyncio.create_task(self._when_told())
        watch_lifeline(self._options.lifeline, serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    def _begin_to_leave(self) -> None:
        self._enter(Stage.DRAINING)
        self._leave.set()

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._subscriber.hurry()

    async def _when_told(self) -> None:
        """Take no request before there is all that is needed to answer it; until then they wait in the queue."""
        options, gateway = self._options, self._gateway
        if options.ready is None:
            await self._told()
        else:
            await self._welcomed(options.ready)
        listener = socket.socket(fileno=options.listener)
        stop, leave = self._stop, self._leave
        cert, key = options.tls_cert, options.tls_key
        await serve(gateway, listener, tls_cert=cert, tls_key=key, stop=stop, leave=leave, drain_s=_DRAIN_S)
        if leave.is_set():
            await self._last_words()

    async def _told(self) -> None:
        """Nobody else serves meanwhile, so this does not wait for ever."""
        await _all((self._viewed, self._admitted), _FIRST_NEWS_S)
        await self._gateway.counter.loaded()
        if self._gateway.limited:  # of a day's limit, another process may have used something before
            await _all((self._leased,), _FIRST_LEASES_S)

    async def _welcomed(self, ready: int) -> None:
        """Another one serves until this one has everything; the supervisor knows for how long that may take."""
        for news, words in ((self._viewed, "the fleet"), (self._admitted, "its keys"), (self._welcome, "its shares")):
            get_logger(_NAME).info(f"waits for control to tell {words}")
            await news.wait()
        await self._gateway.counter.loaded()
        _check_tls(self._options)
        self._enter(Stage.SERVING)
        with Trial(ready) as trial:
            trial.say("ready")

    async def _last_words(self) -> None:
        """What it has let in counts for limits by the minute until that is over, and control must hear it all."""
        if self._gateway.report().used:
            await _all((self._stop,), MINUTE_S + 1)
        await _all((self._subscriber.connected,), _LAST_WORDS_S)


def _fleet(state: StateDir) -> str:
    """Its name, which is only for people who look into the journal."""
    try:
        return state.read_spec().name
    except TuneplexError:
        return ""


async def _all(news: Sequence[asyncio.Event], patience_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            for one in news:
                await one.wait()


def _check_tls(options: argparse.Namespace) -> None:
    """Fail before the other gateway is told to leave.

    Raises:
        OSError: The certificate or its key cannot be used.
    """
    if options.tls_cert:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(options.tls_cert, options.tls_key)


async def _run(options: argparse.Namespace, state: StateDir) -> None:
    async with ControlClient(state.admin_socket) as control:
        await _Process(options, state, control).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
