"""The admin API's operations on usage, and what control keeps of engines' counters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.support.desk import Desk
from tests.support.records import MemoryRecords
from tuneplex.control import Counting
from tuneplex.records import EngineCounters, Usage

FIRST = EngineCounters("default-0/5", "default-0", "default", 5_000, 9_000, 0, 0, 100, 20)
LATER = msgspec.structs.replace(FIRST, since=8_000, at=12_000, first_prompt=100, prompt=150, completion=30)


@contextlib.asynccontextmanager
async def counting(desk: Desk, told: list[EngineCounters], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Keep what engines say while the block runs."""
    monkeypatch.setattr(desk.controller, "counted", lambda: list(told))
    task = asyncio.create_task(Counting(desk.controller, desk.registry, look_s=0.01, keep_s=0.05).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_usage_is_told_as_it_is_asked(desk: Desk, memory: MemoryRecords) -> None:
    """The question reaches the store in its words, and the answer comes back in people's."""
    memory.used = [Usage({"key_id": "k1"}, 2, 10, 0, 20, 0)]
    query = {"by": "key", "since": "2026-11-30", "until": "2026-12-01", "tenant": "acme"}
    reply = (await desk.client.get("/usage", params=query)).json()
    assert memory.asked["by"] == ["key_id"]
    assert memory.asked["only"] == {"tenant": "acme"}
    assert reply["rows"][0]["group"] == {"key": "k1"}
    assert reply["total"]["completion_tokens"] == 20
    assert (reply["since"], reply["until"]) == ("2026-11-30", "2026-12-01")


async def test_wrong_questions_are_refused(desk: Desk) -> None:
    """What is not known is refused with the parameter's name."""
    reply = await desk.client.get("/usage", params={"by": "colour"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "by")
    assert (await desk.client.get("/usage", params={"colour": "red"})).status_code == 400


async def test_a_database_that_is_down_is_said(desk: Desk, memory: MemoryRecords) -> None:
    """Then nobody knows what was used."""
    memory.down = True
    for path in ("/usage", "/usage/engines"):
        reply = await desk.client.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_down")


async def test_what_an_engine_said_first_stays(
    desk: Desk, memory: MemoryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters are kept again and again, and a database that is down only delays that."""
    told = [FIRST]
    async with counting(desk, told, monkeypatch):
        await desk.until(lambda: memory.engines)
        memory.down = True
        told[0] = LATER
        await asyncio.sleep(0.2)
        assert memory.engines[FIRST.engine] == FIRST
        memory.down = False
        await desk.until(lambda: memory.engines[FIRST.engine].prompt == 150)
    kept = memory.engines[FIRST.engine]
    assert (kept.since, kept.first_prompt, kept.at) == (5_000, 0, 12_000)


async def test_the_last_numbers_are_kept_at_the_end(
    desk: Desk, memory: MemoryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said just before control ends, or by an engine that is gone, is kept all the same."""
    told = [FIRST]
    async with counting(desk, told, monkeypatch):
        await desk.until(lambda: memory.engines)
        told[0] = LATER
    assert memory.engines[FIRST.engine].prompt == 150
    async with counting(desk, told, monkeypatch):
        told.append(msgspec.structs.replace(FIRST, engine="default-1/6"))
        await desk.until(lambda: len(memory.engines) == 2)
        told.clear()
        await asyncio.sleep(0.1)
    assert len(memory.engines) == 2


async def test_engines_are_told_as_they_are_now(
    desk: Desk, memory: MemoryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine has just said is newer than what is kept, and those that are gone are told, too."""
    gone = msgspec.structs.replace(FIRST, engine="default-0/1", since=1_000)
    memory.keep_counters("fleet", [gone, FIRST])
    monkeypatch.setattr(desk.controller, "counted", lambda: [msgspec.structs.replace(FIRST, prompt=170)])
    found = (await desk.client.get("/usage/engines")).json()
    assert [(one["engine"], one["prompt_tokens"]) for one in found] == [("default-0/1", 100), ("default-0/5", 170)]
    assert found[1]["since"] == 5.0
