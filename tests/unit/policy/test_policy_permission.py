"""Nobody reaches what the tenant or the key forbids."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.gateway.principals import principals
from tuneplex.identity import ANY, Access, Grant, Key, Tenant
from tuneplex.policy import eligible, permits
from tuneplex.types import GatewaySettings, Model, Replica, ReplicaState, Route

BASE = Model("base", "base")
LETTERS = "ab.-*?[]!\\é\n"

names = st.text(alphabet="ab.-é", min_size=1, max_size=6)
patterns = st.one_of(st.just(ANY), st.lists(st.text(alphabet=LETTERS, max_size=6), max_size=3).map(tuple))
tenant_names = st.sampled_from(["default", "acme", "zeta"])
models = st.one_of(st.just(BASE), names.map(lambda name: Model(name, f"{name}@1", parent="base")))
tenants = st.builds(Tenant, tenant_names, adapters=patterns, base=st.booleans(), isolated=st.booleans())
keys = st.builds(Key, st.just("k1"), tenant_names, st.just("0" * 64), adapters=patterns, base=st.booleans())
replicas = st.builds(
    Replica,
    st.just("r0"),
    st.just("pool"),
    st.just("vllm"),
    st.just("unix:/x"),
    state=st.sampled_from(ReplicaState),
    serves=st.dictionaries(st.sampled_from(["base", "a@1", "b@1", "ab@1"]), st.just("name")),
    routes=st.frozensets(st.sampled_from(Route)),
    tenants=st.frozensets(tenant_names),
)


def allowed(adapters: tuple[str, ...], *, base: bool, model: Model) -> bool:
    """What a tenant or a key by itself allows, in the plainest words there are."""
    return base if model.parent is None else any(fnmatchcase(model.name, pattern) for pattern in adapters)


@given(tenant=tenants, key=keys, model=models)
def test_both_the_tenant_and_the_key_must_allow_a_model(tenant: Tenant, key: Key, model: Model) -> None:
    """A principal may call exactly what both allow, whatever their patterns."""
    known = principals(GatewaySettings(), Access(tenants=(tenant,), keys=(key,)))
    for principal in known.keyed.values():
        both = [allowed(one.adapters, base=one.base, model=model) for one in (tenant, key) if key.tenant == tenant.name]
        expected = all(both) if both else allowed(key.adapters, base=key.base, model=model)
        assert permits(principal.grant, model) == expected


@given(
    tenant=tenants,
    key=keys,
    model=models,
    route=st.sampled_from(Route),
    fleet=st.lists(replicas, max_size=4).map(tuple),
)
def test_nobody_is_served_where_it_is_forbidden(
    tenant: Tenant, key: Key, model: Model, route: Route, fleet: tuple[Replica, ...]
) -> None:
    """Only replicas that are ready, have the model and the route and are for the tenant, for models it may call."""
    known = principals(GatewaySettings(), Access(tenants=(tenant,), keys=(key,)))
    for principal in known.keyed.values():
        for replica in eligible(principal, model, route, fleet):
            assert permits(principal.grant, model)
            assert replica.state is ReplicaState.READY
            assert model.version in replica.serves
            assert route in replica.routes
            assert not replica.tenants or principal.tenant in replica.tenants
            assert replica.tenants or not principal.isolated


@pytest.mark.parametrize("others", [{"zeta"}, {"zeta", "default"}, {""}])
def test_a_reserved_pool_is_closed_to_everybody_else(others: set[str]) -> None:
    """A pool that is for others takes nothing, whoever has no need of isolation."""
    replica = Replica("r0", "pool", "vllm", "unix:/x", serves={"base": "base"}, tenants=frozenset(others))
    known = principals(GatewaySettings(), Access(tenants=(Tenant("acme"),), keys=(Key("k1", "acme", "0" * 64),)))
    for principal in known.keyed.values():
        assert eligible(principal, BASE, Route.CHAT, (replica,)) == ()


def test_no_patterns_allow_nothing() -> None:
    """An empty set of patterns is not the same as none to check."""
    model = Model("ada", "ada@1", parent="base")
    assert not permits(Grant(((),)), model)
    assert not permits(Grant((("*",), ())), model)
    assert permits(Grant(), model)
