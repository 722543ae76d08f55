"""TLS on both sides: clients that speak it, and engines behind it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.support.front import VERSIONS, Front, Http, chat, open_front, view_of
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import FleetView, GatewaySettings, Replica

KEY = "sk-inner"


@pytest.fixture
async def inner(engine: FakeEngine, certificate: tuple[str, str]) -> AsyncIterator[Front]:
    """A gateway that speaks TLS and wants a key."""
    cert, key = certificate
    settings = GatewaySettings(key_sha256=hashlib.sha256(KEY.encode()).hexdigest())
    async with open_front(view_of([engine], settings), tls_cert=cert, tls_key=key) as front:
        yield front


def view_over_tls(inner: Front) -> FleetView:
    """A fleet whose only engine is that gateway, known by its base URL."""
    serves = dict.fromkeys(VERSIONS.values(), "contacts")
    outer = view_of([])
    replica = Replica("r0", "default", "openai", f"https://localhost:{inner.port}/v1", KEY, serves=serves)
    return msgspec.structs.replace(outer, replicas=(replica,))


@contextlib.asynccontextmanager
async def connection(front: Front, cert: str) -> AsyncIterator[Http]:
    """A connection that trusts the certificate."""
    context = ssl.create_default_context(cafile=cert)
    http = Http(*await asyncio.open_connection("localhost", front.port, ssl=context))
    try:
        yield http
    finally:
        await http.close()


async def test_clients_may_speak_tls(inner: Front, engine: FakeEngine, certificate: tuple[str, str]) -> None:
    """Streams, kept connections, and a client that leaves: all as without."""
    async with connection(inner, certificate[0]) as http:
        for _ in range(2):
            http.post("/v1/chat/completions", chat(stream=True), authorization=f"Bearer {KEY}")
            assert (await http.response()).events[-1] == "[DONE]"
        engine.script(Script(silent_after_chunks=0))
        http.post("/v1/chat/completions", chat(stream=True), authorization=f"Bearer {KEY}")
        record = await engine.arrived(3)
    await asyncio.wait_for(record.left.wait(), 5)


async def test_engines_may_be_behind_tls(
    inner: Front, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An https endpoint with a path and a secret, verified against the certificates that the system trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    async with open_front(view_over_tls(inner)) as outer:
        reply = await outer.chat(stream=True, max_tokens=20)
        direct = await outer.chat(max_tokens=20)
        assert reply.text == direct.json["choices"][0]["message"]["content"]
        assert direct.json["model"] == "contacts"


async def test_an_untrusted_engine_is_not_used(inner: Front) -> None:
    """Neither the prompt nor the secret goes to a server that cannot prove who it is."""
    async with open_front(view_over_tls(inner)) as outer:
        reply = await outer.chat()
        assert (reply.status, reply.error["code"]) == (503, "engine_unreachable")
        assert "certificate" not in reply.body.decode()
