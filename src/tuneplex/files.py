"""Files that are replaced as a whole: a reader sees the old content or the new one, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["replaced", "sync_directory", "write_whole"]


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file; see `replaced`."""
    with replaced(path) as file:
        file.write(content)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file for the new content, for this user's eyes only; it takes the place of `path` when the block is over.

    The new content is on the disk before it takes that place, and the place is on the disk when this ends, so that
    neither a crash nor a power failure brings half of it, or an older one back. When the block fails nothing changes.

    Raises:
        OSError: It cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Bring to the disk which files there are; some file systems cannot, and then there is nothing more to be done."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
