"""The proxy that most people would write first: Starlette in front, httpx behind, uvicorn around it.

It parses the body as JSON, as one that routes by model must, and sends everything on as it came.
Runs in an environment of its own: `starlette_httpx.py PORT UPSTREAM_URL`.
"""

# mypy: disable-error-code="import-not-found, unused-ignore, misc, no-any-unimported"

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_HOP_BY_HOP = frozenset({"host", "connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te"})


async def health(request: Request) -> Response:
    """Answer that the proxy is up."""
    del request
    return PlainTextResponse("ok")


async def forward(request: Request) -> Response:
    """Send the request on, and the reply back as it comes."""
    client: httpx.AsyncClient = request.state.client
    body = await request.body()
    if "model" not in json.loads(body):
        return PlainTextResponse("model is missing", status_code=400)
    headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
    upstream_request = client.build_request("POST", request.url.path, headers=headers, content=body)
    reply = await client.send(upstream_request, stream=True)
    kept = {name: value for name, value in reply.headers.items() if name not in _HOP_BY_HOP}
    return StreamingResponse(reply.aiter_raw(), reply.status_code, kept, background=BackgroundTask(reply.aclose))


def application(upstream: str) -> Starlette:
    """The application, with one client for its whole life and no limit on connections."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, object]]:
        del app
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=upstream, limits=limits, timeout=60, trust_env=False) as client:
            yield {"client": client}

    routes = [Route("/health", health), Route("/v1/chat/completions", forward, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


if __name__ == "__main__":
    port, upstream_url = int(sys.argv[1]), sys.argv[2]
    uvicorn.run(
        application(upstream_url), host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False
    )
