"""Requests that have been kept for long enough."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.desk import Desk
from tests.support.past import over
from tests.support.records import MemoryRecords
from tuneplex.control import Expiry
from tuneplex.errors import StoreDown
from tuneplex.types import Keeping

DAY = 86400


async def test_old_requests_are_let_go_of_once_a_day(desk: Desk, memory: MemoryRecords) -> None:
    """What is older than the fleet file says goes, in steps; the rest stays until another day is over."""
    spec = msgspec.structs.replace(desk.controller.spec, records=Keeping(2 * DAY))
    now = [5.5 * DAY]
    expiry = Expiry(desk.registry, lambda: spec, lambda: now[0])
    memory.keep_requests("fleet", [over(day * DAY + 60 * part) for day in range(1, 6) for part in range(2)])
    assert await expiry.look() == 4
    assert sorted(int(one.arrived // DAY) for one in memory.finished.values()) == [3, 3, 4, 4, 5, 5]
    memory.keep_requests("fleet", [over(1)])
    assert await expiry.look() == 0
    now[0] += DAY
    assert await expiry.look() == 3


async def test_what_could_not_be_done_is_tried_again(desk: Desk, memory: MemoryRecords) -> None:
    """A store that does not answer changes nothing, and the next look does it."""
    expiry = Expiry(desk.registry, lambda: desk.controller.spec, lambda: 200.0 * DAY)
    memory.keep_requests("fleet", [over(1)])
    memory.down = True
    with pytest.raises(StoreDown):
        await expiry.look()
    memory.down = False
    assert await expiry.look() == 1
