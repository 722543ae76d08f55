"""What an `Idempotency-Key` says: pure functions of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256

from tuneplex.errors import BadRequest

__all__ = ["KEY", "fingerprint", "name_of", "read_key"]

KEY = b"idempotency-key"

_LONGEST = 255
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def read_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key of a request that has the header.

    Raises:
        BadRequest: It is empty, too long, or has control characters.
    """
    key = headers[KEY].strip()
    if not key or len(key) > _LONGEST or _CONTROL.search(key) is not None:
        words = f"Idempotency-Key: must have 1 to {_LONGEST} bytes, and no control characters."
        raise BadRequest(words, code="invalid_idempotency_key")
    return key


def name_of(tenant: str, key: bytes) -> bytes:
    """What an entry of the store is called: tenants share no keys, and no key can be read there."""
    return sha256(b"%b\0%b" % (tenant.encode(), key)).digest()


def fingerprint(route: str, deployment: str | None, body: bytes) -> bytes:
    """The same for the same request only."""
    return sha256(b"%b\0%b\0%b" % (route.encode(), (deployment or "").encode(), body)).digest()
