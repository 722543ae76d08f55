"""The last known keys in a file, for a start without the database."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from tuneplex.files import write_whole
from tuneplex.identity import Access

__all__ = ["read_snapshot", "write_snapshot"]


def read_snapshot(path: Path) -> Access | None:
    """What the file holds; None when there is no such file, or none that can be read."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Access)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        logging.getLogger(__name__).warning("%s cannot be used: %s", path, error)
        return None


def write_snapshot(path: Path, access: Access) -> None:
    """Replace the file as a whole, mode 0600.

    Raises:
        OSError: It cannot be written.
    """
    write_whole(path, msgspec.msgpack.encode(access))
