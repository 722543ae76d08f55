"""The client of a running fleet's admin API."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import msgspec

from tuneplex.errors import StateError, TuneplexError
from tuneplex.types import Change, FleetSpec, Status

__all__ = ["Admin"]

_TIMEOUT_S = 10.0
_APPLY_S = 120.0  # control answers when the live part is done; adapters load one after the other


class Admin:
    """Speaks to control over the admin socket.

    Args:
        socket: The path of `admin.sock`.
    """

    def __init__(self, socket: Path) -> None:
        # Loading the system's certificates takes 40 ms, and a Unix socket needs none.
        transport = httpx2.HTTPTransport(uds=str(socket), verify=False)
        self._client = httpx2.Client(transport=transport, base_url="http://control", timeout=_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def status(self) -> Status:
        """What the fleet looks like now.

        Raises:
            StateError: Control does not answer.
        """
        return msgspec.json.decode(self._ask("GET", "/status"), type=Status)

    def apply(self, spec: FleetSpec, *, dry_run: bool) -> tuple[Change, ...]:
        """Bring the fleet to `spec`, or only tell what would change.

        Raises:
            StateError: Control does not answer.
            TuneplexError: It refused; the message is its own.
        """
        query = {"dry_run": "1"} if dry_run else {}
        reply = self._ask("POST", "/apply", params=query, content=msgspec.json.encode(spec), timeout=_APPLY_S)
        return msgspec.json.decode(reply, type=tuple[Change, ...])

    def _ask(self, method: str, path: str, **how: Any) -> bytes:  # noqa: ANN401 - passed through to httpx2
        try:
            reply = self._client.request(method, path, **how)
        except httpx2.HTTPError as error:
            hint = "it may be restarting: try again, or see `tuneplex logs control`"
            raise StateError(f"the fleet's control process does not answer ({error})", hint=hint) from error
        if reply.is_error:
            raise TuneplexError(_message(reply.content) or f"the admin API answered {reply.status_code}")
        return reply.content


def _message(body: bytes) -> str:
    """The message in an error body of OpenAI's shape, or nothing."""
    try:
        shape = msgspec.json.decode(body, type=dict[str, dict[str, Any]])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return ""
    return str(shape.get("error", {}).get("message", ""))
