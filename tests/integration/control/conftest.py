"""The admin API on a store that fails as it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.desk import Desk
from tests.support.records import MemoryRecords


@pytest.fixture
def memory() -> MemoryRecords:
    """A store that fails as it is told."""
    return MemoryRecords()


@pytest.fixture
async def desk(memory: MemoryRecords, tmp_path: Path) -> AsyncIterator[Desk]:
    """A registry on that store."""
    desk = Desk(memory, tmp_path)
    async with desk.running():
        yield desk
        memory.gate.set()
