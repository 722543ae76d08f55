"""A gateway in front of one engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator

from tuneplex.gateway import Gateway, serve
from tuneplex.identity import Access
from tuneplex.types import FleetView, GatewaySettings, Model, Replica

__all__ = ["KEY", "open_gateway"]

KEY = "sk-test"


@contextlib.asynccontextmanager
async def open_gateway(endpoint: str, secret: str = "", access: Access | None = None) -> AsyncIterator[str]:
    """Serve `base`, `ada`, `bob` and the alias `gpt-4o-mini` (which is `ada`) from one engine; the URL with `/v1`.

    `KEY` is let in, and so are the keys of `access`.
    """
    sock = socket.create_server(("127.0.0.1", 0))
    stop = asyncio.Event()
    serving = asyncio.create_task(
        serve(Gateway(0, _view(endpoint, secret), access or Access()), sock, stop=stop, drain_s=1)
    )
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
    finally:
        stop.set()
        await serving


def _view(endpoint: str, secret: str) -> FleetView:
    versions = {name: f"{name}@0123456789ab" for name in ("ada", "bob")}
    models = {"base": Model("base", "base")}
    models |= {name: Model(name, version, parent="base") for name, version in versions.items()}
    serves = {"base": "base"} | {version: name for name, version in versions.items()}
    return FleetView(
        generation=1,
        models=models,
        aliases={"gpt-4o-mini": "ada"},
        replicas=(Replica("default-0", "default", "vllm", endpoint, secret, serves=serves),),
        settings=GatewaySettings(key_sha256=hashlib.sha256(KEY.encode()).hexdigest()),
    )
