"""Limits as gateways and people are told of them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.unit.control.conftest import version, view_of
from tuneplex.control.bodies import LimitsInfo, LimitUse
from tuneplex.control.subjects import limited, uses
from tuneplex.identity import Access, Key, Limits, Tenant
from tuneplex.types import FleetSpec, GatewayReport, Listen, Price, Used

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


def test_the_view_has_the_prices_of_models(make_spec: MakeSpec) -> None:
    """What costs something carries its price, and the currency is among the settings."""
    price = Price(3, 5, 1)
    spec = make_spec(version("a"), version("b"))
    spec = replace(spec, prices={"a": price}, gateway=replace(spec.gateway, currency="EUR"))
    view = view_of(spec)
    assert {name: model.price for name, model in view.models.items()} == {"base": None, "a": price, "b": None}
    assert view.settings.currency == "EUR"


def test_use_is_the_sum_over_gateways() -> None:
    """Each gateway adds what it has let in; day and month are counted apart, since they outlive gateways."""
    reports = [
        GatewayReport(0, 1, 0, used={"tenant acme": Used(2, 30, concurrent=1, refused=3)}),
        GatewayReport(1, 2, 0, used={"tenant acme": Used(1, 5, concurrent=2), "model sql": Used(9)}),
        GatewayReport(2, 3, 0),
    ]
    money = Limits(money_per_month=25 * 10**12, cut_streams=True)
    spent = {"tokens_per_day": {"tenant acme": 99}, "money_per_month": {"key k": 10**20 + 1}}
    found = uses({"tenant acme": MANY, "key k": money}, reports, spent, "EUR")
    shown = LimitsInfo(money_per_month="25.00", currency="EUR", cut_streams=True)
    assert found == (
        LimitUse("tenant acme", LimitsInfo(requests_per_minute=600), 3, 35, 99, "0.00", "EUR", 3, 3),
        LimitUse("key k", shown, month_money="100000000.000000000001", currency="EUR"),
    )
