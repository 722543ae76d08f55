"""The vocabulary: frozen values that every other part speaks in.

All of them are `msgspec.Struct`s, so the same value travels over the feed, through the admin API and into files.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tuneplex.identity import Limits

__all__ = [
    "Activations",
    "AdapterStatus",
    "AdapterVersion",
    "Base",
    "Breaking",
    "Candidate",
    "Change",
    "Decision",
    "FleetSpec",
    "FleetView",
    "GatewayReport",
    "GatewaySettings",
    "GatewayStatus",
    "Idempotency",
    "Keeping",
    "Leases",
    "Listen",
    "Model",
    "Objective",
    "Part",
    "PoolSpec",
    "Price",
    "Replica",
    "ReplicaState",
    "ReplicaStatus",
    "Residency",
    "Resident",
    "Retries",
    "Route",
    "Spent",
    "Stage",
    "Status",
    "Storage",
    "Telemetry",
    "Tier",
    "Timeouts",
    "Trial",
    "Turns",
    "Used",
    "Waiting",
    "incarnation",
]


class Route(StrEnum):
    """The API routes that are sent on to an engine; the value is the path below `/v1`."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"


class ReplicaState(StrEnum):
    """Where a replica is in its life."""

    REQUESTED = "requested"
    STARTING = "starting"
    READY = "ready"
    ASLEEP = "asleep"
    DRAINING = "draining"
    DEAD = "dead"


class Part(StrEnum):
    """What can be restarted while the fleet runs."""

    GATEWAYS = "gateways"
    CONTROL = "control"
    ALL = "all"


class Stage(StrEnum):
    """Where a gateway process is in its life.

    JOINING: it takes another one's place, and serves nobody yet. DRAINING: another one has taken its place; it accepts
    no connection any more, and finishes what came on those that it has.
    """

    JOINING = "joining"
    SERVING = "serving"
    DRAINING = "draining"


class Tier(StrEnum):
    """How near an adapter is to the processor that multiplies with it."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class AdapterVersion(msgspec.Struct, frozen=True):
    """One immutable content of an adapter.

    Attributes:
        name: The adapter's name, as clients say it.
        digest: SHA-256 over the adapter's files, 64 hex digits.
        path: The local directory that holds `adapter_config.json` and the weights.
        rank: The largest rank in it (LoRA `r`).
        pool: The pool whose replicas serve it.
        source: Where it came from, as the fleet file says it.
    """

    name: str
    digest: str
    path: str
    rank: int
    pool: str
    source: str = ""

    @property
    def id(self) -> str:
        """`NAME@DIGEST`, the digest cut to 12 digits. Engines load the version under this name.

        A new content has a new name, so it can never meet another content's KV cache (vllm#42125).
        """
        return f"{self.name}@{self.digest[:12]}"


class Trial(msgspec.Struct, frozen=True):
    """How requests are divided between an adapter's version and a new one that is being tried.

    Attributes:
        version: The new one's id.
        share: Of the requests that get it, 0 to 1.
        salt: Of the hash that divides them; another one for each trial.
        by: What the requests have in common that get the same version: `key`, `user` (where a request names none,
            each is for itself), or `request`.
    """

    version: str
    share: float
    salt: str
    by: str = "user"


class Candidate(msgspec.Struct, frozen=True):
    """A version that is loaded beside those that requests get.

    Attributes:
        version: Which.
        trial: The requests that get it nevertheless; None as long as it is only loaded.
    """

    version: AdapterVersion
    trial: Trial | None = None


class Price(msgspec.Struct, frozen=True):
    """What each token costs, in picos (10^-12) of the fleet's currency.

    Attributes:
        prompt: Of a prompt.
        completion: Of an answer.
        cached: Of a prompt, where the engine had it in its prefix cache.
    """

    prompt: int
    completion: int
    cached: int

    def of(self, prompt: int, completion: int, cached: int = 0) -> int:
        """What so many tokens cost, picos; the cached ones are among those of the prompt."""
        cached = min(cached, prompt)
        return (prompt - cached) * self.prompt + cached * self.cached + completion * self.completion


class Model(msgspec.Struct, frozen=True):
    """Something a client can name in `model`: the base, or an adapter.

    Attributes:
        name: The name that clients use.
        version: The key into `Replica.serves`: the base's name, or an `AdapterVersion.id`.
        parent: The base's name for an adapter, None for the base.
        created: Unix time, seconds.
        limits: Of all callers together.
        price: Of its tokens; None where nothing is to be paid.
        trial: A new version that some of the requests get.
    """

    name: str
    version: str
    parent: str | None = None
    created: int = 0
    limits: Limits = Limits()
    price: Price | None = None
    trial: Trial | None = None


class Replica(msgspec.Struct, frozen=True):
    """One running engine, as gateways see it.

    Attributes:
        name: Unique in the fleet, for instance `default-0`.
        pool: The pool it belongs to.
        engine: The kind of engine, which names the dialect: `vllm` or `openai`.
        endpoint: `unix:/path`, `http://host:port` or `https://host:port[/prefix]`.
        secret: The bearer token the engine wants, or empty.
        state: Only READY takes new requests.
        serves: What it can answer now: `Model.version` -> the engine's own name for it.
        routes: The routes the engine offers.
        tenants: Who it is reserved for; empty means everybody.
        concurrent: Requests that it works on at a time; further ones would wait in it. None: nobody knows.
        slots: Different adapters that it works on at a time. None: nobody knows.
        pinned: Versions that have one of these slots for good.
        context: Tokens that a request can have, prompt and completion together. None: nobody knows.
        awaited: Versions that it does not serve yet, and is expected to: it starts, or loads them.
        ready_at: When it is expected to be ready, Unix time; None while nobody can tell.
        leave_at: When a draining one will be stopped, Unix time: what it still works on then should go elsewhere.
        started: When its engine was started, Unix time.
    """

    name: str
    pool: str
    engine: str
    endpoint: str
    secret: str = ""
    state: ReplicaState = ReplicaState.READY
    serves: dict[str, str] = {}
    routes: frozenset[Route] = frozenset(Route)
    tenants: frozenset[str] = frozenset()
    concurrent: int | None = None
    slots: int | None = None
    pinned: frozenset[str] = frozenset()
    context: int | None = None
    awaited: frozenset[str] = frozenset()
    ready_at: float | None = None
    leave_at: float | None = None
    started: float = 0.0

    def __repr__(self) -> str:
        """Without the secret, so that it cannot slip into a log."""
        return f"Replica({self.name!r}, {self.state.value}, {self.endpoint!r})"


def incarnation(replica: str, started: float) -> str:
    """Which start of a replica's engine: it counts its tokens anew each time.

    Args:
        replica: Its name.
        started: As in `Replica.started`.
    """
    return f"{replica}/{started:.0f}"


class Timeouts(msgspec.Struct, frozen=True):
    """How long the gateway waits for an engine, in seconds; `total_s` is for a whole reply."""

    connect_s: float = 5.0
    first_byte_s: float = 600.0
    between_chunks_s: float = 120.0
    total_s: float = 3600.0


class Retries(msgspec.Struct, frozen=True):
    """How often a request is sent again while its client has got nothing of a reply, and how many are.

    Attributes:
        tries: Of one request, the first among them.
        share: Of all requests, that may be sent again; hedges count too.
        per_second: Requests that may be sent again in any case.
        hedge_after_s: When an engine is silent for so long, another one is asked beside it; None: never.
    """

    tries: int = 3
    share: float = 0.2
    per_second: float = 10.0
    hedge_after_s: float | None = None


class Breaking(msgspec.Struct, frozen=True):
    """When a replica that fails gets no requests for a while.

    Attributes:
        failures: In a row.
        open_s: For how long then, seconds; twice as long each time that it fails again at once.
        longest_s: And no longer.
    """

    failures: int = 5
    open_s: float = 5.0
    longest_s: float = 60.0


class Idempotency(msgspec.Struct, frozen=True):
    """How much of replies to requests with an `Idempotency-Key` is kept, by all gateways together, and how long."""

    bytes: int = 256 * 1024 * 1024
    keep_s: float = 86400.0


class Waiting(msgspec.Struct, frozen=True):
    """How much may wait in one gateway, and for how long.

    Attributes:
        requests: That wait at a time.
        bytes: Of their bodies.
        longest_s: How long one may wait, seconds.
        comment_s: How often a stream that waits is told so, seconds; the first time after as long.
    """

    requests: int = 1000
    bytes: int = 256 * 1024 * 1024
    longest_s: float = 120.0
    comment_s: float = 5.0


class ObjectStore(msgspec.Struct, frozen=True):
    """Which object store `s3://` means; what is empty comes from the environment and from AWS's own files.

    Attributes:
        endpoint: Its URL.
        region: As it names them.
    """

    endpoint: str = ""
    region: str = ""


class Storage(msgspec.Struct, frozen=True):
    """Where models and adapters come from, and how many are kept.

    Attributes:
        objects: Which object store `s3://` means.
        cache: How many bytes of what was fetched are kept; None for as many as the disk has room for.
    """

    objects: ObjectStore = ObjectStore()
    cache: int | None = None


class Keeping(msgspec.Struct, frozen=True):
    """What is kept of requests that are over.

    Attributes:
        keep_s: How long each of them is, seconds; then they are only added up by the day.
        audit_s: How long the audit log is kept, seconds; it is dropped in whole segments.
        head_url: Where the newest head of the audit log is posted to, or kept as an object (`s3://`), or empty.
        head_lock_s: For how long nobody can delete such an object, seconds.
        store: Which object store that is.
    """

    keep_s: float = 90 * 86400.0
    audit_s: float = 365 * 86400.0
    head_url: str = ""
    head_lock_s: float = 365 * 86400.0
    store: ObjectStore = ObjectStore()


class Objective(msgspec.Struct, frozen=True):
    """What is promised of a model.

    Attributes:
        availability: How many of the requests are served, percent, below 100.
        ttft_p95_s: In which time 95 % of its streams begin, seconds; None where nothing is promised of that.
    """

    availability: float = 99.9
    ttft_p95_s: float | None = None


class Telemetry(msgspec.Struct, frozen=True):
    """Who is told of requests.

    Attributes:
        traces: URL of a collector that takes OTLP over HTTP; empty for none.
        sample: The share of the requests that it is told of, where clients do not say.
    """

    traces: str = ""
    sample: float = 1.0


class GatewaySettings(msgspec.Struct, frozen=True):
    """What can change in a gateway while it runs.

    Attributes:
        key_sha256: Hex digest of the fleet file's own key, if it has one.
        require_key: Nobody may call without a key, even before there is one.
        cors_origins: Origins that browsers may call from; `*` means any.
        max_body: Largest request body, bytes.
        timeouts: Towards engines.
        waiting: Of requests, for a free place.
        retries: Of requests at other replicas.
        breaking: Of replicas that fail.
        idempotency: Of requests that are sent again by their clients.
        migrate: Streams whose replica fails or goes away are continued at another one.
        currency: Of all prices and of limits in money: three letters, or empty.
        journal: Bytes of one gateway's journal that nobody has read yet; what comes then is lost.
        traces: Each attempt is a span that somebody is told of, and is named to the engine.
    """

    key_sha256: str | None = None
    require_key: bool = False
    cors_origins: tuple[str, ...] = ()
    max_body: int = 16 * 1024 * 1024
    timeouts: Timeouts = Timeouts()
    waiting: Waiting = Waiting()
    retries: Retries = Retries()
    breaking: Breaking = Breaking()
    idempotency: Idempotency = Idempotency()
    migrate: bool = True
    currency: str = ""
    journal: int = 1024 * 1024 * 1024
    traces: bool = False


class FleetView(msgspec.Struct, frozen=True, tag="view"):
    """All that a gateway knows of the fleet; replaced as a whole, never changed.

    Attributes:
        generation: Grows with every change.
        models: By name; the base is among them.
        aliases: Name that clients use -> name in `models`.
        gateways: How many share each limit, and each replica; while one is replaced, both count.
        tokenizer: The path of the base's `tokenizer.json`; empty where there is none.
        versions: The versions that can be asked for by their ids -> the adapter's name.
    """

    generation: int = 0
    models: dict[str, Model] = {}
    aliases: dict[str, str] = {}
    replicas: tuple[Replica, ...] = ()
    settings: GatewaySettings = GatewaySettings()
    gateways: int = 1
    tokenizer: str = ""
    versions: dict[str, str] = {}

    def model(self, name: str) -> Model | None:
        """The model that `name`, perhaps an alias or a version's id, stands for; None if there is none."""
        found = self.models.get(self.aliases.get(name, name))
        return self._pinned(name) if found is None and name in self.versions else found

    def _pinned(self, version: str) -> Model:
        """An adapter's model with just this version; one that is only being tried has no model of its own yet."""
        name = self.versions[version]
        base = next((model.name for model in self.models.values() if model.parent is None), None)
        model = self.models.get(name) or Model(name, version, parent=base)
        return msgspec.structs.replace(model, version=version, trial=None)


class Decision(msgspec.Struct, frozen=True):
    """What policy chose, and why, in words that are only put together when somebody reads them."""

    replica: Replica | None
    reason: str


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """What one process has let in of a limit that is for a period of the calendar.

    Attributes:
        period: Which: days, or months, of UTC since the beginning of 1970.
        amount: In that period, reserved or used: tokens, or picos.
    """

    period: int
    amount: int


class Used(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one gateway has let in of a subject with limits.

    Attributes:
        requests: In the last 60 seconds.
        tokens: In the last 60 seconds, reserved or used.
        spent: By this process, by the field of `Limits` (`tokens_per_day`, `money_per_month`).
        concurrent: Under way now.
        refused: Requests refused since the process started.
        wanted: What it lately would have let in if it could, of each kind.
    """

    requests: int = 0
    tokens: int = 0
    spent: dict[str, Spent] = {}
    concurrent: int = 0
    refused: int = 0
    wanted: Limits = Limits()


class Leases(msgspec.Struct, frozen=True, tag="leases"):
    """How the gateways share each limit; replaced as a whole, never changed.

    Attributes:
        generation: Grows with every change.
        shares: Gateway index -> subject -> what it may let in; of a period, counted from the gateway's start. Of a
            subject that is missing it may let in its part of the half that is spread evenly.
        limits: Subject -> what was divided.
        periods: Field of `Limits` -> the day, or the month, that its shares are for.
        left: Subject -> field of `Limits` -> what all gateways together can still let in, in that period.
        welcome: Gateways that may begin to serve: the others have given up what they do not need.
    """

    generation: int = 0
    shares: dict[int, dict[str, Limits]] = {}
    limits: dict[str, Limits] = {}
    periods: dict[str, int] = {}
    left: dict[str, dict[str, int]] = {}
    welcome: tuple[int, ...] = ()


class Turns(msgspec.Struct, frozen=True, tag="turns"):
    """How several gateways share the replicas; replaced as a whole, never changed. A single gateway needs none.

    Attributes:
        generation: Grows with every change.
        places: Gateway index -> replica -> requests that it may have there at a time.
        weights: Gateway index -> tenant -> what its weight is worth at this gateway, so that its share of all of them
            together is fair.
        elsewhere: Gateway index -> replica -> version -> requests that all other gateways have there.
        closing: Replica -> versions that nobody should begin anything with there: another one has waited long enough
            for the slot.
    """

    generation: int = 0
    places: dict[int, dict[str, int]] = {}
    weights: dict[int, dict[str, float]] = {}
    elsewhere: dict[int, dict[str, dict[str, int]]] = {}
    closing: dict[str, tuple[str, ...]] = {}


class GatewayReport(msgspec.Struct, frozen=True):
    """What a gateway tells control each second.

    Attributes:
        gateway: Its index, which no other gateway has as long as it lives.
        pid: Its process.
        generation: Of the FleetView it works with.
        outstanding: Requests under way, by replica name.
        counters: Metric name -> label values -> count since the process started.
        buckets: Histogram name -> label values -> counts per bucket (last one: above all bounds), then the sum.
        used: What it has let in, by subject.
        held: The shares that it goes by, by subject.
        leases: Their generation.
        busy: Replica -> version -> requests under way there.
        demand: Replica -> tenant -> requests under way there, and those that wait and could go there; one that could
            go to several counts as a part in each.
        closing: Replica -> versions that it begins nothing with there, because another one waits for the slot.
        waiting: Requests that wait.
        shut: Replica -> why it gets no requests from this gateway: `open` or `half-open` (its breaker), or `held`.
        name: As people know it, also in the name of its log. One that takes another one's place takes its name, too.
        stage: What it does.
        sharing: Among how many limits are shared, as far as it knows; 0 if it does not say.
        unrecorded: Why it cannot write down now what becomes of requests; empty while it can.
        begun: Replica -> version -> requests that it has sent there since it started; what was sent last is last.
        wanted: Version -> requests that wait for a place, and a slot, for it; who has waited longest is first.
    """

    gateway: int
    pid: int
    generation: int
    outstanding: dict[str, int] = {}
    counters: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    buckets: dict[str, list[tuple[tuple[str, ...], tuple[float, ...]]]] = {}
    used: dict[str, Used] = {}
    held: dict[str, Limits] = {}
    leases: int = 0
    busy: dict[str, dict[str, int]] = {}
    demand: dict[str, dict[str, float]] = {}
    closing: dict[str, tuple[str, ...]] = {}
    waiting: int = 0
    shut: dict[str, str] = {}
    name: str = ""
    stage: Stage = Stage.SERVING
    sharing: int = 0
    unrecorded: str = ""
    begun: dict[str, dict[str, int]] = {}
    wanted: dict[str, int] = {}


class Base(msgspec.Struct, frozen=True):
    """The frozen model that all adapters of a fleet share.

    Attributes:
        name: As clients say it in `model`.
        path: The local directory with config, tokenizer and safetensors (empty when only external engines serve it).
        source: Where it came from, as the fleet file says it.
    """

    name: str
    path: str
    source: str = ""


class PoolSpec(msgspec.Struct, frozen=True):
    """Replicas with the same engine settings.

    Attributes:
        name: Unique in the fleet.
        replicas: How many; an external pool has one for each of its `urls`.
        engine: `vllm` or `openai` (any server that speaks OpenAI's API and cannot load adapters).
        launcher: `local` starts processes on this machine, `external` attaches to `urls`.
        urls: Of external engines.
        secret: The bearer token of external engines.
        python: The interpreter of the environment that has the engine.
        max_loras: Adapters that one batch may mix (device slots).
        max_cpu_loras: Adapters that stay in host memory.
        max_lora_rank: The largest rank served; one that vLLM knows.
        max_model_len: Context length, tokens; None leaves it to the engine.
        gpus: GPUs for each replica; 0 runs on the CPU.
        kv_cache_bytes: KV cache of each replica; None leaves it to the engine (on the CPU: 1 GiB).
        engine_args: Further arguments for the engine, as on its command line.
        env: Further environment variables for the engine.
        tenants: Who the pool is reserved for; empty means everybody.
        concurrent: Requests that each replica works on at a time; further ones wait in the gateways.
        drain_s: How long a replica that goes away may finish its requests, seconds.
    """

    name: str
    replicas: int = 1
    engine: str = "vllm"
    launcher: str = "local"
    urls: tuple[str, ...] = ()
    secret: str = ""
    python: str = ""
    max_loras: int = 4
    max_cpu_loras: int = 4
    max_lora_rank: int = 16
    max_model_len: int | None = None
    gpus: int = 0
    kv_cache_bytes: int | None = None
    engine_args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    tenants: tuple[str, ...] = ()
    concurrent: int = 128
    drain_s: float = 300.0

    def __repr__(self) -> str:
        """Without the secret and the environment, so that they cannot slip into a log."""
        return f"PoolSpec({self.name!r}, replicas={self.replicas}, launcher={self.launcher!r})"


class Listen(msgspec.Struct, frozen=True):
    """Where the gateways listen, and how many there are; a change needs a restart of the fleet."""

    host: str = "127.0.0.1"
    port: int = 8000
    gateways: int = 1
    tls_cert: str | None = None
    tls_key: str | None = None


class Logs(msgspec.Struct, frozen=True):
    """How the fleet's own processes write their logs; a change needs a restart of the fleet.

    Attributes:
        format: `text` for people, or `json` for programs.
        level: The least that is told: `debug`, `info`, `warning` or `error`.
    """

    format: str = "text"
    level: str = "info"


class FleetSpec(msgspec.Struct, frozen=True):
    """A fleet file with everything resolved: sources are local directories, defaults are filled in.

    Attributes:
        adapters: The version of each that requests get.
        candidates: Further versions that are loaded.
        storage: Where versions come from that are added while the fleet runs.
        limits: Of models, by name.
        prices: Of those models whose use costs something, by name.
        store: URL of the PostgreSQL database that keeps tenants and keys; empty for a file in the state directory.
        logs: Of the fleet's own processes.
        records: What is kept of requests that are over.
        telemetry: Who is told of requests.
        objective: What is promised of the models.
        objectives: Of those models of which something else is, by name.
        pins: Names of adapters that should always have a slot.
    """

    name: str
    base: Base
    adapters: tuple[AdapterVersion, ...] = ()
    aliases: dict[str, str] = {}
    pools: tuple[PoolSpec, ...] = ()
    listen: Listen = Listen()
    gateway: GatewaySettings = GatewaySettings()
    store: str = ""
    limits: dict[str, Limits] = {}
    prices: dict[str, Price] = {}
    logs: Logs = Logs()
    records: Keeping = Keeping()
    telemetry: Telemetry = Telemetry()
    objective: Objective = Objective()
    objectives: dict[str, Objective] = {}
    pins: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    storage: Storage = Storage()

    @property
    def loaded(self) -> tuple[AdapterVersion, ...]:
        """All versions that should be loaded."""
        return (*self.adapters, *(candidate.version for candidate in self.candidates))


class Change(msgspec.Struct, frozen=True):
    """One difference between two fleet specs.

    Attributes:
        what: `adapter contacts`, `pool default`, `alias gpt-4o-mini`, `gateway`, `listen`, `base`.
        kind: `add`, `remove` or `change`.
        how: `live` (nothing restarts), `rolling` (replicas are replaced one by one) or `restart` (down and up).
        detail: For people: `replicas 1 -> 2`.
    """

    what: str
    kind: str
    how: str
    detail: str = ""


class GatewayStatus(msgspec.Struct, frozen=True):
    """One gateway process, as control sees it.

    Attributes:
        index: Its number; one that takes another one's place has a new number.
        pid: Its process.
        connected: Whether control hears of it.
        outstanding: Requests under way.
        waiting: Requests that wait in it.
        name: Also the name of its log, which it shares with the one whose place it has taken.
        stage: What it does.
    """

    index: int
    pid: int | None = None
    connected: bool = False
    outstanding: int = 0
    waiting: int = 0
    name: str = ""
    stage: Stage = Stage.SERVING


class Resident(msgspec.Struct, frozen=True):
    """One adapter of an engine, and where it is now.

    Attributes:
        name: The engine's own name for it.
        tier: DEVICE is in a slot, HOST in the machine's memory, DISK is read when a request needs it.
        slot: The slot it is in.
        rank: Its own rank.
        bytes: What it takes in host memory.
        pinned: It stays in its slot.
        last_used: When a request last used it, Unix time.
        running: Requests that use it now.
        waiting: Requests that wait for it, or for a seat.
        path: Where the engine read it.
        since: Since when it has been in this tier, as far as control has seen it, Unix time.

    None stands for what the engine does not tell.
    """

    name: str
    tier: Tier | None = None
    slot: int | None = None
    rank: int | None = None
    bytes: int | None = None
    pinned: bool | None = None
    last_used: float | None = None
    running: int | None = None
    waiting: int | None = None
    path: str | None = None
    since: float | None = None


class Activations(msgspec.Struct, frozen=True):
    """How often an engine has put an adapter into a slot since it started, and what that took; None: not told."""

    count: int | None = None
    seconds: float | None = None


class Residency(msgspec.Struct, frozen=True):
    """Where an engine has its adapters; None stands for what it does not tell.

    Attributes:
        slots: Adapters that fit into device memory at a time.
        slots_used: How many slots hold one.
        slot_bytes: What each slot takes in device memory, whatever is in it.
        host_capacity: Adapters that stay in host memory, those in slots among them.
        host_used: How many do now.
        adapters: All that it knows.
        activations: What went into slots.
        guess: The engine does not tell; this is what it should look like by what was sent there.
    """

    slots: int | None = None
    slots_used: int | None = None
    slot_bytes: int | None = None
    host_capacity: int | None = None
    host_used: int | None = None
    adapters: tuple[Resident, ...] = ()
    activations: Activations = Activations()
    guess: bool = False


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica, as control sees it.

    Attributes:
        name: Unique in the fleet.
        pool: Its pool.
        state: Where it is in its life; DEAD with `gave_up` stays so until the fleet file changes.
        phase: What a starting engine is doing, in a few words.
        since_s: Seconds in this state.
        pid: The engine's first process; None for an external one.
        restarts: How often it was started again.
        gave_up: No further restart is tried.
        detail: The last error, for people.
        log: The path of its log file, empty for an external one.
        adapters: The `AdapterVersion.id`s it has loaded.
        running: Requests the engine works on.
        waiting: Requests that wait in the engine.
        kv_use: Share of the KV cache in use, 0 to 1.
        residency: Where it has its adapters; where the engine cannot tell, a guess; None where nobody can say anything.
        drift: What was found of it that was not as control had left it, since control started: kind -> how often.
        notice: What a person should know although nothing fails.
        tenants: Who its pool is reserved for; empty means everybody.
        outstanding: Requests that gateways have there.
        drained: It drains, and no gateway sends it anything or waits for anything from it.
        held: `drain` or `restart`, if somebody wished that; empty for any other one.
        leave_s: Seconds until what a draining one still works on should go elsewhere; None for any other one.
    """

    name: str
    pool: str
    state: ReplicaState
    phase: str = ""
    since_s: float = 0.0
    pid: int | None = None
    restarts: int = 0
    gave_up: bool = False
    detail: str = ""
    log: str = ""
    adapters: tuple[str, ...] = ()
    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0
    residency: Residency | None = None
    notice: str = ""
    tenants: tuple[str, ...] = ()
    outstanding: int = 0
    drained: bool = False
    held: str = ""
    leave_s: float | None = None
    drift: dict[str, int] = {}


class AdapterStatus(msgspec.Struct, frozen=True):
    """One adapter version of the fleet.

    Attributes:
        version: Which.
        replicas: That have it loaded.
        detail: Why some do not.
        share: Of the requests that it gets while it is being rolled out; None for one that is in use.
    """

    version: AdapterVersion
    replicas: tuple[str, ...] = ()
    detail: str = ""
    share: float | None = None


class Status(msgspec.Struct, frozen=True):
    """The answer of `GET /status` on the admin socket.

    Attributes:
        name: The fleet's name.
        url: Where clients call, `http://127.0.0.1:8000/v1`.
        base: The base's name.
        ready: At least one gateway and, in each pool, one replica can answer, with all adapters it should have.
        started: Unix time of the supervisor's start, seconds.
        store: Why tenants and keys cannot be changed now, for people; empty when they can.
        records: What usage or the audit log lack now, and why, for people; empty when they lack nothing.
    """

    name: str
    url: str
    base: str
    ready: bool
    started: float
    gateways: tuple[GatewayStatus, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    adapters: tuple[AdapterStatus, ...] = ()
    aliases: dict[str, str] = {}
    store: str = ""
    records: str = ""
