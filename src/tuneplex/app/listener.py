"""The fleet's listening socket: bound once by the supervisor, inherited by every gateway."""

from __future__ import annotations

import errno
import socket

from tuneplex.errors import StateError
from tuneplex.types import Listen

__all__ = ["bind", "public_url"]

_BACKLOG = 2048
_REASONS = {
    errno.EADDRINUSE: ("something else listens there already", "stop it, or choose another listen.port"),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "set listen.host to one it has, for instance 127.0.0.1"),
    errno.EACCES: ("ports below 1024 need more rights", "choose another listen.port"),
}


def bind(listen: Listen) -> socket.socket:
    """A socket that listens where the fleet file says.

    Raises:
        StateError: That is not possible, and why.
    """
    where = f"{listen.host}:{listen.port}"
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StateError(f"cannot listen on {where}: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason, hint = _REASONS.get(error.errno or 0, (error.strerror or str(error), ""))
        raise StateError(f"cannot listen on {where}: {reason}", hint=hint) from error
    return listener


def public_url(listen: Listen, listener: socket.socket) -> str:
    """Where clients call: `http://127.0.0.1:8000/v1`, with the port that was really bound."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104 - compared, not bound
    scheme = "https" if listen.tls_cert else "http"
    port = listener.getsockname()[1]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1"
