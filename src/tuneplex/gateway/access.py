"""Who may call: the bearer token, what a key is for, and the origins of web pages."""

from __future__ import annotations

import ipaddress
import re
from hashlib import sha256

from tuneplex.errors import Forbidden, Unauthorized
from tuneplex.gateway.forms import REPLY_HEADERS
from tuneplex.gateway.principals import NO_KEY, Principals
from tuneplex.identity import Principal, Scope
from tuneplex.types import GatewaySettings

__all__ = ["authenticate", "cors_headers", "demand", "is_loopback", "preflight_headers"]

_BEARER = b"bearer "
# The other two mean nothing to a page: its browser reads them.
_EXPOSED = ", ".join(name for name in REPLY_HEADERS if name not in {"allow", "www-authenticate"}).encode()
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9 ,_-]{1,2000}")


def authenticate(known: Principals, authorization: bytes, now: float) -> Principal:
    """Who sends this `authorization` header at `now`, Unix time.

    Raises:
        Unauthorized: The key is missing, unknown or expired.
    """
    if known.anybody is not None:
        return known.anybody
    if authorization[:7].lower() != _BEARER:
        raise _missing()
    # Looking up a digest tells nothing by its timing: nobody can choose a key whose digest begins as another one's.
    principal = known.keyed.get(sha256(authorization[7:].strip()).hexdigest())
    if principal is None:
        raise Unauthorized("This key is not valid.", code="invalid_api_key")
    if principal.expires is not None and principal.expires <= now:
        raise Unauthorized("This key has expired.", code="expired_api_key")
    return principal


def demand(principal: Principal, scopes: tuple[Scope, ...]) -> None:
    """Let only those pass whose key is for at least one of these.

    Raises:
        Forbidden: The key is for something else.
        Unauthorized: There is no key at all.
    """
    for scope in scopes:
        if scope in principal.scopes:
            return
    if principal.key_id == NO_KEY:
        raise _missing()
    raise Forbidden(f"This key is not for that: it needs the scope `{'` or `'.join(scopes)}`.", code="scope_missing")


def _missing() -> Unauthorized:
    return Unauthorized("You need to send a key: `Authorization: Bearer KEY`.", code="missing_api_key")


def is_loopback(peer: str) -> bool:
    """Whether a peer's address is on this machine; a Unix socket has an empty one."""
    if not peer:
        return True
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def cors_headers(settings: GatewaySettings, origin: bytes) -> bytes:
    """Header lines that let a page of `origin` read the reply; none if it may not."""
    if not settings.cors_origins:
        return b""
    if "*" in settings.cors_origins:
        allowed = b"*"
    elif origin.decode("latin-1") in settings.cors_origins:
        allowed = origin
    else:
        return b"vary: origin\r\n"
    return b"access-control-allow-origin: %b\r\nvary: origin\r\naccess-control-expose-headers: %b\r\n" % (
        allowed,
        _EXPOSED,
    )


def preflight_headers(requested: bytes) -> bytes:
    """Header lines that answer a preflight request which asks for these headers."""
    names = requested if _HEADER_NAMES.fullmatch(requested) else b"authorization, content-type"
    return (
        b"access-control-allow-methods: GET, POST, PATCH, DELETE, OPTIONS\r\n"
        b"access-control-allow-headers: %b\r\naccess-control-max-age: 600\r\n" % names
    )
