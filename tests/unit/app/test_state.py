"""The state directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuneplex.app.state import StateDir, SupervisorInfo
from tuneplex.errors import StateError
from tuneplex.types import Base, FleetSpec, Listen

SPEC = FleetSpec("fleet", Base("base", "/models/base"), listen=Listen(port=0))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDir]:
    """A fresh state directory, whose run directory is removed at the end."""
    state = StateDir(tmp_path / "fleet")
    state.create()
    yield state
    state.close_run()


def test_a_spec_comes_back(state: StateDir) -> None:
    """What was written is read, and only this user can read it."""
    state.write_spec(SPEC)
    assert state.read_spec() == SPEC
    assert stat.S_IMODE(state.fleet_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.path.stat().st_mode) == 0o700
    assert [path.name for path in state.path.iterdir() if path.name.startswith(".")] == []


def test_what_is_not_a_fleet(state: StateDir) -> None:
    """A missing or broken file is a clear error."""
    with pytest.raises(StateError, match="does not exist"):
        state.read_spec()
    state.fleet_file.write_text("{}")
    with pytest.raises(StateError, match="is not a fleet"):
        state.read_spec()


def test_only_one_supervisor(state: StateDir) -> None:
    """The lock is held by one process at a time, and looking at it does not take it."""
    assert not state.is_locked()
    held = state.lock()
    assert state.is_locked()
    with pytest.raises(StateError, match=r"runs in .* already"):
        state.lock()
    os.close(held)
    assert not state.is_locked()


def test_the_supervisor_counts_only_while_it_lives(state: StateDir) -> None:
    """What a killed supervisor left in its file is not believed."""
    state.write_supervisor(SupervisorInfo(1, 2.0, "http://127.0.0.1:1/v1"))
    assert state.supervisor() is None
    held = state.lock()
    assert state.supervisor() == SupervisorInfo(1, 2.0, "http://127.0.0.1:1/v1")
    os.close(held)


def test_the_run_directory_is_short_and_private(state: StateDir) -> None:
    """Sockets get paths that the kernel accepts, in a directory of this user."""
    state.open_run()
    assert len(str(state.supervisor_socket)) < 100
    assert stat.S_IMODE(state.run_directory.stat().st_mode) == 0o700


def test_a_new_run_removes_the_old_one(state: StateDir) -> None:
    """What a killed supervisor left under /tmp goes when the next one starts."""
    first = state.open_run()
    (first / "admin.sock").touch()
    second = state.open_run()
    assert not first.exists()
    assert state.run_directory == second
    state.close_run()
    assert not second.exists()
    with pytest.raises(StateError, match="no fleet runs"):
        _ = state.admin_socket


def test_a_foreign_link_is_not_followed(state: StateDir, tmp_path: Path) -> None:
    """If the link leads to something that is not a run directory, only the link is removed."""
    precious = tmp_path / "precious"
    precious.mkdir()
    state.run.symlink_to(precious)
    state.close_run()
    assert precious.is_dir()
    assert not state.run.is_symlink()
