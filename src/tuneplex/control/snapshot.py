"""The last known keys in a file, for a start without the database."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuneplex.files import write_whole
from tuneplex.identity import Access
from tuneplex.log import get_logger

__all__ = ["read_snapshot", "write_snapshot"]


def read_snapshot(path: Path) -> Access | None:
    """What the file holds; None when there is no such file, or none that can be read."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Access)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        get_logger(__name__).warning("the snapshot of the keys cannot be used", path=path, error=error)
        return None


def write_snapshot(path: Path, access: Access) -> None:
    """Replace the file as a whole, mode 0600.

    Raises:
        OSError: It cannot be written.
    """
    write_whole(path, msgspec.msgpack.encode(access))
