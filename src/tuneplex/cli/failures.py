"""What a person is told when a command fails, and the exit code: a pure function of the error."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from tuneplex.errors import AuditError, EngineStartError, StoreDown, TuneplexError, UserError

__all__ = ["FAILED", "INTERRUPTED", "WRONG_INPUT", "Failure", "failure"]

FAILED = 1
WRONG_INPUT = 2
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MAKE_ROOM = "make some: tuneplex writes into its state directory, its cache and /tmp; `tuneplex doctor` says where"
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Failure:
    """What to say.

    Attributes:
        message: What is wrong.
        hint: What to do about it, or empty.
        tail: The last lines of the engine or program that failed, or empty.
        code: The exit code.
    """

    message: str
    hint: str = ""
    tail: str = ""
    code: int = FAILED


def failure(error: Exception, argv: Sequence[str]) -> Failure:
    """What to say about an error of the command line `argv`."""
    if isinstance(error, UserError):
        return Failure(str(error), error.hint, error.tail, code=WRONG_INPUT)
    if isinstance(error, EngineStartError):
        return Failure(str(error), "`tuneplex logs` shows more", error.tail)
    if isinstance(error, StoreDown):
        return Failure(
            str(error),
            "callers are served on with the keys that are known; `tuneplex status` tells when the database is back",
        )
    if isinstance(error, TuneplexError):
        return Failure(str(error), error.hint if isinstance(error, AuditError) else "")
    if isinstance(error, typer.TyperException):
        return Failure(error.format_message(), f"see `{_help(error)}`", code=error.exit_code)
    return _unexpected(error, argv)


def _unexpected(error: Exception, argv: Sequence[str]) -> Failure:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        where = f" for {error.filename}" if error.filename else ""
        return Failure(f"the disk has no room left{where} ({error.strerror})", _MAKE_ROOM)
    return Failure(
        f"unexpected {type(error).__name__}: {error}",
        f"`{shlex.join(('tuneplex', '--debug', *argv))}` shows where it comes from",
    )


def _help(error: typer.TyperException) -> str:
    """The help of the command that was used wrongly; typer notes it with the error."""
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'tuneplex'} --help"
