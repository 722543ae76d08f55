"""The table of faults: what a client of tuneplex sees of each, as docs/faults.md tells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.faults.fault import SETTINGS, Expected, Fault
from benchmarks.faults.faults import FAULTS
from benchmarks.faults.gates import KINDS, draining, view_of
from benchmarks.faults.page import PAGE, cells, first_cell
from benchmarks.faults.play import play
from benchmarks.faults.seen import End
from benchmarks.faults.stage import ADAPTER, staged
from benchmarks.faults.verdict import problems
from tests.support.front import Front, open_front
from tuneplex.testing import Tokenizer


class InProcess:
    """A gateway in this process."""

    model, engine_model = "contacts", ADAPTER

    def __init__(self, front: Front) -> None:
        self.front = front
        self.port = front.port

    async def drain(self, endpoint: str) -> None:
        """Publish a view in which the engine is to be stopped."""
        self.front.gateway.update(draining(self.front.gateway.view, endpoint))

    def memory_mb(self) -> float | None:
        """It cannot be told apart from that of the test."""
        return None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engines' tokenizer, as a file."""
    path = tmp_path_factory.mktemp("base") / "tokenizer.json"
    path.write_text(Tokenizer().as_json())
    return path


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_client_sees_what_the_table_says(fault: Fault, tokenizer: Path) -> None:
    """The reply ends as it must, after no more tries than it may take, and nothing of it is left."""
    async with staged(fault) as stage, open_front(view_of(stage, SETTINGS, tokenizer)) as front:
        await front.gateway.counter.loaded()
        seen = await play(fault, stage, InProcess(front), patience_s=12)
        assert not problems(fault, seen), seen
        assert not front.gateway.ledger.outstanding
        assert not front.gateway.ledger.relays


def test_page_and_list_are_the_same() -> None:
    """docs/faults.md has a row for each fault, in the order of the list, and something in each of its cells."""
    rows = cells(PAGE)
    assert [row[0] for row in rows] == [first_cell(fault) for fault in FAULTS]
    assert all(len(row) == 1 + len(KINDS) and all(row) for row in rows)


def test_page_tells_what_is_tested() -> None:
    """What docs/faults.md tells of tuneplex is how the list expects the reply to end."""
    told = {row[0]: row[1] for row in cells(PAGE)}
    odd = [fault.name for fault in FAULTS if not re.search(ending(fault.expected), told[first_cell(fault)])]
    assert not odd


def ending(expected: Expected) -> str:
    """The words, as a pattern."""
    if expected.end is not End.REFUSED:
        return rf"(^|, then |times ){re.escape(expected.end)}($|,|;| `)"
    return f"^error {expected.status or '5..'}"
