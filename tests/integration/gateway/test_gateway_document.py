"""The gateway against its own OpenAPI document."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from tests.support.api_checks import check_api, narrowed
from tests.support.front import Front, open_front, view_of
from tuneplex.testing import FakeEngine
from tuneplex.types import GatewaySettings

KEY = "sk-test"
NAMES = ("contacts", "gpt-4o", "base", "nobody")


async def test_the_document_needs_no_key(front: Front) -> None:
    """It tells nothing of a fleet, and there is one for everybody."""
    open_one = (await front.get("/openapi.json")).body
    front.settings(key_sha256="0" * 64)
    closed = await front.get("/openapi.json")
    assert (closed.status, closed.headers["content-type"], closed.body) == (200, "application/json", open_one)
    assert "contacts" not in closed.body.decode()


async def checked(engine: FakeEngine, place: Path, *, key: str, examples: int) -> None:
    """Let schemathesis have a gateway, and see that nothing of it is left."""
    settings = GatewaySettings(key_sha256=hashlib.sha256(key.encode()).hexdigest() if key else None)
    async with open_front(view_of([engine], settings)) as front:
        document = narrowed((await front.get("/openapi.json")).body, NAMES, keyed=bool(key))
        found = await check_api(front.port, document, place, examples=examples, key=key)
        assert not found, found
        assert engine.requests
        assert not front.gateway.ledger.relays
        assert not front.gateway.ledger.outstanding


@pytest.mark.parametrize("key", ["", KEY], ids=["open", "keyed"])
async def test_the_gateway_does_what_its_document_says(
    engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    """Right and wrong requests of every kind: no failure of ours, no undocumented reply, and wrong ones are refused."""
    with caplog.at_level(logging.WARNING):
        await checked(engine, tmp_path, key=key, examples=10)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.full
@pytest.mark.parametrize("key", ["", KEY], ids=["open", "keyed"])
async def test_the_gateway_does_what_its_document_says_for_long(engine: FakeEngine, tmp_path: Path, key: str) -> None:
    """The same with many more requests."""
    await checked(engine, tmp_path, key=key, examples=500)
