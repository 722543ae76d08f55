"""The control loop, with engines that fail on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.controlled import HASTY, controlled, fleet, only, until
from tests.support.residency import write_unmatched_adapter
from tuneplex.control import Controller
from tuneplex.control.clock import Clock
from tuneplex.control.seen import Hold
from tuneplex.errors import EngineError
from tuneplex.feed import Subscriber
from tuneplex.launchers.external import ExternalLauncher
from tuneplex.launchers.launcher import Launched, Order
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import (
    AdapterVersion,
    FleetView,
    GatewayReport,
    PoolSpec,
    ReplicaState,
    Status,
    Tier,
)


class Stage:
    """A launcher whose engines are FakeEngines in this process, or end at once.

    Args:
        directory: For their sockets.
        log: Their log.
    """

    def __init__(self, directory: Path, log: Path) -> None:
        self._directory = directory
        self._log = log
        self._records: dict[str, Launched] = {}
        self._exits = contextlib.AsyncExitStack()
        self.changed = asyncio.Event()
        self.free_gpus: int | None = 0
        self.orders: list[Order] = []
        self.engines: list[FakeEngine] = []
        self.broken = False
        self.refuses = ""

    @property
    def launched(self) -> tuple[Launched, ...]:
        """All that were launched."""
        return tuple(self._records.values())

    async def launch(self, order: Order) -> None:
        """Start a FakeEngine, or one that ends at once."""
        self.orders.append(order)
        if self.refuses:
            raise EngineError(self.refuses)
        path = self._directory / f"{len(self.orders)}.sock"
        engine = FakeEngine("base", uds=str(path))
        if not self.broken:
            await self._exits.enter_async_context(engine)
            self.engines.append(engine)
        self._records[order.replica] = Launched(
            order.replica, order.pool.name, "local", "vllm", order.settings, f"unix:{path}", log=str(self._log),
            started=time.time(), failures=order.failures, restarts=order.restarts,
        )  # fmt: skip
        if self.broken:
            self.end(order.replica)
        self.changed.set()

    def end(self, replica: str) -> None:
        """What the supervisor tells when an engine ends."""
        self._records[replica] = msgspec.structs.replace(self._records[replica], ended=time.time(), exit_code=1)
        self.changed.set()

    async def stop(self, replica: str) -> None:
        """End one."""
        self.end(replica)

    async def forget(self, replica: str) -> None:
        """Forget one."""
        del self._records[replica]
        self.changed.set()

    async def close(self) -> None:
        """End all FakeEngines."""
        await self._exits.aclose()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="tp", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
async def stage(directory: Path) -> AsyncIterator[Stage]:
    """A launcher with a log that tells why engines end."""
    log = directory / "engine.log"
    log.write_text("loading\nRuntimeError: no room for the KV cache\n")
    stage = Stage(directory, log)
    yield stage
    await stage.close()


async def test_an_engine_that_never_starts_is_given_up(stage: Stage) -> None:
    """After five failures it stays dead, its last log lines are in the status, and applying the fleet tries again."""
    stage.broken = True
    async with controlled(fleet(), {"local": stage}) as controller:
        status = await until(controller, lambda status: status.replicas[0].gave_up and _told(status))
        assert only(status).state is ReplicaState.DEAD
        assert "ended with code 1, too often in a row" in only(status).detail
        assert [order.restarts for order in stage.orders] == [0, 1, 2, 3, 4]
        assert b'tuneplex_replica_ready{pool="default",replica="default-0"} 0.0' in controller.metrics()
        assert b'tuneplex_replica_restarts{pool="default",replica="default-0"} 4.0' in controller.metrics()
        stage.broken = False
        controller.apply(fleet())
        status = await until(controller, lambda status: status.replicas[0].state is ReplicaState.READY)
        assert not only(status).gave_up


def _told(status: Status) -> bool:
    return "RuntimeError: no room for the KV cache" in status.replicas[0].detail


async def test_an_engine_that_cannot_be_launched_is_told(stage: Stage) -> None:
    """What the launcher says is in the status of the replica that is missing."""
    stage.refuses = "default-0 needs 2 free GPUs; here are 0"
    async with controlled(fleet(), {"local": stage}) as controller:
        status = await until(controller, lambda status: status.replicas and status.replicas[0].detail)
        assert only(status).state is ReplicaState.REQUESTED
        assert only(status).detail == stage.refuses


async def test_an_engine_that_falls_silent_is_restarted(stage: Stage) -> None:
    """An engine whose health check stays without an answer is stopped and started anew."""
    async with controlled(fleet(), {"local": stage}) as controller:
        await until(controller, lambda status: status.replicas and status.replicas[0].state is ReplicaState.READY)
        stage.engines[0].script(*[Script(status=503)] * 100, path="/health")
        status = await until(controller, lambda status: status.replicas[0].restarts == 1)
        assert len(stage.orders) == 2
        await until(controller, lambda status: status.replicas[0].state is ReplicaState.READY)
        assert only(status).name == "default-0"


async def test_an_external_vllm_gets_its_adapters_and_keeps_what_others_loaded(tmp_path: Path) -> None:
    """Adapters are loaded into an engine that already runs, and only those are unloaded again."""
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    version = AdapterVersion("ada", "a" * 64, str(tmp_path), 8, "default")
    foreign = "other@" + "0" * 12
    async with FakeEngine("base", adapters=[foreign], api_key="sekret") as engine:
        pool = PoolSpec("default", launcher="external", urls=(engine.url,), secret="sekret")
        limits = msgspec.structs.replace(HASTY, unload_s=0.1)
        async with controlled(fleet(version, pool=pool), {"external": ExternalLauncher()}, limits) as controller:
            await until(controller, lambda status: status.adapters[0].replicas == ("default-0",))
            controller.apply(fleet(pool=pool))
            async with asyncio.timeout(10):
                while engine.adapters.get(version.id):  # noqa: ASYNC110 - the engine has no event for it
                    await asyncio.sleep(0.01)
            assert engine.adapters.get(foreign)


async def test_an_external_openai_server(tmp_path: Path) -> None:
    """A server that cannot load adapters serves those it lists; the others have a clear detail."""
    adapters = [AdapterVersion(name, "a" * 64, str(tmp_path), 8, "default") for name in ("ada", "bob")]
    async with FakeEngine("base", adapters=["ada"], lora=False) as engine:
        pool = PoolSpec("default", engine="openai", launcher="external", urls=(engine.url,))
        async with controlled(fleet(*adapters, pool=pool), {"external": ExternalLauncher()}) as controller:
            status = await until(controller, lambda status: status.replicas and status.replicas[0].adapters)
            assert [adapter.replicas for adapter in status.adapters] == [("default-0",), ()]
            assert "does not list a model named bob" in status.adapters[1].detail
            page = controller.metrics()
            assert b'tuneplex_replica_ready{pool="default",replica="default-0"} 1.0' in page
            assert b"tuneplex_replica_running_requests{" not in page


async def test_an_external_engine_that_goes_and_comes_back(directory: Path) -> None:
    """It is shown as dead while it does not answer, with the reason, and as ready when it answers again."""
    path = directory / "engine.sock"
    pool = PoolSpec("default", launcher="external", urls=(f"unix:{path}",))
    async with controlled(fleet(pool=pool), {"external": ExternalLauncher()}) as controller:
        for _round in range(2):
            async with FakeEngine("base", uds=str(path)):
                await until(
                    controller, lambda status: status.replicas and status.replicas[0].state is ReplicaState.READY
                )
            path.unlink(missing_ok=True)
            status = await until(controller, lambda status: status.replicas[0].state is ReplicaState.DEAD)
            assert "no answer" in only(status).detail


async def test_gateways_are_told_of_a_replica_that_starts_again(stage: Stage, directory: Path) -> None:
    """It is expected back with all it should serve, after about as long as it took the last time."""
    views: list[FleetView] = []
    socket, spec = directory / "feed.sock", fleet()
    directory.joinpath("tokenizer.json").write_text("{}")
    spec = msgspec.structs.replace(spec, base=msgspec.structs.replace(spec.base, path=str(directory)))

    def report() -> GatewayReport:
        return GatewayReport(0, 1, views[-1].generation if views else -1)

    patient = msgspec.structs.replace(HASTY, first_restart_s=0.3, longest_restart_s=0.3)
    async with (
        controlled(spec, {"local": stage}, patient) as controller,
        controller.publisher.listening(socket),
    ):
        subscriber = Subscriber(
            socket, on_view=views.append, on_access=lambda _access: None, report=report, interval_s=0.02
        )
        feeding = asyncio.create_task(subscriber.run())
        await until(controller, lambda _status: views and [one.state for one in views[-1].replicas] == ["ready"])
        stage.end("default-0")
        await until(controller, lambda _status: any(one.ready_at for one in views[-1].replicas))
        feeding.cancel()
    (ended,) = views[-1].replicas
    assert (ended.endpoint, ended.state, ended.awaited) == ("", ReplicaState.STARTING, frozenset({"base"}))
    assert {view.tokenizer for view in views} == {str(directory / "tokenizer.json")}


async def test_a_replica_drains_only_when_every_gateway_has_let_go(stage: Stage, directory: Path) -> None:
    """A surplus replica is stopped when the gateway knows and has nothing outstanding on it, not before."""
    views: list[FleetView] = []
    outstanding = {"default-1": 1}

    def report() -> GatewayReport:
        return GatewayReport(0, 1, views[-1].generation if views else -1, outstanding)

    socket = directory / "feed.sock"
    async with (
        controlled(fleet(pool=PoolSpec("default", replicas=2)), {"local": stage}) as controller,
        controller.publisher.listening(socket),
    ):
        subscriber = Subscriber(
            socket, on_view=views.append, on_access=lambda _access: None, report=report, interval_s=0.02
        )
        feeding = asyncio.create_task(subscriber.run())
        await until(controller, lambda status: [one.state for one in status.replicas] == ["ready", "ready"])
        controller.apply(fleet())
        await until(controller, lambda status: "draining" in {one.state for one in status.replicas})
        await asyncio.sleep(0.2)  # ten reports long
        assert len(controller.status().replicas) == 2
        outstanding.clear()
        await until(controller, lambda status: len(status.replicas) == 1)
        feeding.cancel()
    assert only(controller.status()).name == "default-0"


@pytest.mark.parametrize("plugin", [True, False])
async def test_the_status_tells_where_adapters_are(tmp_path: Path, *, plugin: bool) -> None:
    """An engine with the plugin tells each adapter's tier; one without is served all the same, with a notice."""
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    ada = AdapterVersion("ada", "a" * 64, str(tmp_path), 8, "default")
    async with FakeEngine("base", plugin=plugin, max_loras=2) as engine:
        pool = PoolSpec("default", launcher="external", urls=(engine.url,))
        async with controlled(fleet(ada, pool=pool), {"external": ExternalLauncher()}) as controller:

            def told(status: Status) -> object:
                replica = only(status) if status.adapters[0].replicas else None
                return replica and replica.residency and replica.residency.adapters

            status = await until(controller, told)
            residency = only(status).residency
            if plugin:
                assert residency is not None
                assert [(one.name, one.tier, one.slot) for one in residency.adapters] == [(ada.id, Tier.DEVICE, 0)]
                assert (residency.slots, residency.slots_used) == (2, 1)
                assert b'adapter_slots_used{pool="default",replica="default-0"} 1.0' in controller.metrics()
            else:
                assert residency is not None
                assert (residency.guess, [one.name for one in residency.adapters]) == (True, [ada.id])
            assert ("tuneplex-vllm is missing" in only(status).notice) is not plugin


async def test_why_an_adapter_does_not_load_is_in_the_status(tmp_path: Path) -> None:
    """An adapter none of whose weights fit is reported with the engine's words, and the fleet goes on without it."""
    bad = AdapterVersion("bad", "b" * 64, str(write_unmatched_adapter(tmp_path / "bad")), 8, "default")
    async with FakeEngine("base") as engine:
        pool = PoolSpec("default", launcher="external", urls=(engine.url,))
        async with controlled(fleet(bad, pool=pool), {"external": ExternalLauncher()}) as controller:
            status = await until(controller, lambda status: status.adapters[0].detail)
            assert "decoder.blocks.0.self_attn.v_proj" in status.adapters[0].detail
            assert only(status).state is ReplicaState.READY


async def test_an_engine_that_is_slow_but_lives_is_left_alone(stage: Stage) -> None:
    """Late answers to health checks, the list of models and the figures end no engine, and the delay is shown."""
    limits = msgspec.structs.replace(HASTY, slow_s=0.05, silent_s=1.5)
    async with controlled(fleet(), {"local": stage}, limits) as controller:
        await until(controller, lambda status: status.replicas and status.replicas[0].state is ReplicaState.READY)
        for path in ("/health", "/v1/models", "/metrics", "/v1/tuneplex/adapters"):
            stage.engines[0].script(Script(before_headers_s=0.8), path=path)
        status = await until(controller, lambda status: status.replicas[0].detail)
        assert (only(status).state, only(status).restarts) == (ReplicaState.READY, 0)
        await until(controller, lambda status: not status.replicas[0].detail)
        await asyncio.sleep(3.0)  # all of them have been late by now
        assert (only(controller.status()).state, len(stage.orders)) == (ReplicaState.READY, 1)


async def test_an_engine_that_hangs_for_good_is_told_and_started_again(stage: Stage) -> None:
    """While it says nothing the status says so; after the time that it has, it is stopped and started anew."""
    limits = msgspec.structs.replace(HASTY, slow_s=0.05, silent_s=0.6)
    async with controlled(fleet(), {"local": stage}, limits) as controller:
        await until(controller, lambda status: status.replicas and status.replicas[0].state is ReplicaState.READY)
        stage.engines[0].script(*[Script(silent_before_headers=True)] * 100, path="/health")
        status = await until(controller, lambda status: status.replicas[0].detail)
        assert "no answer to a health check within 0.1s yet" in only(status).detail
        await until(controller, lambda status: status.replicas[0].restarts == 1)
        await until(controller, lambda status: status.replicas[0].state is ReplicaState.READY)


@pytest.mark.parametrize("jump", [7200.0, -7200.0])
async def test_setting_the_clock_ends_no_engine(stage: Stage, jump: float) -> None:
    """An engine that is silent, and one that drains, have their whole time by a clock that nobody sets."""
    wall = [time.time()]
    clock = Clock(lambda: time.monotonic() + wall[0])
    limits = msgspec.structs.replace(HASTY, slow_s=0.05, silent_s=30.0)
    spec = fleet(pool=PoolSpec("default", replicas=2))
    async with controlled(spec, {"local": stage}, limits, clock=clock) as controller:
        await until(controller, lambda status: [one.state for one in status.replicas] == ["ready", "ready"])
        stage.engines[0].script(Script(before_headers_s=1.0), path="/health")
        await until(controller, lambda status: status.replicas[0].detail)
        held = next(one.launched for one in controller.situation().seen if one.name == "default-1")
        controller.hold(held, Hold(controller.now()))
        await until(controller, lambda status: status.replicas[1].state is ReplicaState.DRAINING)
        wall[0] += jump
        await until(controller, lambda _status: abs(_leaves(controller) - clock.now() - 300 - jump) < 5)
        await until(controller, lambda status: not status.replicas[0].detail)
        shown = controller.status().replicas[1]
        assert (len(stage.orders), shown.restarts) == (2, 0)
        assert 290 < (shown.leave_s or 0) <= 300


def _leaves(controller: Controller) -> float:
    """When gateways are told that the second replica leaves."""
    return next((one.leave_at or 0.0 for one in controller.view.replicas if one.name == "default-1"), 0.0)


async def test_a_fleet_file_from_the_future_takes_no_patience_away(stage: Stage) -> None:
    """Where the clock was set back since the fleet was applied, an engine that fails is given up all the same."""
    stage.broken = True
    async with controlled(fleet(), {"local": stage}, applied_at=time.time() + 7200) as controller:
        await until(controller, lambda status: status.replicas[0].gave_up)
        assert len(stage.orders) == 5
