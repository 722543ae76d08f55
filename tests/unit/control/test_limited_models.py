"""Limits as gateways and people are told of them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.unit.control.conftest import version, view_of
from tuneplex.control.bodies import LimitUse
from tuneplex.control.subjects import limited, uses
from tuneplex.identity import Access, Key, Limits, Tenant
from tuneplex.types import FleetSpec, GatewayReport, Listen, Used

MakeSpec = Callable[..., FleetSpec]

FEW, MANY = Limits(concurrent=1), Limits(requests_per_minute=600)
replace = msgspec.structs.replace


def test_the_view_has_the_limits_of_models(make_spec: MakeSpec) -> None:
    """Base and adapters carry their limits, and the view says how many gateways share them."""
    spec = replace(make_spec(version("a"), version("b")), limits={"base": MANY, "a": FEW}, listen=Listen(gateways=3))
    view = view_of(spec)
    assert {name: model.limits for name, model in view.models.items()} == {"base": MANY, "a": FEW, "b": Limits()}
    assert view.gateways == 3


def test_whatever_has_limits_has_a_name(make_spec: MakeSpec) -> None:
    """Tenants, keys and models of the same name are told apart; what has no limits, or is gone, is left out."""
    spec = replace(make_spec(version("acme")), limits={"acme": FEW, "gone": FEW})
    tenants, keys = (Tenant("acme", limits=MANY), Tenant("default")), (Key("acme", "acme", "", limits=FEW),)
    found = limited(spec, Access(tenants=tenants, keys=keys))
    assert found == {"tenant acme": MANY, "key acme": FEW, "model acme": FEW}
    assert limited(spec, None) == {"model acme": FEW}


def test_use_is_the_sum_over_gateways() -> None:
    """Each gateway adds what it has let in; the day is counted apart, since it outlives gateways."""
    reports = [
        GatewayReport(0, 1, 0, used={"tenant acme": Used(2, 30, 5, 40, 1, 3)}),
        GatewayReport(1, 2, 0, used={"tenant acme": Used(1, 5, 5, 5, 2, 0), "model sql": Used(9)}),
        GatewayReport(2, 3, 0),
    ]
    found = uses({"tenant acme": MANY, "key k": FEW}, reports, {"tenant acme": 99})
    assert found == (LimitUse("tenant acme", MANY, 3, 35, 99, 3, 3), LimitUse("key k", FEW))
