"""vLLM's driver at an engine with the plugin, and at one without."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from tests.support.lora import write_adapter
from tests.support.residency import write_unmatched_adapter
from tuneplex.engines.driver import driver_for
from tuneplex.engines.server import EngineServer
from tuneplex.errors import EngineError
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import AdapterVersion, Tier

DRIVER = driver_for("vllm")
LIST, LOAD, UNLOAD = "/v1/tuneplex/adapters", "/v1/tuneplex/load", "/v1/tuneplex/unload"


def version(path: Path, name: str = "ada") -> AdapterVersion:
    """An adapter version."""
    return AdapterVersion(name, "a" * 64, str(path), 8, "default")


async def names(server: EngineServer) -> set[str]:
    """What the engine lists beside its base."""
    return {model.id for model in await server.models() if model.parent is not None}


@pytest.mark.parametrize("plugin", [True, False])
async def test_adapters_come_and_go(tmp_path: Path, *, plugin: bool) -> None:
    """With the plugin or without, an adapter is loaded once and unloaded once; doing it again is fine."""
    ada = version(write_adapter(tmp_path / "ada"))
    async with FakeEngine("base", plugin=plugin) as engine, EngineServer(engine.endpoint) as server:
        for _twice in range(2):
            await DRIVER.load(server, ada)
            assert await names(server) == {ada.id}
        for _twice in range(2):
            await DRIVER.unload(server, ada.id)
            assert await names(server) == set()
        used = {record.path for record in engine.requests}
        assert ("/v1/load_lora_adapter" in used) is ("/v1/unload_lora_adapter" in used) is not plugin


async def test_residency(tmp_path: Path) -> None:
    """The driver reads where each adapter is, and what is left of slots and host memory."""
    versions = [version(write_adapter(tmp_path / name), name) for name in ("ada", "bob", "cyd")]
    async with FakeEngine("base", max_loras=2, max_cpu_loras=2) as engine, EngineServer(engine.endpoint) as server:
        for one in versions:
            await DRIVER.load(server, one)
        told = await DRIVER.residency(server)
    assert told is not None
    assert (told.slots, told.slots_used, told.host_capacity, told.host_used) == (2, 2, 2, 2)
    assert {one.name: one.tier for one in told.adapters} == {
        versions[0].id: Tier.DISK,
        versions[1].id: Tier.DEVICE,
        versions[2].id: Tier.DEVICE,
    }
    assert {one.rank for one in told.adapters} == {8}
    assert all(one.bytes and not one.pinned for one in told.adapters)


async def test_an_engine_without_the_plugin_has_no_residency() -> None:
    """It is no error, and the driver has words for people."""
    async with FakeEngine("base", plugin=False) as engine, EngineServer(engine.endpoint) as server:
        assert await DRIVER.residency(server) is None
    assert "tuneplex-vllm is missing" in DRIVER.without_residency


async def test_a_plugin_that_does_not_know_this_vllm(tmp_path: Path) -> None:
    """Where the plugin says that it cannot, vLLM's own routes are used."""
    ada = version(write_adapter(tmp_path / "ada"))
    untold = {"name": ada.id, "tier": None, "slot": None, "pinned": None, "running": None, "waiting": None}
    words = '{"error": {"message": "vLLM 0.99 is not known", "type": "x", "param": null, "code": "not_supported"}}'
    async with FakeEngine("base") as engine, EngineServer(engine.endpoint) as server:
        for path in (LOAD, UNLOAD):
            engine.script(Script(status=501, body=words), path=path)
        engine.script(Script(status=200, body=json.dumps({"slots": None, "adapters": [untold]})), path=LIST)
        await DRIVER.load(server, ada)
        assert await names(server) == {ada.id}
        await DRIVER.unload(server, ada.id)
        assert await names(server) == set()
        assert await DRIVER.residency(server) is None


@pytest.mark.parametrize("body", ["[]", "nope", '{"adapters": [{"name": 3}]}'])
async def test_a_list_that_is_none(body: str) -> None:
    """What is not a list of adapters is an error of the engine, not a crash."""
    async with FakeEngine("base") as engine, EngineServer(engine.endpoint) as server:
        engine.script(Script(status=200, body=body), path=LIST)
        with pytest.raises(EngineError, match="not a list of adapters"):
            await DRIVER.residency(server)


async def test_the_engines_own_words(tmp_path: Path) -> None:
    """Why an adapter does not load is told as the engine tells it, with the modules that did not match."""
    unmatched = version(write_unmatched_adapter(tmp_path / "unmatched"))
    missing = version(tmp_path / "missing")
    async with FakeEngine("base") as engine, EngineServer(engine.endpoint) as server:
        with pytest.raises(EngineError, match=r"decoder\.blocks\.0\.self_attn\.v_proj"):
            await DRIVER.load(server, unmatched)
        with pytest.raises(EngineError, match="missing"):
            await DRIVER.load(server, missing)
        assert await names(server) == set()


async def test_unloading_waits_for_requests(tmp_path: Path) -> None:
    """A running reply ends whole before its adapter goes."""
    ada = version(write_adapter(tmp_path / "ada"))
    slow = Script(between_chunks_s=0.005)
    async with (
        FakeEngine("base", default=slow) as engine,
        EngineServer(engine.endpoint) as server,
        httpx2.AsyncClient(base_url=engine.url) as client,
    ):
        await DRIVER.load(server, ada)
        body = {"model": ada.id, "prompt": "The river", "max_tokens": 30, "ignore_eos": True}
        asked = asyncio.create_task(client.post("/v1/completions", json=body))
        while not engine.scheduler.running:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.001)
        await DRIVER.unload(server, ada.id)
        reply = await asked
        assert reply.json()["usage"]["completion_tokens"] == 30
        assert await names(server) == set()
