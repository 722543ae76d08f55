"""The engines of one fault."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.faults.fault import Fault, Outside
from tuneplex.testing import FakeEngine
from tuneplex.testing.script import Record

__all__ = ["ADAPTER", "Stage", "staged"]

ADAPTER = "contacts@0123456789ab"
_MANY = 1000  # scripts in a row are for requests that generate; all others, as for an engine's health, are answered
_ASKED = "/v1/chat/completions"
_CONTINUED = "/v1/completions"
# A label that begins with a hyphen is refused by the resolver itself, so no question leaves the machine.
_NO_NAME = "http://-.invalid:8000"
_SIGNED_BY_NOBODY = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"


class Stage:
    """Engines that misbehave as a fault says.

    Attributes:
        engines: Them.
        reference_port: Of another one, which is healthy and which no gateway knows: what it says is the truth.
        endpoints: Where gateways reach the engines, or what is there instead of them.
    """

    def __init__(self, engines: tuple[FakeEngine, ...], reference_port: int, endpoints: tuple[str, ...]) -> None:
        self.engines = engines
        self.reference_port = reference_port
        self.endpoints = endpoints

    @property
    def requests(self) -> list[Record]:
        """What the engines were asked so far, other than how they do."""
        records = [record for engine in self.engines for record in engine.requests]
        asked = [one for one in records if one.path.partition("?")[0] in {_ASKED, _CONTINUED}]
        return sorted(asked, key=lambda record: record.received_at)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be read in a reply."""
        return tuple(endpoint.partition("://")[2] for endpoint in self.endpoints)

    async def asked(self) -> Record:
        """Wait until an engine has been asked."""
        while not self.requests:  # noqa: ASYNC110 - whichever of them it will be
            await asyncio.sleep(0.01)
        return self.requests[0]

    def owner(self, record: Record) -> FakeEngine:
        """The engine that got this request."""
        return next(engine for engine in self.engines if record in engine.requests)


@contextlib.asynccontextmanager
async def staged(fault: Fault) -> AsyncIterator[Stage]:
    """The engines of a fault, listening."""
    async with contextlib.AsyncExitStack() as stack:
        reference = await stack.enter_async_context(_engine(fault))
        engines: list[FakeEngine] = []
        for number in range(0 if fault.outside else fault.engines):
            engines.append(await stack.enter_async_context(_engine(fault)))
            engines[number].share_scripts(engines[0])
        if engines:
            engines[0].script(*fault.first, *[fault.always] * _MANY)
        if fault.sick is not None:
            sick = await stack.enter_async_context(_engine(fault))
            sick.script(*[fault.sick] * _MANY)
            engines[0] = sick
        endpoints = tuple(engine.endpoint for engine in engines)
        if fault.outside is not None:
            endpoints = (await stack.enter_async_context(_outside(fault.outside)),)
        yield Stage(tuple(engines), int(reference.url.rpartition(":")[2]), endpoints)


def _engine(fault: Fault) -> FakeEngine:
    return FakeEngine("base", adapters=[ADAPTER], max_model_len=fault.context)


@contextlib.asynccontextmanager
async def _outside(what: Outside) -> AsyncIterator[str]:
    if what is Outside.NAME:
        yield _NO_NAME
        return
    server = await asyncio.start_server(_hang_up, "127.0.0.1", 0, ssl=await asyncio.to_thread(_unsigned))
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.close()


def _unsigned() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory(prefix="tp") as directory:
        cert, key = Path(directory) / "cert.pem", Path(directory) / "key.pem"
        command = ["openssl", *_SIGNED_BY_NOBODY.split(), "-keyout", str(key), "-out", str(cert)]
        subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
        context.load_cert_chain(cert, key)
    return context
