"""What the schema cannot say: names, references between sections, and files that must exist."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from tuneplex.fleetfile.places import KeyPath
from tuneplex.fleetfile.ranks import MAX_LORA_RANKS
from tuneplex.fleetfile.schema import (
    AdapterSection,
    BaseSection,
    EngineSection,
    FleetFile,
    GatewaySection,
    PoolSection,
    PricesSection,
    StoreSection,
    TelemetrySection,
)
from tuneplex.fleetfile.sources import is_hub_name, parse_source
from tuneplex.units import format_bytes

__all__ = ["LOCAL_ONLY", "STORE_HINT", "check", "is_loopback", "is_token", "max_num_seqs", "store_problem"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*(?:/[A-Za-z0-9][A-Za-z0-9._:-]*)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ORIGIN = re.compile(r"\*|https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?|https?://\[[0-9a-fA-F:]+\](?::[0-9]{1,5})?")
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NAME_HINT = "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
_MAX_NAME = 200
_MAX_CONCURRENT = 100_000
STORE_HINT = "write postgresql://USER@HOST/DATABASE; without the key 'store' it is a file in the state directory"
# Set by tuneplex itself -> the key of the fleet file that decides it, if there is one.
_OWN_FLAGS = {
    "model": "base",
    "served-model-name": "base.name",
    "host": "",
    "port": "",
    "uds": "",
    "api-key": "",
    "enable-lora": "",
    "lora-modules": "adapters",
    "max-loras": "max_loras",
    "max-cpu-loras": "max_cpu_loras",
    "max-lora-rank": "max_lora_rank",
    "max-model-len": "max_model_len",
}
LOCAL_ONLY = ("replicas", "max_model_len", "gpus", "kv_cache", "engine_args", "env")


def check(file: FleetFile) -> None:
    """Refuse a fleet file whose parts do not fit together.

    Raises:
        FleetFileError: For the first thing that is wrong.
    """
    _Checker(file).run()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Checker:
    """The checks, one method for each concern."""

    def __init__(self, file: FleetFile) -> None:
        self.file = file
        self.places = file.places

    def run(self) -> None:
        self._names()
        self._aliases()
        self._base()
        for name in self.file.adapters:
            self._adapter(name)
        for name, pool in self.file.pools.items():
            self._pool(("pools", name), pool)
        self._engine(("engine", "python"), self.file.engine)
        self._gateway(self.file.gateway)
        self._store(self.file.store)
        self._telemetry(self.file.telemetry)
        if self.file.prices is not None:
            self._prices(self.file.prices)
        self._costs(("base",), self.file.base)
        for name, adapter in self.file.adapters.items():
            self._costs(("adapters", name), adapter)

    def _names(self) -> None:
        if self.file.name is not None:
            self._name(("name",), self.file.name)
        if self.file.base.name is not None:
            self._name(("base", "name"), self.file.base.name)
        for section in ("adapters", "pools"):
            for name in getattr(self.file, section):
                self._name((section, name), name)

    def _name(self, path: KeyPath, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise self.places.error(path, "cannot be used as a name", hint=_NAME_HINT)

    def _aliases(self) -> None:
        base = self.file.base.name
        for alias, target in self.file.aliases.items():
            path: KeyPath = ("aliases", alias)
            if not _ALIAS.fullmatch(alias) or len(alias) > _MAX_NAME:
                raise self.places.error(path, "cannot be used as a name", hint=f"{_NAME_HINT}; ':' and '/' may follow")
            if alias == base or alias in self.file.adapters:
                what = "the base" if alias == base else "an adapter"
                raise self.places.error(path, f"is already the name of {what}", hint="choose another alias")
            if target != base and target not in self.file.adapters:
                known = ", ".join([base or "", *self.file.adapters][:8])
                problem = "is an alias itself" if target in self.file.aliases else "does not exist"
                raise self.places.error(path, f"stands for {target!r}, which {problem}", hint=f"known: {known}")

    def _base(self) -> None:
        base = self.file.base
        if not self.file.runs_engines:
            if base.name is None:
                raise self.places.error(("base", "name"), "is missing", hint="external engines serve it by this name")
            return
        if base.source is None:
            raise self.places.error(("base", "source"), "is missing", hint="local pools need the model's files")
        self._source(("base", "source"), base.source)

    def _adapter(self, name: str) -> None:
        adapter = self.file.adapters[name]
        path: KeyPath = ("adapters", name)
        if name == self.file.base.name:
            raise self.places.error(path, "is already the name of the base", hint="choose another name")
        self._source((*path, "source"), adapter.source)
        if adapter.pool is None:
            return
        if adapter.pool not in self.file.pools:
            known = ", ".join(self.file.pools) or "none; describe it under 'pools'"
            raise self.places.error((*path, "pool"), f"no pool is called {adapter.pool!r}", hint=f"known: {known}")

    def _source(self, path: KeyPath, text: str) -> None:
        source = parse_source(text)
        if source.kind == "pypi" and path[0] != "base":
            raise self.places.error(
                path, "only the base can come from PyPI", hint="write a directory, hf:ORG/NAME or s3://BUCKET/PREFIX"
            )
        if source.kind == "dir":
            self._directory(path, Path(text))

    def _directory(self, path: KeyPath, directory: Path) -> None:
        if not _exists(directory):
            raise self.places.error(path, f"the directory {directory} does not exist", hint=self._path_hint(directory))
        if not directory.is_dir():
            raise self.places.error(path, f"{directory} is not a directory", hint="name the directory that holds it")

    def _path_hint(self, directory: Path) -> str:
        """Somebody who writes `org/name` may mean a repository on the hub."""
        root = self.file.path.parent.absolute()
        short = directory.relative_to(root).as_posix() if directory.is_relative_to(root) else ""
        hub = f"; for a repository on the hub write hf:{short}" if is_hub_name(short) else ""
        return f"paths are relative to the fleet file{hub}"

    def _pool(self, path: KeyPath, pool: PoolSection) -> None:
        self._pool_urls(path, pool)
        self._secret(path, pool.key, pool.key_env)
        self._pool_loras(path, pool)
        self._pool_tenants(path, pool)
        self._concurrent(path, pool)
        for index, argument in enumerate(pool.engine_args):
            self._engine_argument((*path, "engine_args", index), argument)
        for variable, value in pool.env.items():
            if not _VARIABLE.fullmatch(variable) or "\0" in value:
                raise self.places.error((*path, "env", variable), "cannot be an environment variable")

    def _pool_urls(self, path: KeyPath, pool: PoolSection) -> None:
        given = pool.model_fields_set
        if pool.launcher == "local":
            for key in sorted(given & {"url", "urls", "key", "key_env"}):
                raise self.places.error((*path, key), "is for external pools", hint="add 'launcher: external'")
            if pool.engine != "vllm":
                raise self.places.error((*path, "engine"), "local pools run vllm", hint="add 'launcher: external'")
            return
        for key in (key for key in LOCAL_ONLY if key in given):
            raise self.places.error((*path, key), "is for local pools", hint="an external engine has its own settings")
        if pool.url is not None and pool.urls:
            raise self.places.error((*path, "url"), "'url' and 'urls' are both given", hint="keep one of them")
        if pool.url is None and not pool.urls:
            raise self.places.error((*path, "url"), "is missing", hint="say where the engine answers")
        self._urls(path, pool)

    def _urls(self, path: KeyPath, pool: PoolSection) -> None:
        paths: Iterable[tuple[KeyPath, str]] = [((*path, "urls", i), url) for i, url in enumerate(pool.urls)]
        seen: set[str] = set()
        for place, url in paths if pool.url is None else [((*path, "url"), pool.url)]:
            if problem := _url_problem(url):
                raise self.places.error(place, problem, hint="write for instance http://10.0.0.5:8000")
            if url in seen:
                raise self.places.error(place, "is given twice")
            seen.add(url)

    def _pool_loras(self, path: KeyPath, pool: PoolSection) -> None:
        if pool.max_lora_rank is not None and pool.max_lora_rank not in MAX_LORA_RANKS:
            known = ", ".join(str(rank) for rank in MAX_LORA_RANKS)
            raise self.places.error((*path, "max_lora_rank"), f"vLLM has no {pool.max_lora_rank}", hint=f"use {known}")
        if pool.max_loras and pool.max_cpu_loras and pool.max_cpu_loras < pool.max_loras:
            raise self.places.error(
                (*path, "max_cpu_loras"), f"should be at least max_loras, which is {pool.max_loras}"
            )

    def _pool_tenants(self, path: KeyPath, pool: PoolSection) -> None:
        for index, tenant in enumerate(pool.tenants):
            place: KeyPath = (*path, "tenants", index)
            if not _TENANT.fullmatch(tenant):
                hint = "tenants have lower-case letters, digits, '.', '_' and '-'"
                raise self.places.error(place, "cannot be a tenant", hint=hint)
            if tenant in pool.tenants[:index]:
                raise self.places.error(place, "is given twice")

    def _concurrent(self, path: KeyPath, pool: PoolSection) -> None:
        found = max_num_seqs(pool.engine_args)
        if found is None:
            return
        index, value = found
        place: KeyPath = (*path, "engine_args", index)
        if pool.concurrent is not None:
            raise self.places.error(place, "'concurrent' and --max-num-seqs are both given", hint="keep one of them")
        if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= _MAX_CONCURRENT:
            raise self.places.error(place, f"--max-num-seqs should be a number from 1 to {_MAX_CONCURRENT}")

    def _engine_argument(self, path: KeyPath, argument: str) -> None:
        flag = argument.partition("=")[0].lstrip("-").replace("_", "-")
        if "\0" in argument:
            raise self.places.error(path, "holds a character that no command line can have")
        if argument.startswith("-") and flag in _OWN_FLAGS:
            key = _OWN_FLAGS[flag]
            hint = f"the key '{key}' decides it" if key else "remove it"
            raise self.places.error(path, f"--{flag} is set by tuneplex", hint=hint)

    def _secret(self, path: KeyPath, key: SecretStr | None, key_env: str | None) -> None:
        """Never shows a value: somebody may have written the key where its variable's name belongs."""
        if key is not None and key_env is not None:
            raise self.places.error((*path, "key_env"), "'key' and 'key_env' are both given", hint="keep one of them")
        if key is not None and not is_token(key.get_secret_value()):
            raise self.places.error((*path, "key"), "should be printable ASCII without spaces")
        if key_env is not None and not _VARIABLE.fullmatch(key_env):
            raise self.places.error((*path, "key_env"), "should be the name of an environment variable")

    def _engine(self, path: KeyPath, engine: EngineSection) -> None:
        if engine.python is None:
            return
        python = Path(engine.python)
        if not _exists(python) or not python.is_file() or not os.access(python, os.X_OK):
            hint = "run 'tuneplex engine install' and remove this key, or name an interpreter that has vLLM"
            raise self.places.error(path, f"{python} is not a program", hint=hint)

    def _gateway(self, gateway: GatewaySection) -> None:
        self._secret(("gateway",), gateway.key, gateway.key_env)
        if not gateway.host or any(char.isspace() or char in "/\0" for char in gateway.host):
            raise self.places.error(("gateway", "host"), "is not an address", hint="write for instance 0.0.0.0")
        for name in ("cert", "key") if gateway.tls else ():
            path = Path(getattr(gateway.tls, name))
            if not _exists(path) or not path.is_file():
                raise self.places.error(("gateway", "tls", name), f"the file {path} does not exist")
        if not is_loopback(gateway.host) and gateway.tls is None and not gateway.insecure:
            hint = "add gateway.tls, or 'insecure: true' if something else encrypts the traffic"
            raise self.places.error(("gateway", "host"), f"{gateway.host} is open to others, without TLS", hint=hint)
        if gateway.waiting.bytes < gateway.max_body:
            message = f"is less than gateway.max_body, {format_bytes(gateway.max_body)}: the largest could never wait"
            raise self.places.error(("gateway", "waiting", "bytes"), message)
        for index, origin in enumerate(gateway.cors):
            if not _ORIGIN.fullmatch(origin):
                raise self.places.error(
                    ("gateway", "cors", index), "is not an origin", hint="write for instance https://app.example.com"
                )

    def _store(self, store: StoreSection) -> None:
        """Never shows a value: a URL may hold a password, and may stand where its variable's name belongs."""
        if store.url is not None and store.url_env is not None:
            raise self.places.error(("store", "url_env"), "'url' and 'url_env' are both given", hint="keep one of them")
        if store.url is not None and (problem := store_problem(store.url.get_secret_value())):
            raise self.places.error(("store", "url"), problem, hint=STORE_HINT)
        if store.url_env is not None and not _VARIABLE.fullmatch(store.url_env):
            raise self.places.error(("store", "url_env"), "should be the name of an environment variable")

    def _prices(self, prices: PricesSection) -> None:
        """The price of models without one of their own is all of a price, or none."""
        if (prices.prompt is None) != (prices.completion is None):
            missing = "prompt" if prices.prompt is None else "completion"
            raise self.places.error(("prices", missing), "is missing", hint="a price has 'prompt' and 'completion'")
        if prices.cached is not None and prices.prompt is None:
            raise self.places.error(("prices", "prompt"), "is missing", hint="'cached' is a part of it")

    def _telemetry(self, section: TelemetrySection) -> None:
        if section.traces is None:
            if self.places.line(("telemetry", "sample")) is not None:
                raise self.places.error(("telemetry", "sample"), "is for 'traces', which says where they go")
            return
        problem = _url_problem(section.traces)
        if problem or section.traces.startswith("unix:"):
            words = problem or "should be a URL of the form http://HOST:PORT"
            raise self.places.error(("telemetry", "traces"), words)

    def _costs(self, path: KeyPath, model: BaseSection | AdapterSection) -> None:
        """Money can only be limited where something costs any."""
        prices, limits = self.file.prices, model.limits
        if model.price is not None and prices is None:
            raise self.places.error((*path, "price"), "has no currency", hint="add 'prices: {currency: EUR}'")
        if limits is None:
            return
        place = (*path, "limits")
        priced = model.price is not None or (prices is not None and prices.prompt is not None)
        if limits.money_per_month is not None and not priced:
            hint = "add 'prices' with currency, prompt and completion; docs/limits.md tells more"
            raise self.places.error((*place, "money_per_month"), "nothing here has a price", hint=hint)
        if limits.cut_streams and limits.money_per_month is None:
            hint = "streams are cut by a limit in money alone"
            raise self.places.error((*place, "cut_streams"), "is for money_per_month", hint=hint)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        return False


def max_num_seqs(arguments: Sequence[str]) -> tuple[int, str] | None:
    """Which engine argument says how many requests an engine works on at a time, and what; the last one counts."""
    found = None
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") == "--max-num-seqs":
            found = index, value if equals else "".join(arguments[index + 1 : index + 2])
    return found


def is_token(key: str) -> bool:
    """Whether a key can travel as a bearer token."""
    return bool(key) and all("!" <= char <= "~" for char in key)


def store_problem(url: str) -> str:
    """Why a URL cannot be a store's, or an empty string; the URL itself may hold a password."""
    if not url.startswith("postgresql://") or not is_token(url):
        return "should be the URL of a PostgreSQL database"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError:
        return "is not a URL"
    # SQLAlchemy would take what follows the first one for the host, and show that part of the password in messages.
    return "has an '@' in its password, which is written %40" if parts.netloc.count("@") > 1 else ""


def _url_problem(url: str) -> str:
    """Why a URL cannot be an engine's, or an empty string; the URL itself may hold a password."""
    if url.startswith("unix:/") and "\0" not in url:
        return ""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL"
    if parts.username is not None or parts.password is not None:
        return "should not hold a user or password; use 'key' or 'key_env'"
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        return "is not a URL"
    if parts.query or parts.fragment or not url.isascii() or any(char.isspace() for char in url):
        return "is not a URL of the form http://HOST:PORT/PREFIX"
    return ""
