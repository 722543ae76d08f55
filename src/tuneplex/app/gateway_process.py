"""A gateway process, started by the supervisor.

::

    python -m tuneplex.app.gateway_process --state-dir DIR --lifeline FD --index N --listener FD
        [--tls-cert FILE --tls-key FILE]

On SIGTERM it accepts nothing more and gives the replies under way some time to finish. When the supervisor is gone it
ends at once: its engines end, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from tuneplex.app.control_client import ControlClient
from tuneplex.app.lifeline import watch_lifeline
from tuneplex.app.state import StateDir
from tuneplex.feed import Subscriber
from tuneplex.gateway import Gateway, Replies, serve
from tuneplex.identity import Access
from tuneplex.types import FleetView, Leases

__all__ = ["main"]

_DRAIN_S = 15
_FIRST_NEWS_S = 5.0
_FIRST_LEASES_S = 3.0


def main(arguments: Sequence[str]) -> int:
    """Run a gateway from its command line; returns the exit code."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for chatty in ("httpx2", "httpcore2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    os.set_inheritable(options.listener, False)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # prompts are counted by one thread, not by one per core
    uvloop.run(_run(options, StateDir(options.state_dir)))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gateway")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--tls-cert")
    parser.add_argument("--tls-key")
    return parser.parse_args(arguments)


async def _run(options: argparse.Namespace, state: StateDir) -> None:
    async with ControlClient(state.admin_socket) as control:
        replies = Replies(state.replies, str(state.replies_socket(options.index)))
        gateway = Gateway(options.index, metrics_source=control.metrics, admin=control.admin, replies=replies)
        viewed, admitted, leased = asyncio.Event(), asyncio.Event(), asyncio.Event()

        def take_view(view: FleetView) -> None:
            gateway.update(view)
            viewed.set()

        def take_access(access: Access) -> None:
            gateway.update_access(access)
            admitted.set()

        def take_leases(leases: Leases) -> None:
            gateway.update_leases(leases)
            leased.set()

        subscriber = Subscriber(
            state.feed_socket,
            on_view=take_view,
            on_access=take_access,
            on_leases=take_leases,
            on_turns=gateway.update_turns,
            on_lost=gateway.control_lost,
            report=gateway.report,
        )
        async with gateway.idempotency.listening(), asyncio.TaskGroup() as group:
            feeding = group.create_task(subscriber.run())
            await _serve(options, gateway, (viewed, admitted), leased)
            feeding.cancel()


async def _serve(
    options: argparse.Namespace, gateway: Gateway, news: Sequence[asyncio.Event], leased: asyncio.Event
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = socket.socket(fileno=options.listener)

    async def when_told() -> None:
        """Take no request before there are a view and keys to answer it by; until then they wait in the queue."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_NEWS_S):
                for first in news:
                    await first.wait()
        await gateway.counter.loaded()
        if gateway.limited:  # of a day's limit, another process may have used something before
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_LEASES_S):
                    await leased.wait()
        await serve(gateway, listener, tls_cert=options.tls_cert, tls_key=options.tls_key, stop=stop, drain_s=_DRAIN_S)

    serving = asyncio.create_task(when_told())
    watch_lifeline(options.lifeline, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
