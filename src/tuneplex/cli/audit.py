"""`audit`: whether the audit log is as it was written, its newest checkpoint, and its events for somebody else."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Literal

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli import render_audit as render
from tuneplex.cli.admin import Admin
from tuneplex.cli.terminal import Terminal
from tuneplex.errors import AuditError, UserError
from tuneplex.files import replaced
from tuneplex.objects import Place
from tuneplex.records.audit import (
    CONTROL,
    PUBLIC_FILE,
    AuditEvent,
    AuditLog,
    Head,
    Picked,
    PublicKey,
    Selection,
    has_log,
    kept_heads,
    newest_head,
    selected,
    verify,
)
from tuneplex.types import ObjectStore

__all__ = ["Export", "check", "export", "head"]


@dataclass(frozen=True, slots=True)
class Export:
    """What is wanted of the log, and where it goes.

    Attributes:
        selection: Which events.
        form: As lines of JSON, each as it stands in the log, or as a table.
        file: Where to; None is standard output.
        force: Whether a file that is there may be replaced.
    """

    selection: Selection
    form: Literal["jsonl", "csv"]
    file: Path | None
    force: bool


def check(directory: Path, public_key: Path | None, expect: str | None, *, as_json: bool) -> int:
    """Verify a log and print what was found; 1 when it is not proven.

    Raises:
        UserError: `expect` is neither a head nor a place in an object store.
        AuditError: A file, the key or a head that was kept cannot be read.
    """
    terminal = Terminal.standard()
    key = PublicKey.read(public_key or _beside(directory))
    kept = [] if expect is None else _expected(expect, key)
    found = verify(directory, key, kept)
    if as_json:
        terminal.json(msgspec.to_builtins(found))
    else:
        for line in render.report(found, time.time()):
            terminal.say(line)
        if expect is not None and expect.startswith("s3:") and found.ok:
            terminal.say(f"the log agrees with the heads in {expect}: {len(kept)}, the newest of record {kept[-1].n}")
    if found.incomplete:
        terminal.warn(f"the last line of {found.incomplete} has no end: it is being written, or a crash cut it off")
    if public_key is None:
        terminal.warn("the public key was taken from beside the log; one that was kept elsewhere proves more")
    return 0 if found.ok else 1


def _expected(text: str, key: PublicKey) -> list[Head]:
    """The head that was given, or all that are kept in an object store."""
    try:
        if text.startswith("s3:"):
            return kept_heads(Place.parse(text), ObjectStore(), key.id)
        return [Head.parse(text)]
    except ValueError as error:
        raise UserError(f"--expect: {error}", hint="`tuneplex audit head` prints the newest one") from None


def _beside(directory: Path) -> Path:
    file = directory / PUBLIC_FILE
    if not file.exists():
        raise AuditError(f"there is no {file}", hint="--public-key FILE names the key that was kept elsewhere")
    return file


def head(state: StateDir, *, as_json: bool) -> int:
    """Print the newest checkpoint.

    Raises:
        AuditError: There is none.
    """
    terminal = Terminal.standard()
    found = newest_head(state.audit)
    if found is None:
        raise _none(state)
    if as_json:
        terminal.json({"head": str(found.head), **msgspec.to_builtins(found)})
    else:
        terminal.say(str(found.head))
    return 0


def _none(state: StateDir) -> AuditError:
    return AuditError(f"there is no audit log in {state.audit}", hint="--fleet or --state-dir names another fleet")


def export(state: StateDir, wish: Export) -> int:
    """Print events, after the log itself has it who reads them; 1 when some lines cannot be read.

    Raises:
        UserError: The file is there already, or cannot be written.
        AuditError: There is no log, or it cannot be read, or not be noted who reads it; then nothing is printed.
    """
    terminal = Terminal.standard()
    if not has_log(state.audit):
        raise _none(state)
    if wish.file is not None and wish.file.exists() and not wish.force:
        raise UserError(f"{wish.file} exists already", hint="--force replaces it")
    note_read(state, _reading(wish))
    with _opened(wish.file, terminal) as out:
        count, bad = _copy(selected(state.audit, wish.selection), wish.form, out)
    if wish.file is not None:
        terminal.say(f"{count} events are in {wish.file}")
    if bad:
        terminal.warn(f"{bad} lines cannot be read; `tuneplex audit verify` names them")
    return 1 if bad else 0


def note_read(state: StateDir, event: AuditEvent) -> None:
    """Put it into the log that somebody reads it: by the fleet's control process, or here when no fleet runs.

    Raises:
        AuditError: It cannot be written.
        StateError: Control does not answer.
    """
    if not state.is_locked():
        with AuditLog(state.audit) as log:
            log.append([event])
        return
    with Admin(state.admin_socket) as admin:
        admin.note_read(event)


def _reading(wish: Export) -> AuditEvent:
    wanted = wish.selection
    bounds = {"from": wanted.since, "to": wanted.until}
    details = {name: render.instant_text(at) for name, at in bounds.items() if abs(at) != float("inf")}
    return AuditEvent(
        source=CONTROL,
        seq=0,
        at=time.time(),
        event="read",
        actor=f"local:{_user()}",
        tenant=wanted.tenant or "",
        action="audit.export",
        details={**details, "format": wish.form},
    )


def _user() -> str:
    """Who runs this command: as the system knows it, not as the environment says."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@contextmanager
def _opened(file: Path | None, terminal: Terminal) -> Iterator[IO[str]]:
    """Where the events go; a file is there as a whole or not at all.

    Raises:
        UserError: The file cannot be written.
    """
    if file is None:
        yield terminal.out.file
        terminal.out.file.flush()
        return
    try:
        with replaced(file) as raw:
            text = TextIOWrapper(raw, encoding="utf-8", newline="")
            yield text
            text.detach()
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror or error}") from error


def _copy(found: Iterable[Picked | None], form: Literal["jsonl", "csv"], out: IO[str]) -> tuple[int, int]:
    """Write events; how many there were, and how many lines could not be read."""
    count = bad = 0
    if form == "csv":
        out.write(render.csv_head())
    for picked in found:
        if picked is None:
            bad += 1
            continue
        out.write(render.csv_row(picked) if form == "csv" else picked.raw.decode(errors="replace"))
        count += 1
    return count, bad
