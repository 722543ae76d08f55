"""Keys and origins."""

from __future__ import annotations

from hashlib import sha256

import pytest

from tuneplex.errors import Unauthorized
from tuneplex.gateway.access import authenticate, cors_headers, is_loopback, preflight_headers
from tuneplex.types import GatewaySettings

LOCKED = GatewaySettings(key_sha256=sha256(b"sk-secret").hexdigest())


@pytest.mark.parametrize("header", [b"Bearer sk-secret", b"bearer sk-secret", b"BEARER  sk-secret "])
def test_the_right_key_is_let_in(header: bytes) -> None:
    """The scheme's case does not matter, nor do spaces."""
    assert authenticate(LOCKED, header).tenant == "default"


@pytest.mark.parametrize(
    "header, code",
    [
        (b"", "missing_api_key"),
        (b"sk-secret", "missing_api_key"),
        (b"Basic sk-secret", "missing_api_key"),
        (b"Bearer ", "invalid_api_key"),
        (b"Bearer sk-secre", "invalid_api_key"),
        (b"Bearer sk-secret2", "invalid_api_key"),
        (b"Bearer \xff", "invalid_api_key"),
    ],
)
def test_any_other_is_not(header: bytes, code: str) -> None:
    """The error tells a missing key from a wrong one and repeats neither."""
    with pytest.raises(Unauthorized) as caught:
        authenticate(LOCKED, header)
    assert caught.value.code == code
    assert "sk-" not in caught.value.message


def test_without_a_key_everybody_is_let_in() -> None:
    """A gateway on loopback may do without."""
    assert authenticate(GatewaySettings(), b"").key_id == "none"


@pytest.mark.parametrize(
    "peer, expected",
    [
        ("", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
    ],
)
def test_loopback_is_recognised(peer: str, *, expected: bool) -> None:
    """In every spelling that a peer's address can have."""
    assert is_loopback(peer) is expected


def test_origins() -> None:
    """Only named origins, or all with `*`, may read replies; without any setting nothing is said."""
    one = GatewaySettings(cors_origins=("https://app.example",))
    assert cors_headers(GatewaySettings(), b"https://app.example") == b""
    assert b"allow-origin: https://app.example\r\n" in cors_headers(one, b"https://app.example")
    assert b"allow-origin" not in cors_headers(one, b"https://evil.example")
    assert b"allow-origin: *\r\n" in cors_headers(GatewaySettings(cors_origins=("*",)), b"https://any.example")


def test_preflight_repeats_only_sane_header_names() -> None:
    """What a browser asks for is allowed; what no browser would ask for is not repeated."""
    assert b"allow-headers: authorization, x-stainless-os\r\n" in preflight_headers(b"authorization, x-stainless-os")
    assert b"evil" not in preflight_headers(b"evil: yes")
