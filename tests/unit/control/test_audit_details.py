"""What the audit log says of a change: names and ids, and no secret."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.control.audit_routes import details_of
from tuneplex.control.bodies import KeyChange, KeyInfo, KeyWish, NewKey, TenantChange, TenantWish
from tuneplex.control.operations import Call
from tuneplex.identity import Key
from tuneplex.types import Change

NEW = NewKey(KeyInfo.of(Key("k7", "acme", "0" * 64), 0.0, ""), "tpx-secret")


@pytest.mark.parametrize(
    "path, body, answer, details",
    [
        ({}, TenantWish("acme"), None, {"name": "acme"}),
        ({"name": "acme"}, TenantChange(base=False), None, {"name": "acme", "changed": "base"}),
        ({}, KeyWish("acme", label="ci"), NEW, {"tenant": "acme", "label": "ci", "key_id": "k7"}),
        ({"key": "k7"}, KeyChange(label="x"), None, {"key": "k7", "label": "x", "changed": "label"}),
        ({"key": "k7"}, None, None, {"key": "k7"}),
        ({}, None, (Change("alias a", "add", "live"),), {"changed": "alias a: add"}),
    ],
)  # fmt: skip
def test_a_change_says_which(path: dict[str, str], body: object, answer: object, details: dict[str, str]) -> None:
    """Who reads the log later knows whose tenant, key or model it was, and which fields."""
    assert details_of(Call(path, {}, body, "local"), answer) == details
    assert b"secret" not in msgspec.json.encode(details)
