"""Unix sockets for this user only."""

from __future__ import annotations

import os
import socket
from pathlib import Path

__all__ = ["private_socket"]

_LONGEST_PATH = 107


def private_socket(path: Path) -> socket.socket:
    """A Unix socket that is bound, mode 0600, and not yet listening. A file that is in the way is removed.

    Raises:
        ValueError: The path is longer than the kernel allows.
    """
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ValueError(f"{path} is too long for a socket: at most {_LONGEST_PATH} bytes")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # so that there is no moment at which others could connect
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener
