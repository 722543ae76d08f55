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

import httpx2
import uvloop

from tuneplex.app.lifeline import watch_lifeline
from tuneplex.app.state import StateDir
from tuneplex.feed import Subscriber
from tuneplex.gateway import Gateway, serve
from tuneplex.types import FleetView

__all__ = ["main"]

_DRAIN_S = 15
_FIRST_VIEW_S = 5.0
_METRICS_TIMEOUT_S = 3.0


def main(arguments: Sequence[str]) -> int:
    """Run a gateway from its command line; returns the exit code."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for chatty in ("httpx2", "httpcore2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    os.set_inheritable(options.listener, False)
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
    transport = httpx2.AsyncHTTPTransport(uds=str(state.admin_socket), verify=False)  # a socket of our own has no TLS
    async with httpx2.AsyncClient(transport=transport, timeout=_METRICS_TIMEOUT_S, trust_env=False) as client:
        gateway = Gateway(options.index, metrics_source=lambda: _fleet_metrics(client))
        viewed = asyncio.Event()

        def take(view: FleetView) -> None:
            gateway.update(view)
            viewed.set()

        subscriber = Subscriber(state.feed_socket, on_view=take, on_access=gateway.update_access, report=gateway.report)
        async with asyncio.TaskGroup() as group:
            feeding = group.create_task(subscriber.run())
            await _serve(options, gateway, viewed)
            feeding.cancel()


async def _serve(options: argparse.Namespace, gateway: Gateway, viewed: asyncio.Event) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = socket.socket(fileno=options.listener)

    async def when_viewed() -> None:
        """Take no request before there is a view to answer it by; until then they wait in the socket's queue."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_VIEW_S):
                await viewed.wait()
        await serve(gateway, listener, tls_cert=options.tls_cert, tls_key=options.tls_key, stop=stop, drain_s=_DRAIN_S)

    serving = asyncio.create_task(when_viewed())
    watch_lifeline(options.lifeline, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _fleet_metrics(client: httpx2.AsyncClient) -> bytes:
    reply = await client.get("http://control/metrics")
    return reply.raise_for_status().content


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
