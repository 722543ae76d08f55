"""Who may call: the bearer token, and the origins of web pages."""

from __future__ import annotations

import ipaddress
import re
from hashlib import sha256
from hmac import compare_digest

from tuneplex.errors import Unauthorized
from tuneplex.identity import Principal
from tuneplex.types import GatewaySettings

__all__ = ["authenticate", "cors_headers", "is_loopback", "preflight_headers"]

_ANYBODY = Principal("default", "none")
_KEY_HOLDER = Principal("default", "default")
_BEARER = b"bearer "
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9 ,_-]{1,2000}")


def authenticate(settings: GatewaySettings, authorization: bytes) -> Principal:
    """Who sends this `authorization` header.

    Raises:
        Unauthorized: The token is missing or not the one we know.
    """
    if settings.key_sha256 is None:
        return _ANYBODY
    if authorization[:7].lower() != _BEARER:
        raise Unauthorized("You need to send a key: `Authorization: Bearer KEY`.", code="missing_api_key")
    digest = sha256(authorization[7:].strip()).hexdigest()
    if not compare_digest(digest, settings.key_sha256):
        raise Unauthorized("This key is not valid.", code="invalid_api_key")
    return _KEY_HOLDER


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
    return (
        b"access-control-allow-origin: %b\r\nvary: origin\r\n"
        b"access-control-expose-headers: x-request-id, retry-after\r\n" % allowed
    )


def preflight_headers(requested: bytes) -> bytes:
    """Header lines that answer a preflight request which asks for these headers."""
    names = requested if _HEADER_NAMES.fullmatch(requested) else b"authorization, content-type"
    return (
        b"access-control-allow-methods: GET, POST, OPTIONS\r\n"
        b"access-control-allow-headers: %b\r\naccess-control-max-age: 600\r\n" % names
    )
