"""New keys."""

from __future__ import annotations

import hashlib
import re

from tuneplex.identity import Key, Scope
from tuneplex.records import mint


def test_token_holds_the_id_and_a_secret() -> None:
    """Clients send a text that is easy to find in a leak, and of which only the digest is kept."""
    key, token = mint("acme", 5)
    assert re.fullmatch(r"tpx-[a-z0-9]{12}-[A-Za-z0-9]{43}", token)
    assert token.split("-")[1] == key.id
    assert key.sha256 == hashlib.sha256(token.encode()).hexdigest()
    assert token.split("-")[2] not in repr(key)


def test_settings_arrive() -> None:
    """All that was asked for is in the key."""
    key, _ = mint("t", 5, label="l", scopes=(Scope.ADMIN,), adapters=("a",), base=False, expires=9, replaces="old")
    expected = Key(
        key.id, "t", key.sha256, "l", (Scope.ADMIN,), ("a",), base=False, created=5, expires=9, replaces="old"
    )
    assert key == expected


def test_no_two_are_the_same() -> None:
    """Ids and secrets are random."""
    made = [mint("t", 0) for _ in range(1000)]
    assert len({key.id for key, _ in made}) == len({token[-43:] for _, token in made}) == 1000
