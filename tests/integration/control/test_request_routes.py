"""Requests that are over, through the admin API."""

from __future__ import annotations

import msgspec

from tests.support.desk import Desk
from tests.support.past import over
from tests.support.records import MemoryRecords
from tuneplex.journal import Finished


async def test_requests_are_found_by_their_id(desk: Desk, memory: MemoryRecords) -> None:
    """All with an id come as they are kept, and none where it is unknown."""
    kept = [over(1, request_id="mine"), over(2, request_id="mine"), over(3)]
    memory.keep_requests("fleet", kept)
    reply = await desk.client.get("/requests", params={"request_id": "mine"})
    assert msgspec.json.decode(reply.content, type=list[Finished]) == kept[:2]
    assert (await desk.client.get("/requests?request_id=other")).json() == []


async def test_an_id_is_needed(desk: Desk, memory: MemoryRecords) -> None:
    """Without an id nobody is searched for, and a store that is down says so."""
    assert (await desk.client.get("/requests")).status_code == 400
    assert (await desk.client.get("/requests?id=1")).status_code == 400
    memory.down = True
    assert (await desk.client.get("/requests?request_id=1")).status_code == 503
