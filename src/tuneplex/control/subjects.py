"""Who and what has limits, and what they have used of them: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tuneplex.control.bodies import LimitsInfo, LimitUse
from tuneplex.identity import Access, Limits
from tuneplex.types import FleetSpec, GatewayReport
from tuneplex.units import format_money

__all__ = ["limited", "uses"]

_NONE = Limits()


def limited(spec: FleetSpec, access: Access | None) -> dict[str, Limits]:
    """All subjects that have limits, by name: tenants, keys, models."""
    tenants = {} if access is None else {f"tenant {tenant.name}": tenant.limits for tenant in access.tenants}
    keys = {} if access is None else {f"key {key.id}": key.limits for key in access.keys}
    names = (spec.base.name, *(version.name for version in spec.adapters))
    models = {f"model {name}": spec.limits.get(name, _NONE) for name in names}
    return {name: limits for name, limits in {**tenants, **keys, **models}.items() if limits != _NONE}


def uses(
    limits: Mapping[str, Limits],
    reports: Iterable[GatewayReport],
    spent: Mapping[str, Mapping[str, int]],
    currency: str = "",
) -> tuple[LimitUse, ...]:
    """What each subject has used of its limits, over all gateways.

    Args:
        limits: Of all subjects that have any, by name.
        reports: The latest one of each gateway.
        spent: In this day and this month, by kind of limit and by subject.
        currency: The fleet's.
    """
    found = tuple(reports)
    uses = (_use(name, found, {kind: amounts.get(name, 0) for kind, amounts in spent.items()}) for name in limits)
    return tuple(
        msgspec.structs.replace(one, limits=LimitsInfo.of(limits[one.subject], currency), currency=currency)
        for one in uses
    )


def _use(name: str, reports: Iterable[GatewayReport], spent: Mapping[str, int]) -> LimitUse:
    used = [report.used[name] for report in reports if name in report.used]
    return LimitUse(
        subject=name,
        requests=sum(one.requests for one in used),
        tokens=sum(one.tokens for one in used),
        day_tokens=spent.get("tokens_per_day", 0),
        month_money=format_money(spent.get("money_per_month", 0)),
        concurrent=sum(one.concurrent for one in used),
        refused=sum(one.refused for one in used),
    )
