"""What differs between two fleets, and how each difference can be brought live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from tuneplex.identity import Limits
from tuneplex.types import AdapterVersion, Change, FleetSpec, PoolSpec, Price
from tuneplex.units import format_money

__all__ = ["changes"]

_LIVE, _ROLLING, _RESTART = "live", "rolling", "restart"
_NO_LIMITS = Limits()
_PRICED_TOKENS = 1_000_000
# Fields whose values may hold secrets: that they changed is said, but not from what to what.
_UNSHOWN = {"secret": "key", "key_sha256": "key", "env": "env", "engine_args": "engine_args"}


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_N = TypeVar("_N", bound=_Named)


def changes(old: FleetSpec, new: FleetSpec) -> tuple[Change, ...]:
    """The differences, empty when there is nothing to do.

    Adapters, pins, aliases, limits, prices, how long requests are kept, what is promised of models, gateway settings,
    the number of replicas, how long they drain and the tenants they are for change while everything runs (`live`).
    Other pool settings replace replicas one by one (`rolling`). The fleet's name, its base, its store, its logs and
    where it listens need a `restart`. Where something was fetched from makes no difference as long as it is the same
    thing.
    """
    return tuple(_changes(_without_sources(old), _without_sources(new)))


def _without_sources(spec: FleetSpec) -> FleetSpec:
    replace = msgspec.structs.replace
    adapters = tuple(replace(version, source="") for version in spec.adapters)
    return replace(spec, base=replace(spec.base, source=""), adapters=adapters)


def _changes(old: FleetSpec, new: FleetSpec) -> Iterator[Change]:
    if old.name != new.name:
        yield Change("name", "change", _RESTART, f"{old.name} -> {new.name}")
    for what in ("base", "listen", "logs"):
        if getattr(old, what) != getattr(new, what):
            yield Change(what, "change", _RESTART, _fields(getattr(old, what), getattr(new, what)))
    if old.store != new.store:  # its URL may hold a password
        yield Change("store", "change", _RESTART, "url changed")
    yield from _pools(_by_name(old.pools), _by_name(new.pools))
    yield from _adapters(_by_name(old.adapters), _by_name(new.adapters))
    yield from _aliases(old.aliases, new.aliases)
    yield from _limits(old.limits, new.limits)
    yield from _prices(old.prices, new.prices)
    for what in ("records", "telemetry", "storage"):
        if getattr(old, what) != getattr(new, what):
            yield Change(what, "change", _LIVE, _fields(getattr(old, what), getattr(new, what)))
    yield from _objectives(old, new)
    for name in sorted({*old.pins} ^ {*new.pins}):
        yield Change(f"pin of {name}", "add" if name in new.pins else "remove", _LIVE)
    if old.gateway != new.gateway:
        yield Change("gateway", "change", _LIVE, _fields(old.gateway, new.gateway))


def _by_name(items: Sequence[_N]) -> dict[str, _N]:
    return {item.name: item for item in items}


def _pools(old: Mapping[str, PoolSpec], new: Mapping[str, PoolSpec]) -> Iterator[Change]:
    for name in (name for name in old if name not in new):
        yield Change(f"pool {name}", "remove", _LIVE, f"replicas {old[name].replicas} -> 0")
    for name, pool in new.items():
        before = old.get(name)
        if before is None:
            yield Change(f"pool {name}", "add", _LIVE, f"replicas 0 -> {pool.replicas}")
        elif before != pool:
            yield Change(f"pool {name}", "change", _pool_how(before, pool), _fields(before, pool))


def _pool_how(old: PoolSpec, new: PoolSpec) -> str:
    """How many replicas there are, and with it the URLs of external ones, and for whom, changes without new engines.

    So does how long they drain, and how many requests an external one gets at a time.
    """
    same = msgspec.structs.replace(new, replicas=old.replicas, urls=old.urls, tenants=old.tenants, drain_s=old.drain_s)
    if new.launcher == "external":
        same = msgspec.structs.replace(same, concurrent=old.concurrent)
    return _LIVE if same == old else _ROLLING


def _adapters(old: Mapping[str, AdapterVersion], new: Mapping[str, AdapterVersion]) -> Iterator[Change]:
    for name in (name for name in old if name not in new):
        yield Change(f"adapter {name}", "remove", _LIVE, old[name].id)
    for name, version in new.items():
        before = old.get(name)
        if before is None:
            yield Change(f"adapter {name}", "add", _LIVE, version.id)
        elif before != version:
            yield Change(f"adapter {name}", "change", _LIVE, _version(before, version))


def _version(old: AdapterVersion, new: AdapterVersion) -> str:
    """A new content is named by its id; its path and rank follow from it."""
    if old.digest == new.digest:
        return _fields(old, new)
    moved = f", pool {old.pool} -> {new.pool}" if old.pool != new.pool else ""
    return f"{old.id} -> {new.id}{moved}"


def _aliases(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for alias in (alias for alias in old if alias not in new):
        yield Change(f"alias {alias}", "remove", _LIVE, old[alias])
    for alias, target in new.items():
        if alias not in old:
            yield Change(f"alias {alias}", "add", _LIVE, target)
        elif old[alias] != target:
            yield Change(f"alias {alias}", "change", _LIVE, f"{old[alias]} -> {target}")


def _limits(old: Mapping[str, Limits], new: Mapping[str, Limits]) -> Iterator[Change]:
    for name in (*old, *(name for name in new if name not in old)):
        before, after = old.get(name, _NO_LIMITS), new.get(name, _NO_LIMITS)
        if before != after:
            kind = "add" if before == _NO_LIMITS else "remove" if after == _NO_LIMITS else "change"
            yield Change(f"limits of {name}", kind, _LIVE, _fields(before, after))


def _prices(old: Mapping[str, Price], new: Mapping[str, Price]) -> Iterator[Change]:
    for name in (*old, *(name for name in new if name not in old)):
        before, after = old.get(name), new.get(name)
        if before != after:
            kind = "add" if before is None else "remove" if after is None else "change"
            yield Change(f"price of {name}", kind, _LIVE, f"{_per_million(before)} -> {_per_million(after)}")


def _objectives(old: FleetSpec, new: FleetSpec) -> Iterator[Change]:
    if old.objective != new.objective:
        yield Change("slo", "change", _LIVE, _fields(old.objective, new.objective))
    for name in (*old.objectives, *(name for name in new.objectives if name not in old.objectives)):
        before, after = old.objectives.get(name), new.objectives.get(name)
        if before != after:
            kind = "add" if before is None else "remove" if after is None else "change"
            yield Change(f"slo of {name}", kind, _LIVE, _fields(before or old.objective, after or new.objective))


def _per_million(price: Price | None) -> str:
    """As in the fleet file: for a million tokens."""
    if price is None:
        return "none"
    kinds = price.__struct_fields__
    return " ".join(f"{kind} {format_money(getattr(price, kind) * _PRICED_TOKENS)}" for kind in kinds)


def _fields(old: msgspec.Struct, new: msgspec.Struct) -> str:
    """The fields that differ: `replicas 1 -> 2, max_loras 2 -> 4`."""
    pairs = ((name, getattr(old, name), getattr(new, name)) for name in old.__struct_fields__)
    return ", ".join(_field(name, before, after) for name, before, after in pairs if before != after)


def _field(name: str, before: object, after: object) -> str:
    if name in _UNSHOWN:
        return f"{_UNSHOWN[name]} changed"
    if isinstance(before, msgspec.Struct) and isinstance(after, msgspec.Struct):
        return f"{name} ({_fields(before, after)})"
    if name == "money_per_month":
        before, after = _money(before), _money(after)
    return f"{name} {_short(before)} -> {_short(after)}"


def _money(picos: object) -> object:
    return format_money(picos) if isinstance(picos, int) else picos


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(str(item) for item in value) or "none"
    return "none" if value is None or value == "" else str(value)
