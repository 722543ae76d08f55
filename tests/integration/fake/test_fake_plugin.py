"""The fake's slots and host memory; what its routes answer is held against vLLM elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lora import write_adapter
from tuneplex.testing import FakeEngine, Script
from tuneplex.testing.tiers import Adapter, Tiers

ADAPTERS = tuple(Adapter(f"a{number}", "/a", "", 0, number, 8, 1000) for number in range(8))
SLOTS, HOST = 3, 5
_one = st.sampled_from(ADAPTERS)
_some = st.sets(_one, max_size=SLOTS)
_what = st.sampled_from(["to_host", "to_device", "pin", "unpin", "drop", "step"])


@given(st.lists(st.tuples(_what, _one, _some), max_size=60))
def test_tiers_stay_true_whatever_happens(story: list[tuple[str, Adapter, set[Adapter]]]) -> None:
    """No slot is given twice, all in slots is on the host, a batch has all it needs, and not every slot is pinned."""
    tiers = Tiers(SLOTS, HOST)
    for what, adapter, others in story:
        needed = {other.id for other in others}
        if what == "step":
            tiers.step(others)
            assert {tiers.tier(other) for other in others} <= {"device"}
        elif what in {"unpin", "drop"}:
            getattr(tiers, what)(adapter)
        else:
            getattr(tiers, what)(adapter, needed)
        slots = [slot for one in ADAPTERS if (slot := tiers.slot(one)) is not None]
        assert len(set(slots)) == len(slots) == tiers.slots_used <= SLOTS
        assert sum(tiers.tier(one) != "disk" for one in ADAPTERS) == tiers.host_used
        assert tiers.host_used <= HOST + SLOTS
        assert len(tiers.pins) < SLOTS
        assert all(tiers.tier(one) != "disk" for one in ADAPTERS if one.id in tiers.pins)


async def test_new_weights_take_over_while_old_ones_still_answer(tmp_path: Path) -> None:
    """A reply under way ends with the weights it began with; a new one speaks with the new weights, under a new id."""
    paths = [str(write_adapter(tmp_path / name, seed=seed)) for seed, name in enumerate(("old", "new"))]
    body = {"model": "doc", "prompt": "The river", "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    async with (
        FakeEngine(default=Script(between_chunks_s=0.002)) as engine,
        httpx2.AsyncClient(base_url=engine.url) as client,
    ):

        async def load(path: str) -> int:
            reply = await client.post(
                "/v1/tuneplex/load", json={"name": "doc", "path": path, "replace": True, "tier": "host"}
            )
            return int(reply.json()["id"])

        async def say() -> str:
            return str((await client.post("/v1/completions", json=body)).json()["choices"][0]["text"])

        first = await load(paths[0])
        before = await say()
        under_way = asyncio.create_task(say())
        while not engine.scheduler.running:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.001)
        assert await load(paths[1]) != first
        listed = (await client.get("/v1/tuneplex/adapters")).json()
        assert (listed["host_used"], [entry["running"] for entry in listed["adapters"]]) == (2, [0])
        assert await under_way == before
        assert await say() != before
        assert (await client.get("/v1/tuneplex/adapters")).json()["host_used"] == 1


async def test_slots_that_are_all_in_use_are_not_taken_away() -> None:
    """Activating an adapter while requests need every slot is refused, and nobody loses a slot."""
    async with (
        FakeEngine(adapters=["ada", "bob"], max_loras=1, default=Script(between_chunks_s=0.01)) as engine,
        httpx2.AsyncClient(base_url=engine.url) as client,
    ):
        body = {"model": "ada", "prompt": "The river", "max_tokens": 20, "ignore_eos": True}
        asked = asyncio.create_task(client.post("/v1/completions", json=body))
        while not engine.scheduler.running:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.001)
        reply = await client.post("/v1/tuneplex/activate", json={"name": "bob"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "slots_busy")
        assert (await asked).is_success
        assert (await client.post("/v1/tuneplex/activate", json={"name": "bob"})).json()["tier"] == "device"


async def test_a_drain_that_takes_too_long_lets_requests_in_again() -> None:
    """When running requests do not end in time, the drain is given up."""
    async with (
        FakeEngine(default=Script(between_chunks_s=0.01)) as engine,
        httpx2.AsyncClient(base_url=engine.url) as client,
    ):
        body = {"prompt": "The river", "max_tokens": 30, "ignore_eos": True}
        asked = asyncio.create_task(client.post("/v1/completions", json=body))
        while not engine.scheduler.running:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.001)
        reply = await client.post("/v1/tuneplex/drain", json={"timeout_s": 0.01})
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "drain_timeout")
        assert (await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})).is_success
        assert (await asked).is_success


@pytest.mark.parametrize("plugin", [True, False])
async def test_a_fake_without_the_plugin_has_none_of_its_routes(*, plugin: bool) -> None:
    """The routes and the metrics are there only with the plugin."""
    async with FakeEngine(plugin=plugin) as engine, httpx2.AsyncClient(base_url=engine.url) as client:
        assert (await client.get("/v1/tuneplex/adapters")).status_code == (200 if plugin else 404)
        assert ("tuneplex:adapter_slots" in (await client.get("/metrics")).text) is plugin
