"""The demo's questions on their way, with FakeEngine in the gateway's place."""

from __future__ import annotations

import pytest

from tuneplex.app import demo
from tuneplex.app.demo import Question
from tuneplex.errors import EngineError
from tuneplex.testing import FakeEngine

ASKED = {"contacts": Question("contact as JSON", "Who is Ada?"), "sql": Question("SQL", "It's\nhow many?")}


async def test_base_and_fine_tunes_are_asked_at_once() -> None:
    """Each question goes to the base and to its adapter, and what was cut ends with dots."""
    seen: list[tuple[int, int]] = []
    async with FakeEngine("tiny", adapters=list(ASKED)) as engine:
        said = await demo._ask_all(f"{engine.url}/v1", "sk", "tiny", ASKED, lambda *now: seen.append(now))
        asked = sorted(str(record.model) for record in engine.requests)
    assert asked == ["contacts", "sql", "tiny", "tiny"]
    assert [one.adapter for one in said] == list(ASKED)
    assert all(one.base != one.tuned for one in said)
    assert seen[-1] == (4, 4)


async def test_question_without_an_answer_is_an_engine_error() -> None:
    """A server that refuses ends the demo with its name and status."""
    async with FakeEngine("tiny") as engine:
        with pytest.raises(EngineError, match="did not answer"):
            await demo._ask_all(f"{engine.url}/v1", "sk", "tiny", ASKED, lambda *_: None)
