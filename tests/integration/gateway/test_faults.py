"""The table of faults: what a client of tuneplex sees of each, as docs/faults.md tells."""

from __future__ import annotations

import time

import msgspec
import pytest

from benchmarks.faults.fault import SETTINGS, Fault
from benchmarks.faults.faults import FAULTS
from benchmarks.faults.play import DRAIN_S, play
from benchmarks.faults.stage import Stage, staged
from benchmarks.faults.verdict import problems
from tests.support.front import Front, open_front
from tuneplex.types import FleetView, Model, Replica, ReplicaState

VERSION = "contacts@0123456789ab"


class Gate:
    """A gateway in this process."""

    model = "contacts"

    def __init__(self, front: Front) -> None:
        self.front = front
        self.port = front.port

    async def drain(self, endpoint: str) -> None:
        """Publish a view in which the engine is to be stopped."""
        view = self.front.gateway.view
        change = {"state": ReplicaState.DRAINING, "leave_at": time.time() + DRAIN_S}
        replicas = (msgspec.structs.replace(one, **change) if one.endpoint == endpoint else one for one in view.replicas)
        self.front.gateway.update(msgspec.structs.replace(view, replicas=tuple(replicas)))

    def memory_mb(self) -> float | None:
        """It is not told apart from that of the test."""
        return None


def view_of(stage: Stage) -> FleetView:
    """A fleet of whatever the fault has."""
    serves = {"base": "base", VERSION: VERSION}
    replicas = (
        Replica(f"r{number}", "default", "vllm", endpoint, serves=serves)
        for number, endpoint in enumerate(stage.endpoints)
    )
    models = {"base": Model("base", "base"), "contacts": Model("contacts", VERSION, "base")}
    return FleetView(generation=1, models=models, replicas=tuple(replicas), settings=SETTINGS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_client_sees_what_the_table_says(fault: Fault) -> None:
    """The reply ends as it must, after no more tries than it may take, and nothing of it is left."""
    async with staged(fault) as stage, open_front(view_of(stage)) as front:
        seen = await play(fault, stage, Gate(front), patience_s=8)
        assert not problems(fault, seen), seen
        assert not front.gateway.ledger.outstanding
        assert not front.gateway.ledger.relays
