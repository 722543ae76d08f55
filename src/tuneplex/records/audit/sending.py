"""Gives heads of the audit log to another place, where nobody who can write the log can take them back."""

from __future__ import annotations

import httpx2
import msgspec

from tuneplex.errors import AuditError
from tuneplex.records.audit.marks import SignedHead

__all__ = ["post_head"]

_TIMEOUT_S = 10.0


class _Body(msgspec.Struct, frozen=True):
    head: str
    n: int
    at: float
    key_id: str


async def post_head(client: httpx2.AsyncClient, url: str, signed: SignedHead) -> None:
    """Send a checkpoint's place as JSON: `{"head": "n:chain", "n", "at", "key_id"}`.

    Args:
        client: Whose connections are used; it may have headers, as for a bearer token.
        url: Where to; any 2xx says that it was kept.
        signed: The checkpoint.

    Raises:
        AuditError: It was not taken; send the next one.
    """
    body = msgspec.json.encode(_Body(str(signed.head), signed.n, signed.at, signed.key_id))
    headers = {"content-type": "application/json"}
    try:
        reply = await client.post(url, content=body, headers=headers, timeout=_TIMEOUT_S)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise AuditError(f"the audit log's head was not taken: {str(error) or type(error).__name__}") from error
    if not reply.is_success:
        raise AuditError(f"the audit log's head was not taken: status {reply.status_code}")
