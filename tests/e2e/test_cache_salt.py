"""Tenants do not share the prefix cache of the real vLLM, unless they want to."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.support.background import background
from tests.support.gateways import open_gateway
from tests.support.identities import access_of, bearer, key_of
from tests.support.real_engine import RealEngine
from tuneplex.identity import Tenant
from tuneplex.testing import FakeEngine

pytestmark = pytest.mark.engine

ACCESS = access_of(
    *(key_of(tenant, tenant) for tenant in ("acme", "zeta", "gamma", "hal")),
    key_of("acme-2", "acme"),
    Tenant("gamma", cache_group="both"),
    Tenant("hal", cache_group="both"),
)
PATIENCE_S = 10
ROUTES = ("chat/completions", "completions", "responses")


@pytest.fixture(scope="module")
def gateway(plugin_engine: RealEngine) -> Iterator[httpx2.Client]:
    """A gateway in front of a vLLM that caches prefixes."""
    with (
        background(open_gateway(plugin_engine.endpoint, plugin_engine.secret, ACCESS)) as url,
        httpx2.Client(base_url=url, timeout=120, verify=False) as client,
    ):
        yield client


class Cache:
    """The engine's prefix cache, as its metrics tell of it."""

    def __init__(self, engine: httpx2.Client) -> None:
        self._engine = engine

    def counts(self) -> tuple[float, float]:
        """Tokens that were looked up, and those of them that were found, since the engine's start."""
        page = self._engine.get("/metrics").text.splitlines()
        looked_up, found = (
            sum(float(line.split()[-1]) for line in page if line.startswith(f"vllm:prefix_cache_{name}_total"))
            for name in ("queries", "hits")
        )
        return looked_up, found

    def found_since(self, before: tuple[float, float]) -> float:
        """How many tokens were found for the one request that came since."""
        deadline = time.monotonic() + PATIENCE_S
        while (now := self.counts())[0] == before[0]:
            assert time.monotonic() < deadline, "the engine looked nothing up"
            time.sleep(0.05)
        return now[1] - before[1]


@pytest.fixture
def cache(plugin_engine: RealEngine) -> Iterator[Cache]:
    """The cache of the engine behind the gateway."""
    with plugin_engine.client() as client:
        yield Cache(client)


def body_of(route: str, topic: str, **fields: object) -> dict[str, object]:
    """A request with a prompt of several hundred tokens, which is the same for the same topic."""
    prompt = " ".join(f"{topic} {number}" for number in range(70))
    limit = "max_output_tokens" if route == "responses" else "max_tokens"
    messages = [{"role": "user", "content": prompt}]
    said: dict[str, dict[str, object]] = {
        "chat/completions": {"messages": messages},
        "completions": {"prompt": prompt},
        "responses": {"input": prompt},
    }
    return {"model": "base", limit: 1, "temperature": 0, **said[route], **fields}


def cached(gateway: httpx2.Client, cache: Cache, secret: str, route: str, topic: str, **fields: object) -> float:
    """How many tokens of its prompt the engine had in its cache already."""
    before = cache.counts()
    reply = gateway.post(f"/{route}", json=body_of(route, topic, **fields), headers=bearer(secret))
    assert reply.status_code == 200, reply.text
    return cache.found_since(before)


@pytest.mark.parametrize("route", ROUTES)
def test_only_the_same_tenant_finds_its_prompt(gateway: httpx2.Client, cache: Cache, route: str) -> None:
    """Nobody can tell by the time of a reply what another tenant has asked; a tenant's own keys share its cache."""
    topic = f"secret of {route}"
    assert cached(gateway, cache, "acme", route, topic) == 0
    assert cached(gateway, cache, "zeta", route, topic) == 0
    assert cached(gateway, cache, "acme", route, topic) > 0
    assert cached(gateway, cache, "acme-2", route, topic) > 0
    assert cached(gateway, cache, "zeta", route, topic) > 0


def test_tenants_of_a_group_share(gateway: httpx2.Client, cache: Cache) -> None:
    """What one tenant of a cache group has asked is there for the others, and for nobody else."""
    topic = "what the group knows"
    assert cached(gateway, cache, "gamma", "completions", topic) == 0
    assert cached(gateway, cache, "hal", "completions", topic) > 0
    assert cached(gateway, cache, "acme", "completions", topic) == 0


def test_a_clients_own_salt_separates_and_never_joins(gateway: httpx2.Client, cache: Cache) -> None:
    """The same salt of two tenants leads to two places, and neither is the one without a salt."""
    topic = "what a user knows"
    assert cached(gateway, cache, "acme", "chat/completions", topic, cache_salt="user 1") == 0
    assert cached(gateway, cache, "acme", "chat/completions", topic) == 0
    assert cached(gateway, cache, "acme", "chat/completions", topic, cache_salt="user 2") == 0
    assert cached(gateway, cache, "zeta", "chat/completions", topic, cache_salt="user 1") == 0
    assert cached(gateway, cache, "acme", "chat/completions", topic, cache_salt="user 1") > 0


def test_embeddings_take_the_salt_or_are_not_offered(gateway: httpx2.Client) -> None:
    """An engine without embeddings says so; the salt is never what it complains about."""
    reply = gateway.post("/embeddings", json={"model": "base", "input": "hello"}, headers=bearer("acme"))
    assert reply.status_code == 200 or reply.json()["error"]["code"] == "route_not_offered", reply.text


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("salt", ["", 5, "a" * 129, "a/b", "a@b", "a\\b", "a\0b"])
async def test_the_fake_refuses_salts_as_vllm_does(plugin_engine: RealEngine, route: str, salt: object) -> None:
    """What the fake answers to a wrong salt is, byte for byte, what the real engine answers."""
    body = body_of(route, "x", cache_salt=salt)
    transport = httpx2.AsyncHTTPTransport(uds=str(plugin_engine.uds))
    key = {"authorization": f"Bearer {plugin_engine.secret}"}
    async with (
        FakeEngine("base") as fake,
        httpx2.AsyncClient(transport=transport, base_url="http://engine", headers=key) as real,
        httpx2.AsyncClient(base_url=fake.url, verify=False) as faked,
    ):
        expected = await real.post(f"/v1/{route}", json=body)
        found = await faked.post(f"/v1/{route}", json=body)
        assert expected.status_code == found.status_code == 400
        assert found.json() == expected.json()
