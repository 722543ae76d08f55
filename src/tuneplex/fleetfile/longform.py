"""Writes out what a fleet file may abbreviate, so that the schema knows one form of everything."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from tuneplex.fleetfile.document import Value
from tuneplex.fleetfile.places import KeyPath, Places
from tuneplex.fleetfile.schema import (
    AdapterSection,
    BaseSection,
    BreakerSection,
    FleetFile,
    GatewaySection,
    IdempotencySection,
    LimitsSection,
    ModelSloSection,
    PoolSection,
    PriceSection,
    PricesSection,
    RecordsSection,
    RetriesSection,
    Section,
    SloSection,
    StoreSection,
    TelemetrySection,
    TimeoutsSection,
    TlsSection,
    WaitingSection,
)

__all__ = ["expand"]

_FLAG = re.compile(r"(?:--)?[A-Za-z0-9][A-Za-z0-9._-]*")
_IN_MODEL: dict[str, type[Section]] = {"limits": LimitsSection, "price": PriceSection, "slo": ModelSloSection}
_IN_GATEWAY: dict[str, type[Section]] = {
    "tls": TlsSection,
    "timeouts": TimeoutsSection,
    "waiting": WaitingSection,
    "retries": RetriesSection,
    "breaker": BreakerSection,
    "idempotency": IdempotencySection,
}
_PLAIN: dict[str, type[Section]] = {"records": RecordsSection, "slo": SloSection, "telemetry": TelemetrySection}
_FLAG_HINT = "write FLAG: value, FLAG: true, or a list of strings as on the command line"


def expand(document: Value, places: Places) -> tuple[dict[str, Value], Places]:
    """The document in its long form, and where its keys stand.

    `base: X` becomes `base: {source: X}`, the same for each adapter; `store: X` becomes `store: {url: X}`; a list of
    adapters becomes a mapping; one origin becomes a list; `engine_args` becomes the list of arguments. A known key
    without a value counts as not given.

    Raises:
        FleetFileError: A list has an adapter without a name or the same name twice, or an engine argument is odd.
    """
    if not isinstance(document, dict):
        raise places.error((), "the file should hold keys and values", hint="it needs at least 'base: SOURCE'")
    long = _Long(_given(document, FleetFile), places)
    long.base()
    long.adapters()
    long.pools()
    long.gateway()
    long.store()
    long.prices()
    long.sections()
    return long.values, places.moved(long.moves).copied(long.copies)


@dataclass
class _Long:
    """The document on its way to the long form."""

    values: dict[str, Value]
    places: Places
    moves: dict[KeyPath, KeyPath] = field(default_factory=dict)
    copies: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def base(self) -> None:
        base = self.values.get("base")
        if isinstance(base, str):
            self.values["base"] = {"source": base}
            self.copies["base",] = ("base", "source")
        elif isinstance(base, dict):
            self.values["base"] = _model(base, BaseSection)

    def adapters(self) -> None:
        adapters = self.values.get("adapters")
        if isinstance(adapters, list):
            adapters = self._named(adapters)
        if isinstance(adapters, dict):
            self.values["adapters"] = {name: self._adapter(name, value) for name, value in adapters.items()}

    def _adapter(self, name: str, value: Value) -> Value:
        if isinstance(value, str):
            self.copies["adapters", name] = ("adapters", name, "source")
            return {"source": value}
        return _model(value or {}, AdapterSection) if isinstance(value, dict | None) else value

    def _named(self, items: list[Value]) -> dict[str, Value]:
        """A list of `{name, source}` as a mapping by name."""
        adapters: dict[str, Value] = {}
        for index, item in enumerate(items):
            path: KeyPath = ("adapters", index)
            if not isinstance(item, dict) or not isinstance(name := item.get("name"), str):
                raise self.places.error(path, "should be {name: NAME, source: SOURCE}")
            if name in adapters:
                first = self.places.line(("adapters", list(adapters).index(name)))
                raise self.places.error(path, f"the name {name!r} is given twice, first on line {first}")
            adapters[name] = {key: value for key, value in item.items() if key != "name"}
            self.moves[path] = ("adapters", name)
        return adapters

    def pools(self) -> None:
        pools = self.values.get("pools")
        if isinstance(pools, dict):
            self.values["pools"] = {name: self._pool(name, pool) for name, pool in pools.items()}

    def _pool(self, name: str, pool: Value) -> Value:
        if pool is None:
            return {}
        if not isinstance(pool, dict):
            return pool
        pool = _given(pool, PoolSection)
        arguments = pool.get("engine_args")
        if isinstance(arguments, dict):
            pool["engine_args"] = self._arguments(("pools", name, "engine_args"), arguments)
        return pool

    def _arguments(self, path: KeyPath, arguments: dict[str, Value]) -> Value:
        """`{enforce-eager: true, block-size: 16}` as `["--enforce-eager", "--block-size=16"]`."""
        texts: list[Value] = []
        for flag, value in arguments.items():
            if not _FLAG.fullmatch(flag) or value is None:
                raise self.places.error((*path, flag), "should be an engine flag with a value", hint=_FLAG_HINT)
            texts.append(_argument(flag.removeprefix("--"), value))
            self.moves[(*path, flag)] = (*path, len(texts) - 1)
        return texts

    def gateway(self) -> None:
        gateway = self.values.get("gateway")
        if not isinstance(gateway, dict):
            return
        gateway = _given(gateway, GatewaySection)
        if isinstance(cors := gateway.get("cors"), str):
            gateway["cors"] = [cors]
        for name, section in _IN_GATEWAY.items():
            if isinstance(part := gateway.get(name), dict):
                gateway[name] = _given(part, section)
        self.values["gateway"] = gateway

    def store(self) -> None:
        store = self.values.get("store")
        if isinstance(store, str):
            self.values["store"] = {"url": store}
            self.copies["store",] = ("store", "url")
        elif isinstance(store, dict):
            self.values["store"] = _given(store, StoreSection)

    def prices(self) -> None:
        if isinstance(prices := self.values.get("prices"), dict):
            self.values["prices"] = _given(prices, PricesSection)

    def sections(self) -> None:
        for name, section in _PLAIN.items():
            if isinstance(part := self.values.get(name), dict):
                self.values[name] = _given(part, section)


def _model(values: dict[str, Value], section: type[Section]) -> dict[str, Value]:
    """The section of a base or an adapter, and those in it, without the keys that have no value."""
    parts = {key: _given(part, of) for key, of in _IN_MODEL.items() if isinstance(part := values.get(key), dict)}
    return _given({**values, **parts}, section)


def _given(values: dict[str, Value], section: type[Section]) -> dict[str, Value]:
    """A section without the keys that have no value; those that it does not know stay, to be refused.

    `{prompt: 0,15}` is such a case: YAML reads it as the price 0 and a key `15` without a value.
    """
    return {key: value for key, value in values.items() if value is not None or key not in section.model_fields}


def _argument(flag: str, value: Value) -> str:
    """One engine argument; the form with `=` keeps values that begin with a dash."""
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, list | dict):
        return f"--{flag}={msgspec.json.encode(value).decode()}"
    return f"--{flag}={value}"
