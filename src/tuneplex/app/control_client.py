"""What a gateway process asks of control: the metrics of the whole fleet, and what admins want of it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

from tuneplex.gateway import AdminCall, AdminReply

__all__ = ["ControlClient"]

_HOST = "http://control"
_METRICS_TIMEOUT_S = 3.0
_ADMIN_TIMEOUT_S = 30.0  # a large fleet has to be read and written; a control that hangs answers never
_CONNECT_TIMEOUT_S = 2.0


class ControlClient:
    """Speaks to control over the admin socket, as an async context manager.

    Args:
        socket: The path of `admin.sock`.
    """

    def __init__(self, socket: Path) -> None:
        transport = httpx2.AsyncHTTPTransport(uds=str(socket), verify=False)  # a socket of our own has no TLS
        self._client = httpx2.AsyncClient(transport=transport, timeout=_METRICS_TIMEOUT_S, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def metrics(self) -> bytes:
        """The fleet's page.

        Raises:
            OSError: Control does not answer.
        """
        try:
            reply = await self._client.get(f"{_HOST}/metrics")
            return reply.raise_for_status().content
        except httpx2.HTTPError as error:
            raise OSError(str(error)) from error

    async def admin(self, call: AdminCall) -> AdminReply:
        """What control answers; see `gateway.AdminSource`.

        Raises:
            ConnectionError: Control was not reached.
            TimeoutError: It did not answer in time.
            OSError: It broke off.
        """
        timeout = httpx2.Timeout(_ADMIN_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        headers = [(name.encode(), value.encode("latin-1")) for name, value in call.headers.items()]  # as they came
        try:
            reply = await self._client.request(
                call.method, f"{_HOST}{call.target}", content=call.body, headers=headers, timeout=timeout
            )
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise ConnectionRefusedError(str(error)) from error
        except httpx2.TimeoutException as error:
            raise TimeoutError(str(error)) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise OSError(str(error)) from error
        return AdminReply(
            reply.status_code, {name.lower(): value for name, value in reply.headers.items()}, reply.content
        )
