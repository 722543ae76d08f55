"""How a fleet file and the ranks of its adapters become exact settings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tuneplex.errors import FleetFileError
from tuneplex.fleetfile import FleetFile, resolve
from tuneplex.fleetfile.schema import PerMillion
from tuneplex.identity import Limits
from tuneplex.records import mint
from tuneplex.types import AdapterVersion, Base, FleetSpec, Objective, PoolSpec, Price, Telemetry, Waiting

LoadText = Callable[[str | bytes], FleetFile]
BASE = Base("tiny", "/models/tiny", "models/tiny")


def resolved(
    file: FleetFile, ranks: Mapping[str, int], *, env: Mapping[str, str] | None = None, running: FleetSpec | None = None
) -> FleetSpec:
    """The fleet with adapters of these ranks."""
    versions = [AdapterVersion(name, "0" * 64, f"/a/{name}", rank, "") for name, rank in ranks.items()]
    return resolve(file, base=BASE, adapters=versions, python="/engine/python", env=env or {}, running=running)


def adapters(*names: str) -> str:
    """The beginning of a fleet file with these adapters."""
    return "base: models/tiny\nadapters:\n" + "".join(f"  {name}: adapters/one\n" for name in names)


def pool(spec: FleetSpec, name: str = "default") -> PoolSpec:
    """One pool of a fleet."""
    return next(pool for pool in spec.pools if pool.name == name)


def pools_of(spec: FleetSpec) -> dict[str, str]:
    """Adapter -> pool."""
    return {version.name: version.pool for version in spec.adapters}


@pytest.mark.parametrize(
    "ranks, expected",
    [
        ([], (1, 8, 8)),
        ([4], (1, 8, 8)),
        ([8, 16], (2, 8, 16)),
        ([8, 16, 64], (3, 8, 64)),
        ([8] * 5, (4, 8, 8)),
        ([300] + [8] * 8, (4, 16, 320)),
    ],
)
def test_default_pool(load_text: LoadText, ranks: list[int], expected: tuple[int, int, int]) -> None:
    """The default pool mixes up to four adapters, keeps all in host memory and serves the largest rank."""
    names = [f"a{index}" for index in range(len(ranks))]
    text = adapters(*names) if names else "base: models/tiny\n"
    found = pool(resolved(load_text(text), dict(zip(names, ranks, strict=True))))
    assert (found.max_loras, found.max_cpu_loras, found.max_lora_rank) == expected
    assert (found.replicas, found.engine, found.launcher, found.python) == (1, "vllm", "local", "/engine/python")


def test_adapters_choose_the_smallest_pool_that_fits(load_text: LoadText) -> None:
    """Without a pool of its own an adapter goes where it costs least."""
    text = adapters("a", "b", "c") + "pools: {big: {max_lora_rank: 64}, small: {max_lora_rank: 16}}\n"
    assert pools_of(resolved(load_text(text), {"a": 8, "b": 64, "c": 16})) == {"a": "small", "b": "big", "c": "small"}


def test_pool_without_rank_takes_what_fits_nowhere_else(load_text: LoadText) -> None:
    """A pool that leaves its rank open grows to the largest adapter that no other pool serves."""
    text = adapters("a", "b", "c") + "pools: {small: {max_lora_rank: 16}, open: {}}\n"
    spec = resolved(load_text(text), {"a": 16, "b": 100, "c": 60})
    assert pools_of(spec) == {"a": "small", "b": "open", "c": "open"}
    assert pool(spec, "open").max_lora_rank == 128


def test_adapter_with_a_pool_goes_there(load_text: LoadText) -> None:
    """A pool that the file names is used, even if a smaller one would do."""
    text = (
        "base: models/tiny\nadapters: {a: {source: adapters/one, pool: big}}\n"
        "pools: {small: {max_lora_rank: 8}, big: {max_lora_rank: 64}}\n"
    )
    assert pools_of(resolved(load_text(text), {"a": 8})) == {"a": "big"}


def test_reserved_pools_take_only_adapters_that_name_them(load_text: LoadText) -> None:
    """An adapter without a pool goes where everybody can call it, unless all pools are reserved."""
    text = (
        "base: models/tiny\nadapters: {a: {source: adapters/one, pool: own}, b: adapters/two}\n"
        "pools: {own: {tenants: [acme]}, all: {}}\n"
    )
    assert pools_of(resolved(load_text(text), {"a": 8, "b": 8})) == {"a": "own", "b": "all"}
    text = adapters("a") + "pools: {own: {tenants: [acme]}}\n"
    assert pools_of(resolved(load_text(text), {"a": 8})) == {"a": "own"}


@pytest.mark.parametrize(
    "pools, rank, message, hint",
    [
        (
            "{p: {max_lora_rank: 16}}",
            20,
            "fleet.yaml:3: adapters.a: has rank 20, above max_lora_rank of pool 'p', which is 16",
            "raise it to 32, or choose another pool",
        ),
        (
            "{p: {max_lora_rank: 16}, q: {max_lora_rank: 8}}",
            20,
            "fleet.yaml:3: adapters.a: has rank 20, above max_lora_rank of every pool, at most 16",
            "raise one to 32, or add a pool",
        ),
        ("{}", 600, "fleet.yaml:3: adapters.a: has rank 600; vLLM serves at most 512", ""),
        (
            "{o: {launcher: external, engine: openai, url: 'http://h:1'}}",
            8,
            "fleet.yaml:3: adapters.a: no pool can load adapters",
            "add a pool that runs vllm",
        ),
    ],
)
def test_adapter_that_fits_nowhere(load_text: LoadText, pools: str, rank: int, message: str, hint: str) -> None:
    """An adapter that no pool can serve is refused on its own line."""
    file = load_text(adapters("a") + f"pools: {pools}\n")
    with pytest.raises(FleetFileError) as caught:
        resolved(file, {"a": rank})
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_openai_pools_serve_only_adapters_that_name_them(load_text: LoadText) -> None:
    """A server that cannot load adapters gets none by itself."""
    text = (
        "base: models/tiny\nadapters: {a: {source: adapters/one, pool: o}, b: adapters/two}\n"
        "pools: {o: {launcher: external, engine: openai, url: 'http://h:1'}, v: {}}\n"
    )
    assert pools_of(resolved(load_text(text), {"a": 8, "b": 8})) == {"a": "o", "b": "v"}


def test_rank_above_the_named_pool(load_text: LoadText) -> None:
    """An adapter above the maximum of the pool that it names is refused, even if another pool would do."""
    text = (
        "base: models/tiny\nadapters:\n  a: {source: adapters/one, pool: p}\n"
        "pools: {p: {max_lora_rank: 8}, q: {max_lora_rank: 64}}\n"
    )
    with pytest.raises(FleetFileError, match=r"^fleet.yaml:3: adapters.a: has rank 9, above"):
        resolved(load_text(text), {"a": 9})


def test_all_settings_of_a_pool_arrive(load_text: LoadText) -> None:
    """Each key of a local pool ends up in its specification."""
    text = (
        "base: models/tiny\npools: {p: {replicas: 3, max_loras: 2, max_cpu_loras: 5, max_lora_rank: 256, gpus: 1,"
        " max_model_len: 4096, kv_cache: 2GiB, engine_args: [--seed=1], env: {A: b}, tenants: [acme], concurrent: 9,"
        " drain: 90s}}\n"
    )
    assert pool(resolved(load_text(text), {}), "p") == PoolSpec(
        name="p",
        replicas=3,
        python="/engine/python",
        max_loras=2,
        max_cpu_loras=5,
        max_lora_rank=256,
        max_model_len=4096,
        gpus=1,
        kv_cache_bytes=2 * 1024**3,
        engine_args=("--seed=1",),
        env={"A": "b"},
        tenants=("acme",),
        concurrent=9,
        drain_s=90.0,
    )


@pytest.mark.parametrize(
    "pools, concurrent",
    [
        ("p: {}", 128),
        ("p: {gpus: 1}", 256),
        ("p: {gpus: 1, engine_args: [--max-num-seqs=31, '--max_num_seqs', '32']}", 32),
        ("p: {engine_args: {max-num-seqs: 16}}", 16),
        ("p: {launcher: external, url: 'http://h:1'}, q: {}", 256),
        ("p: {launcher: external, url: 'http://h:1', concurrent: 500}, q: {}", 500),
    ],
)
def test_how_many_requests_at_a_time(load_text: LoadText, pools: str, concurrent: int) -> None:
    """As the file says, by its key or as an argument of the engine; else by what the engine runs on."""
    found = pool(resolved(load_text(f"base: models/tiny\npools: {{{pools}}}\n"), {}), "p")
    assert found.concurrent == concurrent


def test_external_pool(load_text: LoadText) -> None:
    """An external pool has one replica for each URL, its key from the environment, and no interpreter."""
    text = "base: {name: m}\npools: {x: {launcher: external, urls: ['http://h:1', 'http://h:2'], key_env: XK}}\n"
    found = pool(resolved(load_text(text), {}, env={"XK": "token"}), "x")
    assert (found.replicas, found.urls) == (2, ("http://h:1", "http://h:2"))
    assert (found.secret, found.python) == ("token", "")


def test_engine_python_of_the_file_wins(load_text: LoadText) -> None:
    """The interpreter that the file names replaces the installed one."""
    file = load_text("base: models/tiny\nengine: {python: /bin/sh}\n")
    assert pool(resolved(file, {})).python == "/bin/sh"


@pytest.mark.parametrize(
    "settings, env", [("{key: k1}", {"TUNEPLEX_API_KEY": "k2"}), ("{key_env: MINE}", {"MINE": "k1"})]
)
def test_gateway_key(load_text: LoadText, settings: str, env: dict[str, str]) -> None:
    """Only the digest of the gateway's key goes on, and the file's own key comes first."""
    spec = resolved(load_text(f"base: models/tiny\ngateway: {settings}\n"), {}, env=env)
    assert spec.gateway.key_sha256 == hashlib.sha256(b"k1").hexdigest()


def test_general_key_from_the_environment(load_text: LoadText) -> None:
    """TUNEPLEX_API_KEY is the key of a file that names none."""
    spec = resolved(load_text("base: models/tiny\n"), {}, env={"TUNEPLEX_API_KEY": "k"})
    assert spec.gateway.key_sha256 == hashlib.sha256(b"k").hexdigest()


def test_tenants_key_in_the_environment_is_not_the_fleets_own(load_text: LoadText) -> None:
    """A key that a tenant was given must not become one that may do everything and cannot be revoked."""
    _key, secret = mint("acme", 0)
    spec = resolved(load_text("base: models/tiny\n"), {}, env={"TUNEPLEX_API_KEY": secret})
    assert spec.gateway.key_sha256 is None


def test_no_key_on_loopback(load_text: LoadText) -> None:
    """On loopback no key is needed."""
    assert resolved(load_text("base: models/tiny\n"), {}).gateway.key_sha256 is None


@pytest.mark.parametrize(
    "settings, message",
    [
        ("{key_env: MINE}", "fleet.yaml:2: gateway.key_env: the environment variable MINE is not set"),
        ("{key_env: abc}", "fleet.yaml:2: gateway.key_env: the environment variable that it names is not set"),
        ("{host: 0.0.0.0, insecure: true}", "fleet.yaml:2: gateway.host: 0.0.0.0 is open to others, without a key"),
    ],
)
def test_missing_key(load_text: LoadText, settings: str, message: str) -> None:
    """A key that is needed and missing is named by its place, never by what may be the key itself."""
    with pytest.raises(FleetFileError) as caught:
        resolved(load_text(f"base: models/tiny\ngateway: {settings}\n"), {})
    assert str(caught.value) == message


def test_no_key_where_one_is_required_anyway(load_text: LoadText) -> None:
    """An address that is open to others needs no key of the file when nobody may call without one."""
    text = "base: models/tiny\ngateway: {host: 0.0.0.0, insecure: true, require_key: true}\n"
    gateway = resolved(load_text(text), {}).gateway
    assert (gateway.require_key, gateway.key_sha256) == (True, None)


URL = "postgresql://me:hunter2@db.example.com:5432/tuneplex"


@pytest.mark.parametrize("store", [URL, f"{{url: '{URL}'}}", "{url_env: STORE}"])
def test_store(load_text: LoadText, store: str) -> None:
    """The store's URL stands in the file, short or long, or in the environment."""
    assert resolved(load_text(f"base: models/tiny\nstore: {store}\n"), {}, env={"STORE": URL}).store == URL


@pytest.mark.parametrize("store", ["", "store:\n", "store: {}\n"])
def test_no_store(load_text: LoadText, store: str) -> None:
    """Without a URL the store is the one in the state directory."""
    assert resolved(load_text(f"base: models/tiny\n{store}"), {}, env={}).store == ""


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("STORE", "", "the environment variable STORE is not set"),
        ("store", "", "the environment variable that it names is not set"),
        ("STORE", "sqlite:///hunter2", "the environment variable STORE should be the URL of a PostgreSQL database"),
        ("STORE", "postgresql://me:hunter2@h:x/d", "the environment variable STORE is not a URL"),
    ],
)
def test_unusable_store_in_the_environment(load_text: LoadText, name: str, value: str, message: str) -> None:
    """A store's URL in the environment that is none is refused without being shown."""
    with pytest.raises(FleetFileError) as caught:
        resolved(load_text(f"base: models/tiny\nstore: {{url_env: {name}}}\n"), {}, env={name: value})
    assert str(caught.value) == f"fleet.yaml:2: store.url_env: {message}"
    assert "hunter" not in caught.value.hint


def test_unusable_key_in_the_environment(load_text: LoadText) -> None:
    """A key that no header can carry is refused without being shown."""
    with pytest.raises(FleetFileError, match=r"^fleet.yaml:1: TUNEPLEX_API_KEY holds characters") as caught:
        resolved(load_text("base: models/tiny\n"), {}, env={"TUNEPLEX_API_KEY": "hunter 2"})
    assert "hunter" not in str(caught.value)


def test_listen_and_gateway_settings_arrive(load_text: LoadText) -> None:
    """Where clients are served is taken from the file."""
    text = (
        "base: models/tiny\ngateway: {host: 0.0.0.0, port: 1, gateways: 2, key: k, cors: ['*'], max_body: 1KiB,"
        " tls: {cert: cert.pem, key: cert.pem}, timeouts: {connect: 1, first_byte: 2, between_chunks: 3},"
        " waiting: {requests: 5, bytes: 2KiB, longest: 1m30s, comments: 500ms}}\n"
    )
    file = load_text(text)
    spec = resolved(file, {})
    listen, gateway = spec.listen, spec.gateway
    assert (listen.host, listen.port, listen.gateways) == ("0.0.0.0", 1, 2)  # noqa: S104 - read, not bound
    assert file.gateway.tls
    assert (listen.tls_cert, listen.tls_key) == (file.gateway.tls.cert, file.gateway.tls.key)
    assert (gateway.cors_origins, gateway.max_body) == (("*",), 1024)
    assert (gateway.timeouts.connect_s, gateway.timeouts.first_byte_s, gateway.timeouts.between_chunks_s) == (1, 2, 3)
    assert gateway.waiting == Waiting(requests=5, bytes=2048, longest_s=90, comment_s=0.5)


def test_one_more_adapter_does_not_change_the_running_pool(load_text: LoadText) -> None:
    """Open settings stay as they run while they suffice."""
    before = resolved(load_text(adapters("a", "b")), {"a": 8, "b": 16})
    after = resolved(load_text(adapters("a", "b", "c")), {"a": 8, "b": 16, "c": 8}, running=before)
    assert after.pools == before.pools
    fewer = resolved(load_text(adapters("a")), {"a": 8}, running=after)
    assert fewer.pools == before.pools


def test_running_pool_grows_when_it_must(load_text: LoadText) -> None:
    """A larger rank, or what the file says now, changes the pool."""
    before = resolved(load_text(adapters("a")), {"a": 8})
    larger = resolved(load_text(adapters("a", "b")), {"a": 8, "b": 64}, running=before)
    assert pool(larger).max_lora_rank == 64
    text = adapters("a") + "pools: {default: {max_loras: 3}}\n"
    assert pool(resolved(load_text(text), {"a": 8}, running=before)).max_loras == 3


def test_max_loras_stay_within_max_cpu_loras(load_text: LoadText) -> None:
    """A small max_cpu_loras bounds a max_loras that the file leaves open."""
    text = adapters("a", "b", "c") + "pools: {p: {max_cpu_loras: 2}}\n"
    found = pool(resolved(load_text(text), {"a": 8, "b": 8, "c": 8}), "p")
    assert (found.max_loras, found.max_cpu_loras) == (2, 2)


def test_pinned_adapters(load_text: LoadText) -> None:
    """Those that should always have a slot are known by name, and one slot of their pool must stay for others."""
    text = "base: models/tiny\nadapters:\n  a: {source: adapters/one, pin: true}\n  b: adapters/one\n"
    assert resolved(load_text(text), {"a": 8, "b": 8}).pins == ("a",)
    assert resolved(load_text(adapters("a")), {"a": 8}).pins == ()
    with pytest.raises(FleetFileError) as caught:
        resolved(load_text(text.replace("b: adapters/one", "b: {source: adapters/one, pin: true}")), {"a": 8, "b": 8})
    assert str(caught.value).endswith(
        "adapters.b.pin: cannot be pinned: of the 2 slots of pool default one must stay for others"
    )
    assert caught.value.hint == "set pools.default.max_loras to 3"


def test_versions_of_other_adapters(load_text: LoadText) -> None:
    """Each adapter of the file needs its version, and there can be no other."""
    for ranks in ({}, {"a": 8, "b": 8}):
        with pytest.raises(ValueError, match="one version for each adapter"):
            resolved(load_text(adapters("a")), ranks)


def test_limits_of_models(load_text: LoadText) -> None:
    """The base and adapters have limits by the names that clients use; what has none is not named."""
    text = (
        "base: {source: models/tiny, limits: {concurrent: 4}}\n"
        "adapters:\n"
        "  a: {source: adapters/one, limits: {requests_per_minute: 60, tokens_per_minute: 1000, tokens_per_day:}}\n"
        "  b: {source: adapters/one, limits: {}}\n"
        "  c: {source: adapters/one, limits:}\n"
        "  d: adapters/one\n"
    )
    spec = resolved(load_text(text), dict.fromkeys("abcd", 8))
    assert spec.limits == {
        "tiny": Limits(concurrent=4),
        "a": Limits(requests_per_minute=60, tokens_per_minute=1000),
    }


def test_prices_of_models(load_text: LoadText) -> None:
    """A model's own price takes the place of the one for all; what is cached costs as much as a prompt at first."""
    text = (
        "base: {source: models/tiny, price: {prompt: 0, completion: 0}}\n"
        "prices: {currency: EUR, prompt: 0.15, cached: 0.075, completion: 0.60}\n"
        "adapters:\n"
        "  a: adapters/one\n"
        "  b: {source: adapters/one, price: {prompt: 0.3, completion: '1.20', cached:}}\n"
        "  c: {source: adapters/one, limits: {money_per_month: 12.5, cut_streams: true}}\n"
    )
    spec = resolved(load_text(text), dict.fromkeys("abc", 8))
    usual = Price(150_000, 600_000, 75_000)
    assert spec.prices == {"tiny": Price(0, 0, 0), "a": usual, "b": Price(300_000, 1_200_000, 300_000), "c": usual}
    assert spec.gateway.currency == "EUR"
    assert spec.limits == {"c": Limits(money_per_month=12_500_000_000_000, cut_streams=True)}


def test_a_currency_alone_prices_nothing(load_text: LoadText) -> None:
    """Only models with a price of their own cost something then."""
    text = "base: models/tiny\nprices: {currency: USD}\n"
    text += "adapters:\n  a: {source: adapters/one, price: {prompt: 1, completion: 2}}\n"
    assert resolved(load_text(text), {"a": 8}).prices == {"a": Price(1_000_000, 2_000_000, 1_000_000)}
    assert resolved(load_text("base: models/tiny\n"), {}).prices == {}


@given(st.integers(0, 10**12))
def test_a_price_is_exactly_what_is_written(micros: int) -> None:
    """Whatever price there can be: what a million tokens cost is a million times what one costs, to the last digit."""
    text = f"{micros // 10**6}.{micros % 10**6:06}"
    as_number, as_text = (TypeAdapter(PerMillion).validate_python(value) for value in (float(text), text))
    assert as_number == as_text == micros * 10**6


def test_what_is_kept_of_requests(load_text: LoadText) -> None:
    """How long requests are kept is the fleet's, and how much a journal holds the gateways'."""
    spec = resolved(load_text("base: models/tiny\nrecords: {keep: 7d, journal: 64MiB}\n"), {})
    assert (spec.records.keep_s, spec.gateway.journal) == (7 * 86400, 64 * 1024 * 1024)
    plain = resolved(load_text("base: models/tiny\nrecords:\n  keep:\n"), {})
    audited = resolved(load_text("base: models/tiny\nrecords: {audit: 30d, head_url: https://log/h}\n"), {})
    assert (audited.records.audit_s, audited.records.head_url) == (30 * 86400, "https://log/h")
    assert (plain.records.keep_s, plain.gateway.journal) == (90 * 86400, 1024 * 1024 * 1024)


def test_what_is_promised_of_models(load_text: LoadText) -> None:
    """A model's own promise takes the place of the fleet's, as far as it says anything."""
    text = "base: {source: models/tiny, slo: {ttft_p95: 1s}}\nslo: {availability: 99.5, ttft_p95: 2s}\n"
    more = "adapters: {a: {source: adapters/one, slo: {availability: 95}}, b: {source: adapters/one, slo: {}}}\n"
    spec = resolved(load_text(text + more), {"a": 8, "b": 8})
    assert spec.objective == Objective(99.5, 2.0)
    assert spec.objectives == {"tiny": Objective(99.5, 1.0), "a": Objective(95.0, 2.0)}
    assert resolved(load_text("base: models/tiny\n"), {}).objective == Objective(99.9, None)


def test_where_traces_go(load_text: LoadText) -> None:
    """Control is told the collector and the share, and gateways that each attempt is a span."""
    spec = resolved(load_text("base: models/tiny\ntelemetry: {traces: 'http://c:4318', sample: 0.1}\n"), {})
    assert (spec.telemetry, spec.gateway.traces) == (Telemetry("http://c:4318", 0.1), True)
    plain = resolved(load_text("base: models/tiny\n"), {})
    assert (plain.telemetry.traces, plain.gateway.traces) == ("", False)
