"""`apply`: show the difference between a fleet file and what runs, and bring it live."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tuneplex import fleetfile
from tuneplex.app.prepare import prepare
from tuneplex.cli import locate, render
from tuneplex.cli.admin import Admin
from tuneplex.cli.progress import shown
from tuneplex.cli.terminal import Terminal
from tuneplex.errors import StateError, UserError
from tuneplex.types import Change

__all__ = ["Wish", "apply"]


@dataclass(frozen=True, slots=True)
class Wish:
    """How `apply` was called.

    Attributes:
        dry_run: Only show.
        yes: Do not ask.
        as_json: For scripts.
    """

    dry_run: bool = False
    yes: bool = False
    as_json: bool = False


def apply(fleet: Path, wish: Wish, *, state_dir: Path | None, name: str | None) -> int:
    """Bring the running fleet to its file; 1 when the person says no.

    Raises:
        UserError: The file or a source is wrong, a change needs a restart, or nobody can be asked.
        TuneplexError: Control refused.
    """
    terminal = Terminal.standard()
    state = locate.running_fleet(state_dir, name or (fleetfile.load(fleet).name if state_dir is None else None))
    with shown(terminal) as progress:
        spec = prepare(fleet, progress, running=state.read_spec())
    with Admin(state.admin_socket) as admin:
        changes = admin.apply(spec, dry_run=True)
        if not wish.as_json:
            terminal.show(render.changes(changes))
        agreed = bool(changes) and not wish.dry_run and _agreed(terminal, changes, wish)
        if agreed:
            admin.apply(spec, dry_run=False)
    if wish.as_json:
        terminal.json({"applied": agreed, "changes": msgspec.to_builtins(changes)})
    elif agreed:
        terminal.say("applied; `tuneplex status` shows how far it is")
    return 0 if agreed or wish.dry_run or not changes else 1


def _agreed(terminal: Terminal, changes: Sequence[Change], wish: Wish) -> bool:
    """Whether to go on.

    Raises:
        StateError: A change cannot be made while the fleet runs.
        UserError: There is nobody to ask.
    """
    fixed = [change.what for change in changes if change.how == "restart"]
    if fixed:
        hint = "nothing was applied: `tuneplex down`, then `tuneplex up FLEET`"
        raise StateError(f"this cannot change while the fleet runs: {', '.join(fixed)}", hint=hint)
    if wish.yes:
        return True
    if not sys.stdin.isatty() or wish.as_json:
        raise UserError("there is nobody to ask", hint="add --yes to apply, or --dry-run to only see the difference")
    return terminal.confirm("apply?")
