"""`traffic export`: when requests came and how large they were, one after the other, never all in memory."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli.days import moment_of
from tuneplex.cli.offline import settled
from tuneplex.cli.progress import shown
from tuneplex.cli.terminal import Terminal
from tuneplex.cli.trace import trace
from tuneplex.errors import UserError
from tuneplex.files import replaced

__all__ = ["Wish", "export"]

_KEY_BYTES = 32
_SILENT_S = 2.0
_PERMILLE = 1000
_LOOK_EVERY = 256


class Wish(msgspec.Struct, frozen=True):
    """What is asked.

    Attributes:
        since: From when on, as it was given.
        until: Up to when; now if nothing was given.
        output: Where to; standard output if nothing was given.
        key: The file of the key that names are hashed by; one that is thrown away if nothing was given.
        force: Replace a file that is there.
    """

    since: str
    until: str | None = None
    output: Path | None = None
    key: Path | None = None
    force: bool = False


def export(state: StateDir, wish: Wish) -> int:
    """Write the trace; a file is there as a whole or not at all.

    Raises:
        UserError: A time is none, the file is there already, or the store cannot be used.
        TuneplexError: The database does not answer.
    """
    now = time.time()
    start = moment_of(wish.since, "--since", now)
    end = now if wish.until is None else moment_of(wish.until, "--until", now, end=True)
    if start >= end:
        raise UserError("--since is not before --until")
    if wish.output is not None and wish.output.exists() and not wish.force:
        raise UserError(f"{wish.output} is there already", hint="--force replaces it")
    key = secrets.token_bytes(_KEY_BYTES) if wish.key is None else _key(wish.key)
    terminal = Terminal.standard()
    with settled(state) as store, _written(wish.output) as file:
        lines = trace(store.each_arrival(state.read_spec().name, start, end), start, end, key)
        count = _write(lines, file, terminal)
    if wish.output is not None:
        terminal.say(f"{count:,} requests are in {wish.output}")
    return 0


def _write(lines: Iterator[tuple[float, bytes]], file: BinaryIO, terminal: Terminal) -> int:
    """Write the lines; how many requests they are. From the third second on it tells how far it is."""
    began, count, told = time.monotonic(), -1, False
    with shown(terminal) as progress:
        for done, line in lines:
            file.write(line)
            count += 1
            if count % _LOOK_EVERY == 0 and time.monotonic() - began > _SILENT_S:
                if not told:
                    progress.step("writing requests")
                told = True
                progress.advance(int(done * _PERMILLE), _PERMILLE)
    return count


@contextmanager
def _written(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with replaced(path) as file:
        yield file


def _key(path: Path) -> bytes:
    """The key in a file, which is made where it is not there: for this user's eyes only.

    Raises:
        UserError: It holds something else.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = path.read_text(errors="replace").strip()
    else:
        found = secrets.token_hex(_KEY_BYTES)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{found}\n")
    try:
        key = bytes.fromhex(found)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise UserError(f"{path} holds no key", hint="name a file that is not there yet, and it is made")
    return key
