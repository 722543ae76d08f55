"""Who has a TCP port of this machine."""

from __future__ import annotations

import errno
import socket

import psutil

from tuneplex.errors import StateError
from tuneplex.types import Listen

__all__ = ["owner", "refuse_taken"]


def refuse_taken(listen: Listen) -> None:
    """Say who has the port before anything is started.

    Raises:
        StateError: Another program listens there.
    """
    taken_by = owner(listen.host, listen.port) if listen.port else None
    if taken_by is not None:
        hint = "choose another one: gateway.port in the fleet file (0 takes any free one), or --port"
        raise StateError(f"port {listen.port} is taken by {taken_by}", hint=hint)


def owner(host: str, port: int) -> str | None:
    """Who listens on a TCP port of this machine: `python (pid 12)`, `another program`, or None when it is free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:  # what else may be wrong with it, the supervisor's own bind says better
            return _listener(port) if error.errno == errno.EADDRINUSE else None
    return None


def _listener(port: int) -> str:
    try:
        listening = [one for one in psutil.net_connections(kind="tcp") if one.status == psutil.CONN_LISTEN]
        pid = next(one.pid for one in listening if one.laddr[1:] == (port,) and one.pid)
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except (psutil.Error, StopIteration):
        return "another program"
