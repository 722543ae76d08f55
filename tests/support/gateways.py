"""A gateway in front of one engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator

from tuneplex.gateway import Gateway, serve
from tuneplex.identity import Access
from tuneplex.types import FleetView, GatewaySettings, Model, Price, Replica, Retries

__all__ = ["KEY", "gateway_of", "open_gateway", "serving"]

KEY = "sk-test"


def open_gateway(
    endpoint: str, secret: str = "", access: Access | None = None
) -> contextlib.AbstractAsyncContextManager[str]:
    """Serve one engine by a new gateway, see `gateway_of`; the URL with `/v1`."""
    return serving(gateway_of(endpoint, secret, access))


def gateway_of(endpoint: str, secret: str = "", access: Access | None = None, *, price: Price | None = None) -> Gateway:
    """A gateway that has `base`, `ada`, `bob` and the alias `gpt-4o-mini` (which is `ada`) from one engine.

    `KEY` is let in, and so are the keys of `access`. All models have the same price, if any. What
    fails is not sent again.
    """
    return Gateway(0, _view(endpoint, secret, price), access or Access())


@contextlib.asynccontextmanager
async def serving(gateway: Gateway) -> AsyncIterator[str]:
    """Serve on a free port for as long as the block runs; the URL with `/v1`."""
    sock = socket.create_server(("127.0.0.1", 0))
    stop = asyncio.Event()
    task = asyncio.create_task(serve(gateway, sock, stop=stop, drain_s=1))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
    finally:
        stop.set()
        await task


def _view(endpoint: str, secret: str, price: Price | None) -> FleetView:
    versions = {name: f"{name}@0123456789ab" for name in ("ada", "bob")}
    models = {"base": Model("base", "base", price=price)}
    models |= {name: Model(name, version, parent="base", price=price) for name, version in versions.items()}
    serves = {"base": "base"} | {version: name for name, version in versions.items()}
    return FleetView(
        generation=1,
        models=models,
        aliases={"gpt-4o-mini": "ada"},
        replicas=(Replica("default-0", "default", "vllm", endpoint, secret, serves=serves),),
        settings=GatewaySettings(key_sha256=hashlib.sha256(KEY.encode()).hexdigest(), retries=Retries(tries=1)),
    )
