"""The admin API against its own OpenAPI document."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
import uvicorn

from tests.support.api_checks import check_api
from tests.support.desk import Desk


@pytest.mark.full
async def test_the_admin_api_does_what_its_document_says(desk: Desk, tmp_path: Path) -> None:
    """Right and wrong requests of every kind: no failure of ours, no undocumented reply, and wrong ones are refused."""
    document = json.loads((await desk.client.get("/openapi.json")).content)
    del document["servers"], document["security"]  # this is control's own socket, where no key is needed
    server = uvicorn.Server(uvicorn.Config(desk.app, log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as sock:
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        port = sock.getsockname()[1]
        found = await check_api(port, document, tmp_path, examples=20)
        server.should_exit = True
        await serving
    assert not found, found
