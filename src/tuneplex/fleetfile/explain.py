"""Every setting of a fleet, and where it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from pydantic import SecretStr

from tuneplex.fleetfile.checks import LOCAL_ONLY
from tuneplex.fleetfile.places import KeyPath, key_text
from tuneplex.fleetfile.resolve import API_KEY_VARIABLE, DEFAULT_POOL
from tuneplex.fleetfile.schema import FleetFile, PoolSection, Section
from tuneplex.types import FleetSpec
from tuneplex.units import format_bytes, format_duration, format_long, format_money

__all__ = ["DERIVED", "MASK", "Setting", "explain"]

MASK = "********"
_NONE = "-"
_SENSITIVE = re.compile(r"key|token|secret|pass|auth|cred", re.IGNORECASE)
_EXTERNAL_ONLY = ("url", "urls", "key", "key_env")
_FORMATS: Mapping[str, Callable[[int], str]] = {
    "kv_cache": format_bytes,
    "max_body": format_bytes,
    "drain": format_duration,
    "ttft_p95": format_duration,
    "connect": format_duration,
    "first_byte": format_duration,
    "between_chunks": format_duration,
    "total": format_duration,
    "hedge_after": format_duration,
    "open": format_duration,
    "audit": format_long,
    "head_lock": format_long,
    "keep": format_long,
    "journal": format_bytes,
    "bytes": format_bytes,
    "longest": format_duration,
    "comments": format_duration,
    "cache": format_bytes,
    "money_per_month": format_money,
    "prompt": format_money,
    "completion": format_money,
    "cached": format_money,
}
# Settings that are worked out when the file leaves them open: key without names -> how.
DERIVED = {
    "name": "the name of the fleet file's directory",
    "base.name": "from base.source",
    "adapters.pool": "the pool with the smallest max_lora_rank that fits and is not reserved",
    "pools.max_loras": "one for each adapter, at most 4",
    "pools.max_cpu_loras": "room for every adapter of the pool",
    "pools.max_lora_rank": "the smallest that fits the pool's adapters",
    "pools.max_model_len": "the engine decides",
    "pools.concurrent": "128 on the CPU, else 256; or what `--max-num-seqs` in `engine_args` says",
    "pools.kv_cache": "the engine decides; 1 GiB on the CPU",
    "gateway.key": f"the environment variable {API_KEY_VARIABLE}",
    "store.url": "a file in the state directory",
    "engine.python": "the environment that 'tuneplex engine install' makes",
}


class Setting(NamedTuple):
    """One effective setting.

    Attributes:
        key: As in the fleet file: `gateway.port`.
        value: For people; secrets are masked, `-` stands for none.
        origin: `fleet.yaml:12`, `default`, `environment: NAME` or `derived: how`.
    """

    key: str
    value: str
    origin: str


def explain(file: FleetFile, spec: FleetSpec | None = None) -> list[Setting]:
    """All effective settings, in the schema's order.

    Args:
        file: As `load` returned it.
        spec: What `resolve` made of it; without it, values that depend on the adapters read `-`.
    """
    return list(_Explanation(file, _resolved(spec) if spec else {}).section((), _with_pools(file)))


def _with_pools(file: FleetFile) -> FleetFile:
    """The file with the pool that there is when it describes none."""
    return file if file.pools else file.model_copy(update={"pools": {DEFAULT_POOL: PoolSection()}})


def _resolved(spec: FleetSpec) -> dict[KeyPath, str]:
    """The values that only `resolve` knows."""
    values: dict[KeyPath, str] = {("adapters", version.name, "pool"): version.pool for version in spec.adapters}
    for pool in spec.pools:
        for key in ("replicas", "max_loras", "max_cpu_loras", "max_lora_rank", "concurrent"):
            values["pools", pool.name, key] = str(getattr(pool, key))
        if pool.python:
            values["engine", "python"] = pool.python
    if spec.gateway.key_sha256:
        values["gateway", "key"] = MASK
    if spec.store:
        values["store", "url"] = MASK
    return values


class _Explanation:
    """Walks through the sections of one file."""

    def __init__(self, file: FleetFile, resolved: Mapping[KeyPath, str]) -> None:
        self._places = file.places
        self._file_name = file.path.name
        self._resolved = resolved

    def section(self, path: KeyPath, section: Section) -> Iterator[Setting]:
        hidden = _hidden(section)
        for key in type(section).model_fields:
            value = getattr(section, key)
            if key == "replicas" and isinstance(section, PoolSection) and section.launcher == "external":
                yield Setting(key_text((*path, key)), str(len(section.urls) or 1), "derived: one for each URL")
            elif key not in hidden:
                yield from self._entry((*path, key), value)

    def _entry(self, path: KeyPath, value: object) -> Iterator[Setting]:
        if isinstance(value, Section):
            yield from self.section(path, value)
        elif isinstance(value, dict) and value:
            for name, item in value.items():
                yield from self._entry((*path, name), item)
        elif path[-1] == "engine_args" and isinstance(value, list) and value:
            for index, argument in enumerate(value):
                yield self._setting((*path, index), _argument(value, index, argument))
        else:
            yield self._setting(path, _text(path, value))

    def _setting(self, path: KeyPath, text: str) -> Setting:
        line = self._places.line(path)
        if line is not None:
            return Setting(key_text(path), text, f"{self._file_name}:{line}")
        if path == ("gateway", "key"):
            return self._gateway_key()
        if path == ("store", "url") and self._places.line(("store", "url_env")) is not None:
            return Setting("store.url", self._resolved.get(path, _NONE), "derived: from store.url_env")
        why = DERIVED.get(_kind(path))
        return Setting(key_text(path), self._resolved.get(path, text), f"derived: {why}" if why else "default")

    def _gateway_key(self) -> Setting:
        """The key that the file does not hold itself."""
        value = self._resolved.get(("gateway", "key"), _NONE)
        if self._places.line(("gateway", "key_env")) is not None:
            return Setting("gateway.key", value, "derived: from gateway.key_env")
        return Setting("gateway.key", value, f"environment: {API_KEY_VARIABLE}" if value == MASK else "default")


def _hidden(section: Section) -> tuple[str, ...]:
    """Keys that mean nothing here."""
    if not isinstance(section, PoolSection):
        return ()
    return _EXTERNAL_ONLY if section.launcher == "local" else tuple(key for key in LOCAL_ONLY if key != "replicas")


def _kind(path: KeyPath) -> str:
    """The path without the names of pools and adapters."""
    return ".".join(
        str(part) for index, part in enumerate(path) if not (index == 1 and path[0] in {"pools", "adapters"})
    )


def _text(path: KeyPath, value: object) -> str:
    if value is None or value in ([], {}, ""):
        return _NONE
    if isinstance(value, SecretStr):
        return MASK
    if path[-2:-1] == ("env",) and _SENSITIVE.search(str(path[-1])):
        return MASK
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    write = _FORMATS.get(str(path[-1]))
    return write(value) if write and isinstance(value, int | float) else str(value)  # type: ignore[arg-type]


def _argument(arguments: list[str], index: int, argument: str) -> str:
    """One engine argument, without the value of a flag that sounds like a secret."""
    flag, equals, _ = argument.partition("=")
    if argument.startswith("-"):
        return f"{flag}={MASK}" if equals and _SENSITIVE.search(flag) else argument
    before = arguments[index - 1] if index else ""
    return MASK if before.startswith("-") and "=" not in before and _SENSITIVE.search(before) else argument
