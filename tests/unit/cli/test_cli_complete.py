"""Completion of tenants and keys: from files alone, whatever is in them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tuneplex.cli import complete
from tuneplex.identity import Access, Key, Tenant
from tuneplex.types import Base, FleetSpec, PoolSpec

ACCESS = Access(
    tenants=(Tenant("acme"), Tenant("default")),
    keys=(Key("k1", "acme", "00"), Key("k2", "default", "01"), Key("k3", "default", "02", expires=1)),
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a fleet that has run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("TUNEPLEX_STATE_DIR", raising=False)
    path = tmp_path / "tuneplex" / "shop"
    path.mkdir(parents=True)
    (path / "fleet.json").write_text("{}")
    return path


def test_tenants_and_keys_come_from_the_snapshot(state: Path) -> None:
    """Names are those that the fleet last knew; no server is asked."""
    (state / "access.snapshot").write_bytes(msgspec.msgpack.encode(ACCESS))
    assert complete.tenants("a") == ["acme"]
    assert complete.keys("") == ["k1", "k2"]


@pytest.mark.parametrize("content", [None, b"", b"nonsense", msgspec.msgpack.encode({"tenants": 5})])
def test_completion_never_fails(state: Path, content: bytes | None) -> None:
    """No snapshot, or one of another version, is no reason to disturb somebody's shell."""
    if content is not None:
        (state / "access.snapshot").write_bytes(content)
    assert complete.tenants("") == []
    assert complete.keys("") == []
    assert complete.adapters("") == []
    assert complete.models("") == []


def test_unreadable_snapshot_is_passed_over(state: Path) -> None:
    """A directory in the snapshot's place cannot be read, and completion goes on with other fleets."""
    (state / "access.snapshot").mkdir()
    assert complete.tenants("") == []


def test_environment_says_which_fleet_is_meant(
    state: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TUNEPLEX_STATE_DIR names are those of that fleet alone, as for the commands; fleets keep theirs."""
    (state / "access.snapshot").write_bytes(msgspec.msgpack.encode(ACCESS))
    other = tmp_path_factory.mktemp("elsewhere")
    (other / "access.snapshot").write_bytes(msgspec.msgpack.encode(Access(tenants=(Tenant("clinic"),))))
    monkeypatch.setenv("TUNEPLEX_STATE_DIR", str(other))
    assert complete.tenants("") == ["clinic"]
    assert complete.keys("") == []
    assert complete.fleets("") == ["shop"]


def test_replicas_are_those_of_pools_and_logs(state: Path) -> None:
    """Those that each pool begins with are offered, and those that were started in their place; no other process."""
    pools = (PoolSpec("default", replicas=2), PoolSpec("far", launcher="external", urls=("http://h:1",)))
    spec = FleetSpec("shop", Base("tiny", "/t"), pools=pools)
    (state / "fleet.json").write_bytes(msgspec.json.encode(spec))
    (state / "logs").mkdir()
    for name in ("default-1", "default-5", "control", "gateway-0", "default-x"):
        (state / "logs" / f"{name}.log").touch()
    assert complete.replicas("") == ["default-0", "default-1", "default-5", "far-0"]
    assert complete.replicas("f") == ["far-0"]
