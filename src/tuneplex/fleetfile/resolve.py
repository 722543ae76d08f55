"""From a valid fleet file and what its sources turned out to be, to the fleet's exact description."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from pydantic import SecretStr

from tuneplex.fleetfile.checks import STORE_HINT, is_loopback, is_token, max_num_seqs, store_problem
from tuneplex.fleetfile.places import KeyPath
from tuneplex.fleetfile.ranks import MAX_LORA_RANKS, smallest_max_rank
from tuneplex.fleetfile.schema import FleetFile, ModelSloSection, PoolSection, PriceSection, PricesSection
from tuneplex.identity import Limits
from tuneplex.types import (
    AdapterVersion,
    Base,
    Breaking,
    FleetSpec,
    GatewaySettings,
    Idempotency,
    Keeping,
    Listen,
    Logs,
    Objective,
    ObjectStore,
    PoolSpec,
    Price,
    Retries,
    Storage,
    Telemetry,
    Timeouts,
    Waiting,
)

__all__ = ["API_KEY_VARIABLE", "DEFAULT_POOL", "resolve"]

API_KEY_VARIABLE = "TUNEPLEX_API_KEY"
_TENANTS_KEY = re.compile(r"tpx-[a-z0-9]{12}-[A-Za-z0-9]{43}")
DEFAULT_POOL = "default"
_MAX_LORAS = 4
_LEAST_CPU_LORAS = 8
_CONCURRENT_ON_CPU = 128
_CONCURRENT = 256
_TOKENS_OF_A_PRICE = 1_000_000


def resolve(
    file: FleetFile,
    *,
    base: Base,
    adapters: Sequence[AdapterVersion],
    python: str,
    env: Mapping[str, str],
    running: FleetSpec | None = None,
) -> FleetSpec:
    """Choose a pool for each adapter, fill in all pool settings and look up the keys.

    Args:
        file: As `load` returned it.
        base: What `base.source` turned out to be.
        adapters: One version for each adapter of the file; their `pool` is chosen here.
        python: The engine's interpreter, unless the file names one.
        env: Where `key_env`, `url_env` and `TUNEPLEX_API_KEY` are looked up.
        running: What runs now, if anything: settings that the file leaves open stay as they run while they
            suffice, so that one more adapter does not restart engines.

    Raises:
        FleetFileError: An adapter fits in no pool, or a key or the store's URL is missing.
        ValueError: `adapters` are not those of the file.
    """
    if sorted(version.name for version in adapters) != sorted(file.adapters):
        raise ValueError("there must be one version for each adapter of the file")
    pools = _assign(file, adapters)
    before = {pool.name: pool for pool in running.pools} if running else {}
    chosen = {version.name: pool.name for pool in pools for version in pool.members}
    specs = tuple(_pool_spec(file, pool, python, env, before.get(pool.name)) for pool in pools)
    placed = tuple(msgspec.structs.replace(version, pool=chosen[version.name]) for version in adapters)
    return FleetSpec(
        name=file.name or "",
        base=base,
        adapters=placed,
        aliases=dict(file.aliases),
        pools=specs,
        listen=_listen(file),
        gateway=_gateway(file, env),
        store=_store(file, env),
        limits=_limits(file, base),
        prices=_prices(file, base),
        logs=Logs(file.logs.format, file.logs.level),
        records=_keeping(file),
        telemetry=Telemetry(file.telemetry.traces or "", file.telemetry.sample),
        storage=Storage(_objects(file), file.storage.cache),
        objective=_promised(file),
        objectives=_objectives(file, base),
        pins=_pins(file, placed, specs),
    )


def _pins(file: FleetFile, adapters: Sequence[AdapterVersion], pools: Sequence[PoolSpec]) -> tuple[str, ...]:
    """The adapters that always have a slot. An engine whose slots are all pinned could serve nobody else."""
    for pool in pools:
        pinned = [one.name for one in adapters if one.pool == pool.name and file.adapters[one.name].pin]
        if pinned and pool.launcher == "local" and len(pinned) >= pool.max_loras:
            message = f"cannot be pinned: of the {pool.max_loras} slots of pool {pool.name} one must stay for others"
            path: KeyPath = ("adapters", pinned[max(0, pool.max_loras - 1)], "pin")
            raise file.places.error(path, message, hint=f"set pools.{pool.name}.max_loras to {len(pinned) + 1}")
    return tuple(one.name for one in adapters if file.adapters[one.name].pin)


def _objects(file: FleetFile) -> ObjectStore:
    return ObjectStore(file.storage.s3.endpoint or "", file.storage.s3.region or "")


def _keeping(file: FleetFile) -> Keeping:
    """What is kept, and where heads go; the object store matters only if they go to one."""
    records, url = file.records, file.records.head_url or ""
    named = _objects(file) if url.startswith("s3:") else ObjectStore()
    return Keeping(records.keep, records.audit, url, records.head_lock or records.audit, named)


def _limits(file: FleetFile, base: Base) -> dict[str, Limits]:
    """Of the models that have any, by name."""
    sections = {base.name: file.base.limits, **{name: adapter.limits for name, adapter in file.adapters.items()}}
    found = {name: Limits(**section.model_dump()) for name, section in sections.items() if section is not None}
    return {name: limits for name, limits in found.items() if limits != Limits()}


def _prices(file: FleetFile, base: Base) -> dict[str, Price]:
    """Of the models that have any, by name: their own, or that of all."""
    own = {base.name: file.base.price, **{name: adapter.price for name, adapter in file.adapters.items()}}
    found = {name: _price(section or file.prices) for name, section in own.items()}
    return {name: price for name, price in found.items() if price is not None}


def _objectives(file: FleetFile, base: Base) -> dict[str, Objective]:
    """Of the models of which something of their own is promised, by name."""
    own = {base.name: file.base.slo, **{name: adapter.slo for name, adapter in file.adapters.items()}}
    usual = _promised(file)
    found = {name: _objective(section, usual) for name, section in own.items() if section is not None}
    return {name: objective for name, objective in found.items() if objective != usual}


def _promised(file: FleetFile) -> Objective:
    return Objective(file.slo.availability, file.slo.ttft_p95)


def _objective(section: ModelSloSection, usual: Objective) -> Objective:
    """What a section promises; what it leaves open is as usual."""
    availability, ttft_s = section.availability, section.ttft_p95
    return Objective(
        usual.availability if availability is None else availability,
        usual.ttft_p95_s if ttft_s is None else ttft_s,
    )


def _price(section: PriceSection | PricesSection | None) -> Price | None:
    """The price of one token, which is a whole number of picos."""
    if section is None or section.prompt is None or section.completion is None:
        return None
    cached = section.prompt if section.cached is None else section.cached
    return Price(*(amount // _TOKENS_OF_A_PRICE for amount in (section.prompt, section.completion, cached)))


@dataclass
class _Pool:
    """A pool and the adapters that were given to it so far."""

    name: str
    section: PoolSection
    members: list[AdapterVersion] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """The largest rank it serves: as the file says, or as its adapters need."""
        needed = max((version.rank for version in self.members), default=1)
        return self.section.max_lora_rank or smallest_max_rank(needed) or needed

    def fits(self, version: AdapterVersion) -> bool:
        """Whether it serves this adapter as it is."""
        return self.section.engine != "openai" and version.rank <= self.rank


def _assign(file: FleetFile, adapters: Sequence[AdapterVersion]) -> list[_Pool]:
    """Adapters that name a pool go there; each other one goes to the pool with the smallest rank that fits.

    A reserved pool takes those alone that name it, as long as there is another: only its tenants could call them.
    """
    sections = file.pools or {DEFAULT_POOL: PoolSection()}
    pools = {name: _Pool(name, section) for name, section in sections.items()}
    for version in adapters:
        _check_rank(file, version)
        if pool := file.adapters[version.name].pool:
            _check_fits(file, version, pools[pool])
            pools[pool].members.append(version)
    open_ones = [version for version in adapters if file.adapters[version.name].pool is None]
    shared = [pool for pool in pools.values() if not pool.section.tenants] or list(pools.values())
    for version in sorted(open_ones, key=lambda version: -version.rank):
        _choose(file, version, shared).members.append(version)
    return list(pools.values())


def _check_rank(file: FleetFile, version: AdapterVersion) -> None:
    if version.rank > MAX_LORA_RANKS[-1]:
        message = f"has rank {version.rank}; vLLM serves at most {MAX_LORA_RANKS[-1]}"
        raise file.places.error(("adapters", version.name), message)


def _check_fits(file: FleetFile, version: AdapterVersion, pool: _Pool) -> None:
    limit = pool.section.max_lora_rank
    if limit is not None and version.rank > limit:
        message = f"has rank {version.rank}, above max_lora_rank of pool {pool.name!r}, which is {limit}"
        hint = f"raise it to {smallest_max_rank(version.rank)}, or choose another pool"
        raise file.places.error(("adapters", version.name), message, hint=hint)


def _choose(file: FleetFile, version: AdapterVersion, pools: Sequence[_Pool]) -> _Pool:
    fitting = [pool for pool in pools if pool.fits(version)]
    if fitting:
        return min(fitting, key=lambda pool: pool.rank)
    growing = [pool for pool in pools if pool.section.max_lora_rank is None and pool.section.engine != "openai"]
    if growing:
        return growing[0]
    able = [pool for pool in pools if pool.section.engine != "openai"]
    if not able:
        raise file.places.error(
            ("adapters", version.name), "no pool can load adapters", hint="add a pool that runs vllm"
        )
    if len(able) == 1:
        _check_fits(file, version, able[0])
    largest = max(pool.rank for pool in able)
    message = f"has rank {version.rank}, above max_lora_rank of every pool, at most {largest}"
    hint = f"raise one to {smallest_max_rank(version.rank)}, or add a pool"
    raise file.places.error(("adapters", version.name), message, hint=hint)


def _pool_spec(file: FleetFile, pool: _Pool, python: str, env: Mapping[str, str], before: PoolSpec | None) -> PoolSpec:
    section = pool.section
    local = section.launcher == "local"
    urls = tuple(section.urls) if section.url is None else (section.url,)
    max_loras, max_cpu_loras = _slots(section, len(pool.members), before)
    return PoolSpec(
        name=pool.name,
        replicas=section.replicas if local else len(urls),
        engine=section.engine,
        launcher=section.launcher,
        urls=urls,
        secret=_secret(file, ("pools", pool.name), section.key, section.key_env, env) or "",
        python=(file.engine.python or python) if local else "",
        max_loras=max_loras,
        max_cpu_loras=max_cpu_loras,
        max_lora_rank=_kept(section.max_lora_rank, pool.rank, before.max_lora_rank if before else 0),
        max_model_len=section.max_model_len,
        gpus=section.gpus,
        kv_cache_bytes=section.kv_cache,
        engine_args=tuple(section.engine_args),
        env=dict(section.env),
        tenants=tuple(section.tenants),
        concurrent=_concurrent(section),
        drain_s=section.drain,
    )


def _concurrent(section: PoolSection) -> int:
    """As the file says, by its own key or as an engine argument; else what suits what the engines run on."""
    given = max_num_seqs(section.engine_args)
    on_cpu = section.launcher == "local" and not section.gpus
    return section.concurrent or (int(given[1]) if given else 0) or (_CONCURRENT_ON_CPU if on_cpu else _CONCURRENT)


def _slots(section: PoolSection, members: int, before: PoolSpec | None) -> tuple[int, int]:
    """`max_loras` and `max_cpu_loras`. Host memory is taken only by adapters that exist, so room to spare is free."""
    wanted = before.max_loras if before else max(1, min(members, _MAX_LORAS))
    max_loras = section.max_loras or min(wanted, section.max_cpu_loras or wanted)
    needed = max(max_loras, members)
    kept = before.max_cpu_loras if before and before.max_cpu_loras >= needed else _with_room(needed)
    return max_loras, section.max_cpu_loras or kept


def _with_room(needed: int) -> int:
    """The next power of two, so that engines restart seldom while adapters are added."""
    return max(_LEAST_CPU_LORAS, 1 << (needed - 1).bit_length())


def _kept(given: int | None, needed: int, before: int) -> int:
    """What the file says; else what runs, while it suffices; else what is needed."""
    return given or max(needed, before)


def _secret(
    file: FleetFile, path: KeyPath, key: SecretStr | None, key_env: str | None, env: Mapping[str, str]
) -> str | None:
    if key_env is None:
        return key.get_secret_value() if key else None
    value = env.get(key_env, "").strip()
    if not is_token(value):
        problem = "holds characters that a key cannot have" if value else "is not set"
        # Lower-case text could be the key itself, written in the wrong place.
        name = key_env if key_env.isupper() else "that it names"
        raise file.places.error((*path, "key_env"), f"the environment variable {name} {problem}")
    return value


def _listen(file: FleetFile) -> Listen:
    gateway = file.gateway
    return Listen(
        host=gateway.host,
        port=gateway.port,
        gateways=gateway.gateways,
        tls_cert=gateway.tls.cert if gateway.tls else None,
        tls_key=gateway.tls.key if gateway.tls else None,
    )


def _gateway(file: FleetFile, env: Mapping[str, str]) -> GatewaySettings:
    gateway = file.gateway
    key = _secret(file, ("gateway",), gateway.key, gateway.key_env, env) or _general_key(file, env)
    if key is None and not gateway.require_key and not is_loopback(gateway.host):
        hint = f"set gateway.require_key, gateway.key_env, gateway.key or the environment variable {API_KEY_VARIABLE}"
        raise file.places.error(("gateway", "host"), f"{gateway.host} is open to others, without a key", hint=hint)
    timeouts, waiting, retries = gateway.timeouts, gateway.waiting, gateway.retries
    return GatewaySettings(
        key_sha256=hashlib.sha256(key.encode()).hexdigest() if key else None,
        require_key=gateway.require_key,
        cors_origins=tuple(gateway.cors),
        max_body=gateway.max_body,
        timeouts=Timeouts(timeouts.connect, timeouts.first_byte, timeouts.between_chunks, timeouts.total),
        waiting=Waiting(waiting.requests, waiting.bytes, waiting.longest, waiting.comments),
        retries=Retries(retries.tries, retries.share, retries.per_second, retries.hedge_after),
        breaking=Breaking(gateway.breaker.failures, gateway.breaker.open, gateway.breaker.longest),
        idempotency=Idempotency(gateway.idempotency.bytes, gateway.idempotency.keep),
        migrate=gateway.migrate,
        currency=file.prices.currency if file.prices else "",
        journal=file.records.journal,
        traces=file.telemetry.traces is not None,
    )


def _store(file: FleetFile, env: Mapping[str, str]) -> str:
    store = file.store
    if store.url_env is None:
        return store.url.get_secret_value() if store.url else ""
    url = env.get(store.url_env, "").strip()
    if problem := store_problem(url) if url else "is not set":
        name = store.url_env if store.url_env.isupper() else "that it names"
        hint = STORE_HINT if url else ""
        raise file.places.error(("store", "url_env"), f"the environment variable {name} {problem}", hint=hint)
    return url


def _general_key(file: FleetFile, env: Mapping[str, str]) -> str | None:
    """The key in the environment, unless it is a tenant's.

    People keep theirs in the same variable for `tuneplex ask`. As the fleet's own key it could do everything, and
    would go on after it was revoked.
    """
    key = env.get(API_KEY_VARIABLE, "").strip()
    if key and not is_token(key):
        raise file.places.error((), f"{API_KEY_VARIABLE} holds characters that a key cannot have")
    return None if _TENANTS_KEY.fullmatch(key) else key or None
