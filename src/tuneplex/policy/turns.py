"""How several gateways share the places of a replica, and what a tenant's weight is worth at each of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from tuneplex.types import GatewayReport, Replica, Turns

__all__ = ["local_weights", "places", "turns"]

Demand = Mapping[int, Mapping[str, float]]
_LEAST_PART = 0.1


def turns(
    replicas: Iterable[Replica],
    gateways: Collection[int],
    reports: Iterable[GatewayReport],
    weights: Mapping[str, float],
) -> Turns:
    """How the gateways should share the replicas now; its generation is for the caller to say.

    Args:
        replicas: All there are.
        gateways: Those that there are; those without a report want nothing.
        reports: The latest ones.
        weights: Of tenants; of one that is missing it is 1.
    """
    latest = {report.gateway: report for report in reports if report.gateway in gateways}
    wanted = {index: latest[index].demand if index in latest else {} for index in gateways}
    divided = {
        replica.name: places(
            replica.concurrent, {index: demand.get(replica.name, {}) for index, demand in wanted.items()}, weights
        )
        for replica in replicas
        if replica.concurrent is not None
    }
    everywhere = {index: _sums(demand.values()) for index, demand in wanted.items()}
    return Turns(
        places={index: {name: share[index] for name, share in divided.items()} for index in wanted},
        weights=local_weights(everywhere, weights),
        elsewhere={index: _elsewhere(index, latest.values()) for index in wanted},
        closing=_closing(latest.values()),
    )


def places(capacity: int, demand: Demand, weights: Mapping[str, float]) -> dict[int, int]:
    """How many of a replica's places each gateway may fill.

    The places go to tenants first, by weight and to none more than it wants; each tenant's part then goes to the
    gateways where it wants it. What nobody wants is spread evenly, and every gateway has at least one place.

    Args:
        capacity: All places.
        demand: Gateway -> tenant -> requests under way and waiting. Every gateway is in it, perhaps with nobody.
        weights: Of tenants; of one that is missing it is 1.

    Returns:
        Gateway -> places; together they are `capacity`, or more only where there are more gateways than places.
    """
    parts = _water_fill(capacity, _totals(demand), weights)
    total = _totals(demand)
    spare = max(0.0, capacity - math.fsum(parts.values())) / max(1, len(demand))
    ideal = {
        gateway: spare + math.fsum(parts[name] * wanted / total[name] for name, wanted in tenants.items() if wanted > 0)
        for gateway, tenants in demand.items()
    }
    return _whole(capacity, ideal)


def local_weights(demand: Demand, weights: Mapping[str, float]) -> dict[int, dict[str, float]]:
    """What each tenant's weight is worth at each gateway: its part of the weight is its part of the tenant's demand.

    So whoever asks at one gateway has all its weight there, and where gateways fill their places by these weights,
    all of them together have shared by the whole weights. No part is much smaller than an even one: demand moves.

    Args:
        demand: Gateway -> tenant -> requests under way and waiting, of all replicas.
        weights: Of tenants; of one that is missing it is 1.
    """
    total = _totals(demand)
    least = _LEAST_PART / max(1, len(demand))
    return {
        gateway: {
            name: weights.get(name, 1.0) * max(least, wanted / total[name])
            for name, wanted in tenants.items()
            if wanted > 0
        }
        for gateway, tenants in demand.items()
    }


def _totals(demand: Demand) -> dict[str, float]:
    return {name: wanted for name, wanted in _sums(demand.values()).items() if wanted > 0}


def _sums(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in counts:
        for name, count in one.items():
            found[name] = found.get(name, 0) + max(0, count)
    return found


def _elsewhere(gateway: int, reports: Iterable[GatewayReport]) -> dict[str, dict[str, int]]:
    """What all but this gateway have under way."""
    found: dict[str, dict[str, int]] = {}
    for report in reports:
        for replica, versions in report.busy.items() if report.gateway != gateway else ():
            counts = found.setdefault(replica, {})
            for version, count in versions.items():
                counts[version] = counts.get(version, 0) + count
    return found


def _closing(reports: Iterable[GatewayReport]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for report in reports:
        for replica, versions in report.closing.items():
            found.setdefault(replica, set()).update(versions)
    return {replica: tuple(sorted(versions)) for replica, versions in sorted(found.items())}


def _water_fill(capacity: float, wanted: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Weighted max-min: nobody gets more than it wants, and who gets less has as much for its weight as any other."""
    parts: dict[str, float] = {}
    left, weight = float(capacity), math.fsum(weights.get(name, 1.0) for name in wanted)
    for name in sorted(wanted, key=lambda name: wanted[name] / weights.get(name, 1.0)):
        own = weights.get(name, 1.0)
        weight = max(weight, own)  # whatever subtraction has left of it
        parts[name] = min(wanted[name], left * own / weight)
        left -= parts[name]
        weight -= own
    return parts


def _whole(capacity: int, ideal: Mapping[int, float]) -> dict[int, int]:
    """Whole places as near to these as can be, at least one each."""
    found = {gateway: max(1, math.floor(part)) for gateway, part in ideal.items()}
    gap = capacity - sum(found.values())
    while gap > 0:  # fewer than there are gateways
        gateway = max(found, key=lambda gateway: (ideal[gateway] - found[gateway], -gateway))
        found[gateway] += 1
        gap -= 1
    while gap < 0 and max(found.values()) > 1:
        many = (gateway for gateway, count in found.items() if count > 1)
        gateway = max(many, key=lambda gateway: (found[gateway] - ideal[gateway], -gateway))
        found[gateway] -= 1
        gap += 1
    return found
