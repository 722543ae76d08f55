"""What gateways had counted when they ended."""

from __future__ import annotations

from pathlib import Path

from tuneplex.control import Tally
from tuneplex.types import GatewayReport

NAME = "tuneplex_requests_total"


def report(gateway: int, pid: int, count: float) -> GatewayReport:
    """Of a process that has counted so much."""
    return GatewayReport(gateway, pid, 1, counters={NAME: [(("a",), count)]})


def total(tally: Tally, *living: GatewayReport) -> float:
    """What has ended, apart from those that live."""
    return sum(value for _labels, value in tally.total(living).counters.get(NAME, []))


def test_a_gateway_that_was_only_lost_is_not_counted_twice(tmp_path: Path) -> None:
    """Its last report stands for it while it is away, and no more when it is heard again; a new process is another."""
    tally = Tally(tmp_path / "tally", 5.0)
    tally.add(report(0, 11, 3))
    assert total(tally) == 3
    assert total(tally, report(0, 11, 4)) == 0
    assert total(tally, report(0, 12, 1)) == 3
    tally.add(report(0, 11, 7))
    assert total(tally) == 7


def test_the_next_control_goes_on_from_there(tmp_path: Path) -> None:
    """Also after very many gateways have ended; but another start, or a broken file, begins anew."""
    tally = Tally(tmp_path / "tally", 5.0)
    for pid in range(100):
        tally.add(report(pid, pid, 1))
    assert total(tally) == total(Tally(tmp_path / "tally", 5.0)) == 100
    assert total(Tally(tmp_path / "tally", 6.0)) == 0
    (tmp_path / "tally").write_bytes(b"nonsense")
    assert total(Tally(tmp_path / "tally", 5.0)) == 0


def test_a_disk_that_is_full_costs_nobody_anything_now(tmp_path: Path) -> None:
    """What cannot be written is still counted."""
    tally = Tally(tmp_path / "missing" / "tally", 5.0)
    tally.add(report(0, 11, 3))
    assert total(tally) == 3
