"""A FakeEngine with two adapters, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import pytest

from tuneplex.testing import FakeEngine


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """A healthy engine with room for one adapter at a time."""
    async with FakeEngine("base", adapters=["ada", "bob"], max_loras=1) as engine:
        yield engine


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of that engine."""
    async with httpx2.AsyncClient(base_url=engine.url, timeout=10, verify=False) as client:
        yield client


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A path short enough for a Unix socket."""
    with TemporaryDirectory(prefix="tp", dir="/tmp") as directory:
        yield Path(directory) / "s"
