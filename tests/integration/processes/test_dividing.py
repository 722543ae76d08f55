"""Several gateways of a whole fleet share what an engine takes."""

from __future__ import annotations

import os
import signal

from tests.support.fleets import MakeFleet
from tests.support.patient import Patient


def test_places_go_to_the_gateway_that_needs_them(make_fleet: MakeFleet) -> None:
    """When all requests come to one of two gateways, it soon fills all places but one of the other's."""
    fleet = make_fleet(gateways=2, concurrent=6)
    status = fleet.until(lambda status: status.ready and all(gateway.connected for gateway in status.gateways))
    other = status.gateways[1].pid
    assert other is not None
    os.kill(other, signal.SIGSTOP)  # so that it takes no connection
    try:
        slow = {"fake_fault": {"between_chunks_s": 0.3}, "max_tokens": 30, "ignore_eos": True}
        streams = [Patient(fleet, "base", **slow) for _ in range(7)]
        fleet.until(lambda status: status.gateways[0].waiting > 0)
    finally:
        os.kill(other, signal.SIGCONT)
    fleet.until(lambda status: (status.gateways[0].outstanding, status.gateways[0].waiting) == (5, 2))
    assert [stream.answered for stream in streams] == [True] * 7
