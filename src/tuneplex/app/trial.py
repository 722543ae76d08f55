"""What a process that takes the place of another one tells the supervisor, which waits for it."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Self

__all__ = ["Trial"]


class Trial:
    """Says how far this process is, if anybody wants to know; a context manager.

    Args:
        descriptor: Of a pipe whose other end the supervisor reads; None if it does not.
    """

    def __init__(self, descriptor: int | None) -> None:
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
        self._pipe = None if descriptor is None else os.fdopen(descriptor, "wb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def say(self, word: str) -> None:
        """Tell; whoever does not listen any more has made up its mind."""
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                self._pipe.write(word.encode() + b"\n")

    def close(self) -> None:
        """There is no more to say."""
        if self._pipe is not None:
            self._pipe.close()
