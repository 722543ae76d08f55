"""What the gateways are told, from what was seen: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tuneplex.control.adapters import Use, in_use, uses
from tuneplex.control.seen import Limits, Seen
from tuneplex.identity import Limits as Allowance
from tuneplex.types import FleetSpec, FleetView, Model, Replica

__all__ = ["fleet_view", "unmentioned"]

_NO_TENANT = frozenset({""})  # no tenant is called so
_NO_LIMITS = Allowance()


def fleet_view(
    spec: FleetSpec, seen: Sequence[Seen], *, generation: int, created: int, now: float, limits: Limits
) -> FleetView:
    """The fleet as gateways should see it: every model of the fleet, and what each replica can really answer now."""
    used = in_use(spec, seen)
    base = _model(spec, Model(spec.base.name, spec.base.name, created=created))
    adapters = (_model(spec, Model(name, use.version, parent=base.name, created=created)) for name, use in used.items())
    return FleetView(
        generation=generation,
        models={model.name: model for model in (base, *adapters)},
        aliases=spec.aliases,
        replicas=tuple(_replica(spec, replica, used, now, limits) for replica in seen if replica.alive),
        settings=spec.gateway,
        gateways=spec.listen.gateways,
    )


def _model(spec: FleetSpec, model: Model) -> Model:
    """With its limits and its price."""
    limits = spec.limits.get(model.name, _NO_LIMITS)
    return msgspec.structs.replace(model, limits=limits, price=spec.prices.get(model.name))


def unmentioned(view: FleetView, replica: Seen) -> frozenset[str]:
    """The adapters that a replica has and that a view does not mention."""
    adapters = frozenset(model.id for model in replica.models if model.parent is not None)
    mentioned = (known.serves.values() for known in view.replicas if known.name == replica.name)
    return adapters.difference(*mentioned)


def _replica(spec: FleetSpec, replica: Seen, used: Mapping[str, Use], now: float, limits: Limits) -> Replica:
    record = replica.launched
    return Replica(
        name=record.replica,
        pool=record.pool,
        engine=record.engine,
        endpoint=record.endpoint,
        secret=record.secret,
        state=replica.state(now, limits),
        serves=_serves(spec, replica, used),
        routes=replica.routes,
        tenants=_tenants(spec, record.pool),
    )


def _tenants(spec: FleetSpec, pool: str) -> frozenset[str]:
    """Who a pool is reserved for. A replica whose pool has just gone is for nobody: it may have been reserved."""
    return next((frozenset(known.tenants) for known in spec.pools if known.name == pool), _NO_TENANT)


def _serves(spec: FleetSpec, replica: Seen, used: Mapping[str, Use]) -> dict[str, str]:
    base = replica.base_name(spec.base.name)
    serves = {spec.base.name: base} if base is not None else {}
    for version in spec.adapters:
        use = used[version.name]
        name = uses(use, replica, version)
        if name is not None:
            serves[use.version] = name
    return serves
