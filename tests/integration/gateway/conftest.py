"""A gateway with two adapters whose names begin alike, on one FakeEngine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.front import VERSIONS, Front, open_front, view_of
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
