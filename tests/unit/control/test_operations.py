"""How requests become calls, and what becomes of mistakes."""

from __future__ import annotations

import pytest

from tuneplex.control.bodies import KeyWish, TenantChange, TenantWish
from tuneplex.control.operations import Call, decoded
from tuneplex.errors import BadRequest
from tuneplex.types import FleetSpec


@pytest.mark.parametrize(
    "kind, body, param",
    [
        (TenantWish, b"", "name"),
        (TenantWish, b'{"name": 1}', "name"),
        (TenantWish, b'{"name": "A"}', "name"),
        (TenantWish, b'{"name": "a", "colour": 1}', "colour"),
        (TenantWish, b'{"name": "a", "adapters": ["b", ""]}', "adapters[1]"),
        (KeyWish, b'{"tenant": "a", "scopes": ["root"]}', "scopes[0]"),
        (KeyWish, b'{"tenant": "a", "expires_in_s": -1}', "expires_in_s"),
        (FleetSpec, b'{"name": "a", "base": {"name": "b", "path": ""}, "pools": [{}]}', "pools[0].name"),
        (TenantWish, b"[]", None),
        (TenantWish, b"{", None),
        (TenantWish, b"\xff", None),
        (TenantWish, b'{"name": "\xff"}', None),
    ],
)
def test_a_body_that_does_not_fit_names_the_field(kind: type, body: bytes, param: str | None) -> None:
    """The refusal has the path of the field at fault, where there is one."""
    with pytest.raises(BadRequest) as caught:
        decoded(body, kind)
    assert caught.value.param == param
    assert "$" not in caught.value.message.replace("regex '^[a-z0-9][a-z0-9._-]{0,62}$'", "")


@pytest.mark.parametrize("money", ["25.5", '"25,5"', '"1.1234567890123"', '"-1"', "true"])
def test_wrong_money_is_told_how_to_write_it(money: str) -> None:
    """A number or another odd amount is answered with an example, not with a pattern."""
    with pytest.raises(BadRequest, match=r'for instance "25\.00"') as caught:
        decoded(f'{{"limits": {{"money_per_month": {money}}}}}'.encode(), TenantChange)
    assert caught.value.param == "limits.money_per_month"


def test_flags_are_yes_or_no() -> None:
    """A flag is set by 1, not set by 0, by nothing and by its absence, and nothing else is a flag."""
    call = Call({}, {"yes": "1", "no": "0", "empty": "", "odd": "true"}, None, "local")
    assert call.flag("yes")
    assert not any(call.flag(name) for name in ("no", "empty", "absent"))
    with pytest.raises(BadRequest) as caught:
        call.flag("odd")
    assert caught.value.param == "odd"
