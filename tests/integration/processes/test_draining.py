"""Replicas that are drained, resumed and restarted by hand, in fleets of processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import pytest

from tests.support.background import background
from tests.support.fleets import Fleet, MakeFleet, one_pool
from tuneplex.testing import FakeEngine
from tuneplex.types import AdapterVersion, PoolSpec, ReplicaStatus, Status

Adapters = dict[str, AdapterVersion]
replace = msgspec.structs.replace
SLOW = {"TUNEPLEX_FAKE_SCRIPT": '{"between_chunks_s": 0.03}'}


def one(status: Status, name: str = "default-0") -> ReplicaStatus:
    """A replica of the status, by its name."""
    return next(replica for replica in status.replicas if replica.name == name)


def wish(fleet: Fleet, verb: str, name: str = "default-0", **query: int) -> ReplicaStatus:
    """Ask something of a replica; it must be granted."""
    with fleet.admin() as admin:
        reply = admin.post(f"/replicas/{name}/{verb}", params=query)
    assert reply.status_code == 200, reply.text
    return msgspec.json.decode(reply.content, type=ReplicaStatus)


def refused(fleet: Fleet, verb: str, name: str = "default-0") -> tuple[int, str | None, str]:
    """Status, code and words of what is refused."""
    with fleet.admin() as admin:
        reply = admin.post(f"/replicas/{name}/{verb}")
    error: dict[str, Any] = reply.json()["error"]
    return reply.status_code, error["code"], error["message"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, fake_python: str, adapters: Adapters) -> Iterator[Fleet]:
    """A fleet of two replicas that stream slowly; each test leaves both ready."""
    spec = one_pool(fake_python, adapters["ada"], replicas=2, env=SLOW)
    fleet = Fleet(tmp_path_factory.mktemp("pair"), spec)
    fleet.start()
    fleet.ready()
    yield fleet
    fleet.end()


def test_a_drained_replica_takes_nothing_until_it_is_resumed(pair: Fleet) -> None:
    """Its stream ends complete, new requests go to the other one, its process stays, and then it serves again."""
    before = pair.ready()
    with pair.stream("ada", max_tokens=100) as chunks:
        list(islice(chunks, 3))
        busy = next(one.name for one in pair.until(lambda now: any(one.outstanding for one in now.replicas)).replicas
                    if one.outstanding)  # fmt: skip
        shown = wish(pair, "drain", busy)
        assert (shown.state, shown.held, shown.drained) == ("draining", "drain", False)
        assert 290 < (shown.leave_s or 0) <= 300
        pair.until(lambda status: one(status, busy).outstanding == 1)
        rest = list(chunks)
    assert rest[-1] == {"done": True}
    # Its figures are as old as control's last look at them.
    pair.until(lambda status: one(status, busy).drained and not one(status, busy).running)
    for _request in range(6):
        assert pair.ask("ada")
        assert one(pair.until(bool), busy).running == 0
    assert wish(pair, "resume", busy).held == ""
    after = pair.ready()
    assert [replica.pid for replica in after.replicas] == [replica.pid for replica in before.replicas]


def test_a_drain_outlives_control(pair: Fleet) -> None:
    """A control that takes over never sends a drained replica anything, and shows it as it was."""
    wish(pair, "drain", "default-1", now=1)
    pair.until(lambda status: one(status, "default-1").drained)
    control = pair.pid("control_process")
    pair.kill(control)
    pair.gone(control)
    status = pair.until(lambda status: one(status, "default-1").drained)
    assert (one(status, "default-1").held, one(status, "default-1").leave_s) == ("drain", 0.0)
    assert one(status).state == "ready"
    wish(pair, "resume", "default-1")
    pair.ready()


def test_a_drained_engine_that_dies_comes_back_drained(pair: Fleet) -> None:
    """It is started again as always, and still gets nothing until it is resumed."""
    before = pair.ready()
    wish(pair, "drain", "default-1")
    pair.kill(one(before, "default-1").pid or 0)
    pair.until(lambda status: one(status, "default-1").restarts > one(before, "default-1").restarts)
    status = pair.until(lambda status: one(status, "default-1").state == "draining")
    assert one(status, "default-1").pid != one(before, "default-1").pid
    assert pair.ask("ada")
    wish(pair, "resume", "default-1")
    pair.ready()


def test_a_restart_breaks_nothing(pair: Fleet) -> None:
    """The other replica serves meanwhile, the stream ends complete, then a new engine serves under the old name."""
    before = pair.ready()
    with pair.stream("ada", max_tokens=60) as chunks:
        list(islice(chunks, 3))
        assert wish(pair, "restart", "default-0").held == "restart"
        assert refused(pair, "drain", "default-1")[1] == "last_ready_replica"
        assert pair.ask("ada")
        assert list(chunks)[-1] == {"done": True}
    pair.until(lambda status: one(status).restarts == one(before).restarts + 1)
    after = pair.ready()
    assert one(after).pid != one(before).pid
    assert one(after, "default-1").pid == one(before, "default-1").pid
    assert (one(after).held, one(after).detail) == ("", "")


def test_unknown_replicas_are_named(pair: Fleet) -> None:
    """Who mistypes a name is told which there are."""
    assert refused(pair, "drain", "default-9") == (
        404, None, "there is no replica 'default-9'; there are: default-0, default-1",
    )  # fmt: skip


def test_the_last_ready_replica_stays_unless_forced(make_fleet: MakeFleet) -> None:
    """It is refused with the reason; by force a restart takes it all the same, and requests wait meanwhile."""
    fleet = make_fleet()
    before = fleet.ready()
    status, code, words = refused(fleet, "restart")
    assert (status, code) == (409, "last_ready_replica")
    assert words == "default-0 is the only replica of pool default that is ready: nobody would answer in its place"
    wish(fleet, "restart", force=1, now=1)
    assert fleet.ask()
    assert one(fleet.ready()).pid != one(before).pid
    wish(fleet, "drain", force=1)
    fleet.until(lambda status: not status.ready)
    with fleet.client() as client:
        reply = client.post("/completions", json={"model": "base", "prompt": "hello", "max_tokens": 2})
    assert reply.status_code == 503
    wish(fleet, "resume")
    fleet.ready()


def test_streams_without_end_are_cut_by_a_restart(make_fleet: MakeFleet) -> None:
    """When the pool's time to drain is over the engine ends, whatever it still does; the time changes live."""
    fleet = make_fleet(env=SLOW)
    before = fleet.ready()
    with fleet.stream(max_tokens=4000) as chunks:
        list(islice(chunks, 2))
        wish(fleet, "restart", force=1)
        (change,) = fleet.apply(replace(fleet.spec, pools=(replace(fleet.spec.pools[0], drain_s=0.5),)))
        assert change.how == "live"
        assert list(chunks)[-1] != {"done": True}
    fleet.until(lambda status: status.ready and one(status).pid != one(before).pid)


def test_a_removed_pool_drains(make_fleet: MakeFleet, fake_python: str) -> None:
    """A stream of a pool that leaves the fleet ends complete, then its engine ends."""
    fleet = make_fleet()
    fleet.ready()
    both = replace(fleet.spec, pools=(*fleet.spec.pools, PoolSpec("other", python=fake_python, env=SLOW)))
    fleet.apply(both)
    fleet.ready()
    wish(fleet, "drain", force=1)  # so that the stream goes to the other one
    fleet.until(lambda status: one(status).drained)
    with fleet.stream(max_tokens=60) as chunks:
        list(islice(chunks, 3))
        fleet.apply(replace(both, pools=both.pools[:1]))
        status = fleet.until(lambda status: one(status, "other-0").state == "draining")
        assert (one(status, "other-0").held, one(status, "other-0").drained) == ("", False)
        assert refused(fleet, "resume", "other-0")[1] == "replica_leaves"
        assert list(chunks)[-1] == {"done": True}
    fleet.until(lambda status: len(status.replicas) == 1)


def test_an_external_engine_is_drained_but_not_restarted(make_fleet: MakeFleet) -> None:
    """It gets nothing while it is drained, and a restart is left to whoever runs it."""
    with background(FakeEngine("base")) as engine:
        fleet = make_fleet(launcher="external", urls=(engine.url,))
        fleet.ready()
        status, code, words = refused(fleet, "restart")
        assert (status, code) == (409, "external_engine")
        assert "drain it, restart it yourself, resume it" in words
        wish(fleet, "drain", force=1)
        fleet.until(lambda status: one(status).drained)
        control = fleet.pid("control_process")
        fleet.kill(control)
        fleet.gone(control)
        assert one(fleet.until(lambda status: one(status).state == "draining")).held == "drain"
        wish(fleet, "resume")
        fleet.ready()
        assert fleet.ask()
