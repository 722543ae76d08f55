"""The ledger over FakeEngines: drift is repaired and counted, pins are set, and what is only modelled says so."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tests.support.controlled import controlled, fleet, only, until
from tests.support.lora import write_adapter
from tuneplex.engines.server import EngineServer
from tuneplex.feed import Subscriber
from tuneplex.launchers.external import ExternalLauncher
from tuneplex.testing import FakeEngine
from tuneplex.types import AdapterVersion, FleetSpec, GatewayReport, PoolSpec, Status, Tier

NAMES = ("ada", "bob", "cid", "dan", "eve", "fay")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="tp", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def versions(directory: Path) -> tuple[AdapterVersion, ...]:
    """Six adapters."""
    paths = [write_adapter(directory / name, rank=1, seed=seed) for seed, name in enumerate(NAMES)]
    return tuple(
        AdapterVersion(path.name, f"{seed:064}"[::-1], str(path), 1, "default") for seed, path in enumerate(paths)
    )


def outside(engine: FakeEngine, *versions: AdapterVersion, pins: tuple[str, ...] = ()) -> FleetSpec:
    """A fleet that uses an engine which runs already."""
    pool = PoolSpec("default", launcher="external", urls=(engine.endpoint,), max_loras=2, max_cpu_loras=3)
    return msgspec.structs.replace(fleet(*versions, pool=pool), pins=pins)


def full(status: Status) -> bool:
    """All adapters are loaded."""
    return bool(status.replicas) and all(adapter.replicas for adapter in status.adapters)


def where(status: Status) -> dict[str, tuple[Tier | None, bool | None]]:
    """Each adapter's tier, and whether it is pinned, by its name."""
    residency = only(status).residency
    known = residency.adapters if residency is not None else ()
    return {one.name.partition("@")[0]: (one.tier, one.pinned) for one in known}


async def test_what_was_unloaded_behind_controls_back_is_loaded_again(versions: tuple[AdapterVersion, ...]) -> None:
    """Somebody unloads an adapter by the engine's own routes; control puts it back, counts it and says so."""
    async with (
        FakeEngine(max_loras=2, max_cpu_loras=3) as engine,
        controlled(outside(engine, *versions), {"external": ExternalLauncher()}) as controller,
    ):
        await until(controller, full)
        async with EngineServer(engine.endpoint) as server:
            reply = await server.post("/v1/tuneplex/unload", {"name": versions[0].id}, timeout_s=10)
        assert reply.ok
        status = await until(controller, lambda status: only(status).drift == {"missing": 1} and full(status))
        assert {one.version.name for one in status.adapters if one.replicas} == {*NAMES}
        page = controller.metrics().decode()
        assert 'tuneplex_replica_adapter_drift_total{kind="missing",pool="default",replica="default-0"} 1.0' in page


async def test_a_pin_of_the_fleet_file_is_kept(versions: tuple[AdapterVersion, ...]) -> None:
    """It is set once all adapters are there, set again when somebody takes it away, and removed with the wish."""
    async with (
        FakeEngine(max_loras=2, max_cpu_loras=3) as engine,
        controlled(outside(engine, *versions, pins=("ada",)), {"external": ExternalLauncher()}) as controller,
    ):
        await until(controller, lambda status: full(status) and where(status)["ada"] == (Tier.DEVICE, True))
        controller.apply(outside(engine, *versions))
        await until(controller, lambda status: where(status)["ada"][1] is False)


async def test_what_gateways_say_moves_adapters(versions: tuple[AdapterVersion, ...], directory: Path) -> None:
    """The adapter that is asked for most gets a slot for good; one on disk that requests wait for leaves the disk."""
    ids = {version.name: version.id for version in versions}
    told = count(0, 100)
    cold = ""

    def report() -> GatewayReport:
        wanted = {ids[cold]: 1} if cold else {}
        return GatewayReport(0, 42, 1, begun={"default-0": {ids["fay"]: next(told)}}, wanted=wanted)

    async with (
        FakeEngine(max_loras=2, max_cpu_loras=3) as engine,
        controlled(outside(engine, *versions), {"external": ExternalLauncher()}) as controller,
        controller.publisher.listening(directory / "feed.sock"),
        asyncio.TaskGroup() as group,
    ):
        status = await until(controller, lambda status: full(status) and len(where(status)) == len(NAMES))
        cold = next(name for name, (tier, _) in where(status).items() if tier is Tier.DISK)
        gateway = Subscriber(
            directory / "feed.sock", on_view=lambda _: None, on_access=lambda _: None, report=report, interval_s=0.05
        )
        task = group.create_task(gateway.run())
        await until(controller, lambda status: where(status)[cold][0] is not Tier.DISK)
        await until(controller, lambda status: where(status)["fay"] == (Tier.DEVICE, True))
        task.cancel()


async def test_an_engine_without_the_plugin_is_a_guess(versions: tuple[AdapterVersion, ...]) -> None:
    """Its adapters are where vLLM would have them by what was loaded last, and the status says that it is a guess."""
    async with (
        FakeEngine(plugin=False) as engine,
        controlled(outside(engine, *versions), {"external": ExternalLauncher()}) as controller,
    ):
        await until(controller, full)
        status = await until(controller, lambda status: len(where(status)) == len(NAMES))
        residency = only(status).residency
        assert residency is not None
        assert residency.guess
        assert sorted(tier for tier, _ in where(status).values() if tier) == ["device"] * 2 + ["disk"] * 3 + ["host"]
