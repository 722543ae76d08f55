"""What people and Prometheus are told of a fleet."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tuneplex.control.decide import Situation
from tuneplex.control.figures import added, metrics_page
from tuneplex.control.report import Surroundings, fleet_status
from tuneplex.control.seen import LoadFailure, Seen
from tuneplex.engines.server import EngineMetrics
from tuneplex.types import (
    AdapterVersion,
    FleetSpec,
    GatewayReport,
    PoolSpec,
    ReplicaState,
    Residency,
    Resident,
    Status,
    Tier,
)

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]
MakeSituation = Callable[..., Situation]

NOW = 1_000_000.0
POOL = PoolSpec("default")
ONE = AdapterVersion("one", "a" * 64, "/adapters/one", 8, "default")
REPORT = GatewayReport(
    0,
    42,
    1,
    {"default-0": 2},
    {"tuneplex_requests_total": [(("chat/completions", "base", "2xx"), 5.0)]},
    {"tuneplex_request_duration_seconds": [(("chat/completions", "base"), (1.0, *([0.0] * 20), 2.0, 9.5))]},
)


def status_of(situation: Situation, *reports: GatewayReport, **fields: dict[str, str]) -> Status:
    """The status of a situation."""
    return fleet_status(situation, Surroundings("http://x/v1", NOW - 500, reports, **fields))  # type: ignore[arg-type]


def test_a_fleet_is_ready_with_a_gateway_and_a_complete_replica(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """It takes a gateway that reports, and in each pool a replica with its adapters."""
    spec = make_spec(ONE)
    full, bare = make_seen("default-0", POOL, ONE.id), make_seen("default-0", POOL)
    assert status_of(make_situation(spec, full), REPORT).ready
    assert not status_of(make_situation(spec, full)).ready
    assert not status_of(make_situation(spec, bare), REPORT).ready
    assert not status_of(make_situation(spec), REPORT).ready


def test_an_adapter_that_cannot_be_loaded_does_not_hold_up_the_fleet(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """The fleet is ready without it, and the adapter's line says why, in the engine's words."""
    failed = make_seen("default-0", POOL, failures={ONE.id: LoadFailure(3, NOW, "no such file")})
    status = status_of(make_situation(make_spec(ONE), failed), REPORT)
    assert status.ready
    assert status.adapters[0].replicas == ()
    assert status.adapters[0].detail == "default-0: no such file (tried 3 times)"


def test_gateways(make_spec: MakeSpec, make_situation: MakeSituation) -> None:
    """A gateway that reports is connected, with all it has under way."""
    (gateway,) = status_of(make_situation(make_spec()), REPORT).gateways
    assert (gateway.pid, gateway.connected, gateway.outstanding) == (42, True, 2)
    assert not status_of(make_situation(make_spec())).gateways[0].connected


def test_a_replica_that_died_tells_how_and_when_it_starts_again(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """The detail holds the way it ended, its last line, and the wait."""
    dead = make_seen("default-0", POOL, ended=NOW - 1, past=(NOW - 5, NOW - 9), words="loading\nOut of memory")
    dead = msgspec.structs.replace(dead, launched=msgspec.structs.replace(dead.launched, exit_code=137))
    (replica,) = status_of(make_situation(make_spec(), dead)).replicas
    assert replica.state is ReplicaState.DEAD
    assert replica.detail == "ended by signal 9 (Out of memory); starts again in 3 s"
    assert replica.pid is None


def test_a_replica_that_is_missing_is_requested(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """What is wanted and not there has a line of its own, with the reason."""
    situation = make_situation(make_spec(replicas=2), make_seen("default-1", POOL))
    replicas = status_of(situation, troubles={"default": "no free GPU"}).replicas
    assert [(one.name, one.state, one.detail) for one in replicas] == [
        ("default-1", ReplicaState.READY, ""),
        ("default-0", ReplicaState.REQUESTED, "no free GPU"),
    ]


def test_an_external_engine_that_never_answered_says_why(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """A wrong URL shows as such, where a local engine's silence at its start is no news."""
    pool = PoolSpec("default", launcher="external", urls=("http://one",))
    silent = {"answered": False, "silent_since": NOW - 2, "words": "connection refused"}
    external = make_situation(make_spec(pools=[pool]), make_seen("default-0", pool, **silent))
    local = make_situation(make_spec(), make_seen("default-0", POOL, **silent))
    assert status_of(external).replicas[0].detail == "connection refused"
    assert status_of(local).replicas[0].detail == ""


def test_the_page_adds_up_gateways_that_live_and_that_have_ended(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Counters and histograms are sums over all gateways there ever were; what runs is counted for the living."""
    nobody = GatewayReport(-1, 0, 0)
    ended = added(added(nobody, REPORT), REPORT)
    figures = EngineMetrics(running=3, generation_tokens=77, kv_use=0.5, timed=4, queue_s=0.5, decode_s=6.0)
    situation = make_situation(make_spec(ONE), make_seen("default-0", POOL, ONE.id, metrics=figures))
    page = metrics_page(situation, [REPORT], ended).decode()
    labels = 'model="base",route="chat/completions"'
    assert f'tuneplex_requests_total{{{labels},status="2xx"}} 15.0' in page.replace(
        'route="chat/completions",model="base"', labels
    )
    assert "tuneplex_request_duration_seconds_sum" in page
    assert 'tuneplex_outstanding_requests{replica="default-0"} 2.0' in page
    assert 'tuneplex_replica_running_requests{pool="default",replica="default-0"} 3.0' in page
    assert 'tuneplex_replica_generation_tokens_total{pool="default",replica="default-0"} 77.0' in page
    assert 'tuneplex_replica_queue_seconds_count{pool="default",replica="default-0"} 4.0' in page
    assert 'tuneplex_replica_queue_seconds_sum{pool="default",replica="default-0"} 0.5' in page
    assert 'tuneplex_replica_decode_seconds_sum{pool="default",replica="default-0"} 6.0' in page
    assert 'tuneplex_replica_adapters{pool="default",replica="default-0"} 1.0' in page


FIGURES = ("running_requests", "waiting_requests", "kv_cache_use_ratio")
TOTALS = ("prompt_tokens_total", "generation_tokens_total", "preemptions_total")


def test_an_engine_without_figures_does_not_look_idle(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """What it does not tell is missing, beside another one's figures, and its status is as it was."""
    telling, silent = make_seen("default-0", POOL, metrics=EngineMetrics()), make_seen("default-1", POOL, metrics=None)
    situation = make_situation(make_spec(replicas=2), telling, silent)
    page = metrics_page(situation, [], GatewayReport(-1, 0, 0)).decode()
    for name in (*FIGURES, *TOTALS):
        assert f'tuneplex_replica_{name}{{pool="default",replica="default-0"}} 0.0' in page
        assert f'tuneplex_replica_{name}{{pool="default",replica="default-1"}}' not in page
    for name in ("ready", "restarts", "adapters"):
        assert f'tuneplex_replica_{name}{{pool="default",replica="default-1"}}' in page
    assert [(one.running, one.waiting, one.kv_use) for one in status_of(situation).replicas] == [(0, 0, 0.0)] * 2


def test_a_replica_that_ended_is_on_the_page_as_not_ready(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """With how often it was started again; what the engine had said of itself is gone with it."""
    dead = make_seen("default-0", POOL, ended=NOW - 1, metrics=EngineMetrics(running=3), residency=Residency(4, 2))
    dead = msgspec.structs.replace(dead, launched=msgspec.structs.replace(dead.launched, restarts=2))
    page = metrics_page(make_situation(make_spec(), dead), [], GatewayReport(-1, 0, 0)).decode()
    samples = [line for line in page.splitlines() if line.startswith("tuneplex_replica_")]
    labels = 'pool="default",replica="default-0"'
    assert samples == [f"tuneplex_replica_ready{{{labels}}} 0.0", f"tuneplex_replica_restarts{{{labels}}} 2.0"]


def test_residency_is_told_and_counted(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> None:
    """The status holds where each replica has its adapters, the page its slots; who cannot tell has neither."""
    told = Residency(4, 2, adapters=(Resident(ONE.id, Tier.DEVICE, slot=1, rank=8),))
    telling = make_seen("default-0", POOL, ONE.id, residency=told)
    silent = make_seen("default-1", POOL, ONE.id, notice="the engine lacks the plugin")
    situation = make_situation(make_spec(ONE, replicas=2), telling, silent)
    replicas = status_of(situation).replicas
    assert [one.residency for one in replicas] == [told, None]
    assert [one.notice for one in replicas] == ["", "the engine lacks the plugin"]
    assert status_of(make_situation(make_spec(), silent)).replicas[0].notice == ""  # nobody has adapters there
    page = metrics_page(situation, [], GatewayReport(-1, 0, 0)).decode()
    assert 'tuneplex_replica_adapter_slots{pool="default",replica="default-0"} 4.0' in page
    assert 'tuneplex_replica_adapter_slots_used{pool="default",replica="default-0"} 2.0' in page
    assert 'slots{pool="default",replica="default-1"}' not in page


def test_a_replica_that_gateways_leave_alone_says_so(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """It may answer control's questions and fail at all requests; or it has asked for a moment."""
    spec = make_spec(ONE)
    spec = msgspec.structs.replace(spec, pools=(PoolSpec("default", replicas=2),))
    situation = make_situation(spec, make_seen("default-0", POOL, ONE.id), make_seen("default-1", POOL, ONE.id))
    well = msgspec.structs.replace(REPORT, gateway=1)
    shut = msgspec.structs.replace(REPORT, shut={"default-0": "half-open", "default-1": "held"})
    replicas = status_of(situation, well, shut).replicas
    assert ["keep failing" in one.notice for one in replicas] == [True, False]
    assert "asks for no requests" in replicas[1].notice
    assert [one.notice for one in status_of(situation, well).replicas] == ["", ""]
