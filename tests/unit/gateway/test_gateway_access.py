"""Keys and origins."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest

from tuneplex.errors import Forbidden, Unauthorized
from tuneplex.gateway.access import authenticate, cors_headers, demand, is_loopback, preflight_headers
from tuneplex.gateway.principals import principals
from tuneplex.identity import Access, Key, Principal, Scope, Tenant
from tuneplex.types import GatewaySettings

NOW = 1_000_000
OPEN = principals(GatewaySettings(), Access())
LOCKED = principals(GatewaySettings(key_sha256=sha256(b"sk-secret").hexdigest()), Access())


@pytest.mark.parametrize("header", [b"Bearer sk-secret", b"bearer sk-secret", b"BEARER  sk-secret "])
def test_the_right_key_is_let_in(header: bytes) -> None:
    """The scheme's case does not matter, nor do spaces."""
    principal = authenticate(LOCKED, header, NOW)
    assert (principal.tenant, principal.key_id) == ("default", "fleet-file")


@pytest.mark.parametrize(
    "header, code",
    [
        (b"", "missing_api_key"),
        (b" ", "missing_api_key"),
        (b"Bearer", "missing_api_key"),
        (b"Bearer\tsk-secret", "missing_api_key"),
        (b"Bearersk-secret", "missing_api_key"),
        (b" Bearer sk-secret", "missing_api_key"),
        (b"Token sk-secret", "missing_api_key"),
        (b"sk-secret", "missing_api_key"),
        (b"Basic sk-secret", "missing_api_key"),
        (b"Bearer ", "invalid_api_key"),
        (b"Bearer sk-secre", "invalid_api_key"),
        (b"Bearer sk-secret2", "invalid_api_key"),
        (b"Bearer \xff", "invalid_api_key"),
        (b"Bearer sk-secret sk-secret", "invalid_api_key"),
        (b"Bearer " + "schlüssel".encode(), "invalid_api_key"),
        (b"Bearer sk-secret" + b"x" * 60_000, "invalid_api_key"),
    ],
)
def test_any_other_is_not(header: bytes, code: str) -> None:
    """The error tells a missing key from a wrong one and repeats neither."""
    with pytest.raises(Unauthorized) as caught:
        authenticate(LOCKED, header, NOW)
    assert caught.value.code == code
    assert "sk-" not in caught.value.message


def test_without_a_key_everybody_is_let_in() -> None:
    """A gateway on loopback may do without, and then it does not matter what clients send."""
    for header in (b"", b"Bearer whatever", b"Basic \xff"):
        assert authenticate(OPEN, header, NOW).key_id == "none"


def test_a_key_opens_until_it_expires() -> None:
    """At the very second of its end it opens no more, and the error says why."""
    key = Key("k1", "default", sha256(b"sk-1").hexdigest(), expires=NOW)
    known = principals(GatewaySettings(), Access(tenants=(Tenant("default"),), keys=(key,)))
    assert authenticate(known, b"Bearer sk-1", NOW - 0.001).key_id == "k1"
    for late in (NOW, NOW + 1000):
        with pytest.raises(Unauthorized) as caught:
            authenticate(known, b"Bearer sk-1", late)
        assert caught.value.code == "expired_api_key"


@pytest.mark.parametrize("scope", list(Scope))
def test_a_key_is_for_its_scopes_only(scope: Scope) -> None:
    """One of the scopes that would do is enough; without any of them the key is refused, whatever else it is for."""
    principal = Principal("acme", "k1", scopes=(scope,))
    demand(principal, (scope,))
    demand(principal, tuple(Scope))
    with pytest.raises(Forbidden) as caught:
        demand(principal, tuple(other for other in Scope if other is not scope))
    assert caught.value.code == "scope_missing"


def test_who_has_no_key_is_asked_for_one() -> None:
    """Where callers need no key, what needs a scope that only keys have asks for a key instead of another one."""
    with pytest.raises(Unauthorized) as caught:
        demand(authenticate(OPEN, b"", NOW), (Scope.ADMIN,))
    assert caught.value.code == "missing_api_key"
    nameless = msgspec.structs.replace(authenticate(OPEN, b"", NOW), key_id="k1")
    with pytest.raises(Forbidden):
        demand(nameless, (Scope.ADMIN,))


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
