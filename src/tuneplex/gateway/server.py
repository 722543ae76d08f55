"""Run a gateway on a listening socket: uvicorn keeps sockets and TLS, the protocol class is ours."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import uvicorn

from tuneplex.gateway.core import Gateway
from tuneplex.gateway.protocol import ClientConnection, ConnectionLimits
from tuneplex.log import get_logger

__all__ = ["serve"]

_log = get_logger(__name__)

_TICK_S = 0.1
_TICKS_PER_SWEEP = 10
_HANDSHAKE_S = 5.0


async def serve(
    gateway: Gateway,
    sock: socket.socket,
    *,
    tls_cert: Path | str | None = None,
    tls_key: Path | str | None = None,
    stop: asyncio.Event,
    leave: asyncio.Event | None = None,
    drain_s: int = 30,
    limits: ConnectionLimits | None = None,
) -> None:
    """Answer clients on `sock` until `stop` is set, then let the replies under way finish, as far as there is time.

    Once `leave` is set, it accepts nothing more, because another process does, and returns when the last connection
    has ended: each ends with its next reply, or when it was idle for as long as it may be.

    Args:
        gateway: Answers.
        sock: Bound; closed at the end.
        tls_cert: Certificate chain, PEM. Without it the connection is plain HTTP.
        tls_key: Its key.
        stop: Ends it. SIGTERM and SIGINT do the same.
        leave: Leaves the socket to others.
        drain_s: How long replies under way may take at the end, seconds.
        limits: Towards clients.
    """
    leave = leave or asyncio.Event()
    protocol = functools.partial(ClientConnection, gateway, limits or ConnectionLimits(), leave=leave)
    server = uvicorn.Server(_configured(protocol, tls_cert, tls_key, drain_s))
    works = (_watch(gateway, server), _wait(stop, server), _leave(leave, server, _HANDSHAKE_S if tls_cert else _TICK_S))
    helpers = [asyncio.create_task(work) for work in works]
    try:
        await server.serve(sockets=[sock])
    finally:
        for helper in helpers:
            helper.cancel()
        if server.server_state.connections:
            gateway.give_up()
            await asyncio.sleep(_TICK_S)  # for what was just written
        for connection in tuple(server.server_state.connections):
            cast("ClientConnection", connection).transport.abort()
        gateway.close()


def _configured(
    protocol: Callable[..., ClientConnection], tls_cert: Path | str | None, tls_key: Path | str | None, drain_s: int
) -> uvicorn.Config:
    return uvicorn.Config(
        _no_application,
        http=cast("type[asyncio.Protocol]", protocol),  # uvicorn only calls it
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        timeout_graceful_shutdown=drain_s,
    )


async def _wait(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True


async def _leave(leave: asyncio.Event, server: uvicorn.Server, settle_s: float) -> None:
    """Connections that nobody has accepted yet stay in the queue of the socket, which others have open, too."""
    await leave.wait()
    for listening in server.servers:
        listening.close()
    await asyncio.sleep(settle_s)  # what was just accepted is no connection before its TLS handshake is over
    while server.server_state.connections:  # noqa: ASYNC110 - uvicorn's set tells nobody when it changes
        await asyncio.sleep(_TICK_S)
    server.should_exit = True


async def _watch(gateway: Gateway, server: uvicorn.Server) -> None:
    """Look after the deadlines of engines ten times a second, after those of clients each second."""
    tick = 0
    while True:
        await asyncio.sleep(_TICK_S)
        if server.should_exit:
            gateway.drain()
        try:
            gateway.tick(time.monotonic())
        except Exception:  # noqa: BLE001 - they are looked after again a moment later
            _log.exception("timeouts could not be looked after")
        tick += 1
        if tick % _TICKS_PER_SWEEP == 0:
            for connection in tuple(server.server_state.connections):
                cast("ClientConnection", connection).tick(time.monotonic())


async def _no_application(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI's own types
    """Uvicorn asks for an application; our protocol class never calls it."""
