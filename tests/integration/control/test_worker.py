"""Calls that may hang, made in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tuneplex.control.worker import Unsure, Worker
from tuneplex.errors import StoreDown


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker that waits for a tenth of a second."""
    worker = Worker(0.1)
    yield worker
    worker.close()


async def test_a_call_waits_for_one_that_was_only_slow(worker: Worker) -> None:
    """What took too long keeps the next call waiting, as long as that one has patience, and then lets it through."""
    gate = threading.Event()
    with pytest.raises(Unsure):
        await worker.call(gate.wait)
    threading.Timer(0.2, gate.set).start()
    assert await worker.call(lambda: "done", 60.0) == "done"


async def test_a_call_is_not_made_behind_one_that_hangs(worker: Worker) -> None:
    """It fails in a way that says that nothing has happened, and nothing happens later either."""
    gate, made = threading.Event(), []
    with pytest.raises(Unsure):
        await worker.call(gate.wait)
    with pytest.raises(StoreDown, match="still owes an answer") as failed:
        await worker.call(lambda: made.append(1))
    assert not isinstance(failed.value, Unsure)
    gate.set()
    await worker.call(lambda: None, 60.0)
    assert made == []
