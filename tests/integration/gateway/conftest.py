"""A gateway with two adapters whose names begin alike, on one FakeEngine."""

from __future__ import annotations

import asyncio
import subprocess
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from tests.support.front import VERSIONS, Front, open_front, view_of
from tests.support.written import Written
from tuneplex.testing import FakeEngine


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """A healthy engine that has all adapters loaded."""
    async with FakeEngine("base", adapters=VERSIONS.values()) as engine:
        yield engine


@pytest.fixture
async def front(engine: FakeEngine) -> AsyncIterator[Front]:
    """A gateway in front of it."""
    async with open_front(view_of([engine])) as front:
        yield front


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fakes' tokenizer as a file."""
    path: Path = tmp_path_factory.mktemp("base") / "tokenizer.json"
    path.write_text(FakeEngine().tokenizer.as_json())
    return str(path)


@pytest.fixture
async def written(tmp_path: Path) -> AsyncIterator[Written]:
    """An empty journal."""
    written = Written(tmp_path)
    yield written
    await asyncio.to_thread(written.journal.close)


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngine]]:
    """Two engines."""
    async with (
        FakeEngine("base", adapters=VERSIONS.values()) as one,
        FakeEngine("base", adapters=VERSIONS.values()) as two,
    ):
        yield [one, two]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], AbstractEventLoop]]:
    """These tests run on the event loop that gateways run on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for `localhost` that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command = ["openssl", *options.split(), "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key
