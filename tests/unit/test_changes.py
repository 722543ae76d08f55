"""Differences between fleets, and how they can be brought live."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.identity import Limits
from tuneplex.policy import changes
from tuneplex.types import (
    AdapterVersion,
    Base,
    Change,
    FleetSpec,
    GatewaySettings,
    Keeping,
    Listen,
    Logs,
    Objective,
    PoolSpec,
    Price,
    Telemetry,
    Timeouts,
)

A = AdapterVersion("contacts", "a" * 64, "/a", 8, "default")
FLEET = FleetSpec(
    name="demo",
    base=Base("tiny", "/tiny"),
    adapters=(A,),
    aliases={"gpt-4o-mini": "contacts"},
    pools=(PoolSpec("default"),),
)
replace = msgspec.structs.replace


@pytest.mark.parametrize(
    "new, expected",
    [
        ({"name": "other"}, Change("name", "change", "restart", "demo -> other")),
        ({"base": Base("tiny", "/b")}, Change("base", "change", "restart", "path /tiny -> /b")),
        ({"logs": Logs("json")}, Change("logs", "change", "restart", "format text -> json")),
        ({"store": "postgresql://hunter2@h/d"}, Change("store", "change", "restart", "url changed")),
        ({"records": Keeping(86400.0)}, Change("records", "change", "live", "keep_s 7776000.0 -> 86400.0")),
        (
            {"telemetry": Telemetry("http://c:4318", 0.5)},
            Change("telemetry", "change", "live", "traces none -> http://c:4318, sample 1.0 -> 0.5"),
        ),
        (
            {"objective": Objective(99.5, 2.0)},
            Change("slo", "change", "live", "availability 99.9 -> 99.5, ttft_p95_s none -> 2.0"),
        ),
        (
            {"objectives": {"contacts": Objective(95.0)}},
            Change("slo of contacts", "add", "live", "availability 99.9 -> 95.0"),
        ),
        ({"listen": Listen(port=9000)}, Change("listen", "change", "restart", "port 8000 -> 9000")),
        ({"adapters": ()}, Change("adapter contacts", "remove", "live", "contacts@aaaaaaaaaaaa")),
        (
            {"adapters": (A, replace(A, name="sql"))},
            Change("adapter sql", "add", "live", "sql@aaaaaaaaaaaa"),
        ),
        (
            {"adapters": (replace(A, digest="b" * 64, rank=16),)},
            Change("adapter contacts", "change", "live", "contacts@aaaaaaaaaaaa -> contacts@bbbbbbbbbbbb"),
        ),
        (
            {"adapters": (replace(A, pool="big"),)},
            Change("adapter contacts", "change", "live", "pool default -> big"),
        ),
        ({"pins": ("contacts",)}, Change("pin of contacts", "add", "live")),
        ({"aliases": {}}, Change("alias gpt-4o-mini", "remove", "live", "contacts")),
        (
            {"aliases": {"gpt-4o-mini": "tiny"}},
            Change("alias gpt-4o-mini", "change", "live", "contacts -> tiny"),
        ),
        (
            {"aliases": {"gpt-4o-mini": "contacts", "x": "tiny"}},
            Change("alias x", "add", "live", "tiny"),
        ),
        (
            {"pools": (PoolSpec("default", replicas=3),)},
            Change("pool default", "change", "live", "replicas 1 -> 3"),
        ),
        (
            {"pools": (PoolSpec("default", tenants=("acme", "zeta")),)},
            Change("pool default", "change", "live", "tenants none -> acme+zeta"),
        ),
        (
            {"pools": (PoolSpec("default", drain_s=60.0),)},
            Change("pool default", "change", "live", "drain_s 300.0 -> 60.0"),
        ),
        (
            {"pools": (PoolSpec("default", replicas=2, max_lora_rank=64),)},
            Change("pool default", "change", "rolling", "replicas 1 -> 2, max_lora_rank 16 -> 64"),
        ),
        (
            {"pools": (PoolSpec("default", max_model_len=512),)},
            Change("pool default", "change", "rolling", "max_model_len none -> 512"),
        ),
        (
            {"pools": (PoolSpec("default"), PoolSpec("big", replicas=2))},
            Change("pool big", "add", "live", "replicas 0 -> 2"),
        ),
        ({"pools": ()}, Change("pool default", "remove", "live", "replicas 1 -> 0")),
        (
            {"limits": {"contacts": Limits(requests_per_minute=60)}},
            Change("limits of contacts", "add", "live", "requests_per_minute none -> 60"),
        ),
        (
            {"limits": {"contacts": Limits(money_per_month=25 * 10**12)}},
            Change("limits of contacts", "add", "live", "money_per_month none -> 25.00"),
        ),
        (
            {"prices": {"contacts": Price(150_000, 600_000, 75_000)}},
            Change("price of contacts", "add", "live", "none -> prompt 0.15 completion 0.60 cached 0.075"),
        ),
        (
            {"gateway": GatewaySettings(currency="EUR")},
            Change("gateway", "change", "live", "currency none -> EUR"),
        ),
        (
            {"gateway": GatewaySettings(timeouts=Timeouts(connect_s=1))},
            Change("gateway", "change", "live", "timeouts (connect_s 5.0 -> 1)"),
        ),
        (
            {"gateway": GatewaySettings(cors_origins=("*",))},
            Change("gateway", "change", "live", "cors_origins none -> *"),
        ),
    ],
)
def test_one_difference(new: dict[str, object], expected: Change) -> None:
    """One difference is one change, with what it needs and what it is."""
    assert changes(FLEET, replace(FLEET, **new)) == (expected,)


@pytest.mark.parametrize("launcher, how", [("local", "rolling"), ("external", "live")])
def test_how_many_requests_at_a_time_is_a_setting_of_local_engines(launcher: str, how: str) -> None:
    """A local engine is started with it; an external one has its own, and only gets as many."""
    old = replace(FLEET, pools=(PoolSpec("x", launcher=launcher),))
    new = replace(FLEET, pools=(PoolSpec("x", launcher=launcher, concurrent=64),))
    assert changes(old, new) == (Change("pool x", "change", how, "concurrent 128 -> 64"),)


def test_urls_of_external_pools_change_live() -> None:
    """One external engine more or less needs no other engine to restart."""
    old = replace(FLEET, pools=(PoolSpec("x", launcher="external", urls=("http://h:1",)),))
    new = replace(FLEET, pools=(PoolSpec("x", launcher="external", urls=("http://h:1", "http://h:2"), replicas=2),))
    assert [change.how for change in changes(old, new)] == ["live"]


@pytest.mark.parametrize(
    "new",
    [
        {"pools": (PoolSpec("default", secret="hunter2", env={"HF_TOKEN": "hunter2"}, engine_args=("--k=hunter2",)),)},
        {"gateway": GatewaySettings(key_sha256="hunter2")},
    ],
)
def test_secrets_are_not_told(new: dict[str, object]) -> None:
    """That a secret changed is said, but not from what to what."""
    (change,) = changes(FLEET, replace(FLEET, **new))
    assert "key changed" in change.detail
    assert "hunter2" not in str(change)


def test_where_something_came_from_makes_no_difference() -> None:
    """The same content from another source is the same fleet."""
    moved = replace(FLEET, base=replace(FLEET.base, source="hf:x/y"), adapters=(replace(A, source="elsewhere"),))
    assert changes(FLEET, moved) == ()


names = st.sampled_from(["a", "b", "c"])
versions = st.builds(
    AdapterVersion, names, st.sampled_from(["1" * 64, "2" * 64]), st.just("/p"), st.sampled_from([8, 16]), names
)
pools = st.builds(
    PoolSpec,
    names,
    replicas=st.integers(1, 3),
    max_loras=st.integers(1, 3),
    env=st.dictionaries(names, names, max_size=1),
)
gateways = st.builds(GatewaySettings, key_sha256=st.none() | names, max_body=st.integers(1, 3))
fleets = st.builds(
    FleetSpec,
    names,
    st.builds(Base, names, names),
    adapters=st.lists(versions, max_size=3, unique_by=lambda item: item.name).map(tuple),
    aliases=st.dictionaries(names, names, max_size=3),
    pools=st.lists(pools, max_size=3, unique_by=lambda item: item.name).map(tuple),
    listen=st.builds(Listen, port=st.integers(1, 2)),
    gateway=gateways,
    store=st.just("") | names,
    logs=st.builds(Logs, st.sampled_from(["text", "json"]), st.sampled_from(["info", "error"])),
    prices=st.dictionaries(names, st.builds(Price, *[st.integers(0, 2)] * 3)),
    limits=st.dictionaries(names, st.builds(Limits, st.integers(1, 3), concurrent=st.none() | st.integers(1, 2))),
)


def sorted_parts(fleet: FleetSpec) -> FleetSpec:
    """The fleet with its parts in a fixed order, which makes no difference."""
    adapters = tuple(sorted(fleet.adapters, key=lambda version: version.name))
    return replace(fleet, adapters=adapters, pools=tuple(sorted(fleet.pools, key=lambda pool: pool.name)))


@given(fleets)
def test_nothing_changes_by_itself(fleet: FleetSpec) -> None:
    """A fleet does not differ from itself."""
    assert changes(fleet, fleet) == ()


@given(fleets, fleets)
def test_any_difference_is_told(old: FleetSpec, new: FleetSpec) -> None:
    """There is a change exactly if the fleets differ in more than order, and each thing is named once."""
    found = changes(old, new)
    assert bool(found) == (sorted_parts(old) != sorted_parts(new))
    assert len({change.what for change in found}) == len(found)


@given(fleets, fleets)
def test_the_way_back(old: FleetSpec, new: FleetSpec) -> None:
    """Back again the same things change, what was added is removed, and it takes the same steps."""
    opposite = {"add": "remove", "remove": "add", "change": "change"}
    there = {(change.what, opposite[change.kind], change.how) for change in changes(old, new)}
    assert there == {(change.what, change.kind, change.how) for change in changes(new, old)}


@given(fleets, fleets)
def test_only_listen_base_store_and_name_need_a_restart(old: FleetSpec, new: FleetSpec) -> None:
    """With the same name, base, store, logs and listener, nothing needs a restart."""
    same = replace(new, name=old.name, base=old.base, listen=old.listen, store=old.store, logs=old.logs)
    assert all(change.how != "restart" for change in changes(old, same))
    needed = {change.what for change in changes(old, new) if change.how == "restart"}
    assert needed <= {"name", "base", "listen", "store", "logs"}
