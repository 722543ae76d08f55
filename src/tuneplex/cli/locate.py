"""Which fleet a command means: the one that was named, the only one that runs, or the one of this directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuneplex.app.state import StateDir, default_path
from tuneplex.errors import FleetFileError, StateError, UserError

__all__ = ["any_fleet", "known", "running", "running_fleet"]


def running_fleet(state_dir: Path | None, fleet: str | None) -> StateDir:
    """The running fleet that a command is about.

    Raises:
        StateError: It does not run, or several do and none was named.
    """
    state = _named(state_dir, fleet) or _choose(running(), fleet_here())
    if not state.is_locked():
        raise StateError(f"no fleet runs in {state.path}", hint=_others_hint())
    return state


def any_fleet(state_dir: Path | None, fleet: str | None) -> StateDir:
    """The fleet that a command is about, whether it runs or has ended: the last one started comes first.

    Raises:
        StateError: There is none.
    """
    named = _named(state_dir, fleet)
    if named is not None:
        if not named.path.is_dir():
            raise StateError(f"{named.path} does not exist", hint=_others_hint())
        return named
    alive = running()
    if alive:
        return _choose(alive, fleet_here())
    latest = max(known(), key=lambda state: state.fleet_file.stat().st_mtime, default=None)
    if latest is None:
        raise StateError("no fleet has run here yet", hint="start one with `tuneplex up FLEET`")
    return latest


def _named(state_dir: Path | None, fleet: str | None) -> StateDir | None:
    if state_dir is not None and fleet is not None:
        raise UserError("--state-dir and --fleet name two fleets", hint="give one of them")
    if state_dir is not None:
        return StateDir(state_dir)
    return StateDir(default_path(fleet)) if fleet is not None else None


def _choose(alive: Sequence[StateDir], here: str | None) -> StateDir:
    for state in alive:
        if here is not None and state.path.name == here:
            return state
    if len(alive) == 1:
        return alive[0]
    if not alive:
        raise StateError("no fleet is running", hint="start one with `tuneplex up FLEET`, or see `tuneplex demo`")
    names = ", ".join(state.path.name for state in alive)
    raise StateError(f"several fleets are running: {names}", hint="choose one with --fleet NAME")


def _others_hint() -> str:
    names = ", ".join(state.path.name for state in running())
    return f"running fleets: {names}" if names else "start it with `tuneplex up FLEET`"


def known() -> list[StateDir]:
    """The fleets that have a state directory in the usual place, by name."""
    root = default_path("any").parent
    found = sorted(root.iterdir()) if root.is_dir() else []
    return [StateDir(path) for path in found if (path / "fleet.json").is_file()]


def running() -> list[StateDir]:
    """Those of them whose supervisor lives."""
    return [state for state in known() if state.is_locked()]


def fleet_here() -> str | None:
    """The name in the current directory's fleet.yaml, if there is a valid one."""
    from tuneplex import fleetfile  # noqa: PLC0415 - only a directory with a fleet file pays for pydantic

    path = Path("fleet.yaml")
    if not path.is_file():
        return None
    try:
        return fleetfile.load(path).name
    except FleetFileError:
        return None
