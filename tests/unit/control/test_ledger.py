"""Where adapters are by the ledger, what has drifted, and what is moved."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.unit.control.conftest import view_of
from tuneplex.control.actions import Load, Move
from tuneplex.control.adapters import adapter_actions
from tuneplex.control.decide import Situation
from tuneplex.control.ledger import Ledger
from tuneplex.control.seen import Limits, Seen
from tuneplex.types import AdapterVersion, FleetSpec, GatewayReport, PoolSpec, Residency, Resident, Tier

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]
MakeSituation = Callable[..., Situation]

NOW = 1_000_000.0
POOL = PoolSpec("default", max_loras=2, max_cpu_loras=3)
VERSIONS = tuple(AdapterVersion(name, name * 64, f"/adapters/{name}", 8, "default") for name in "abcdef")
A, B, C, D, *_ = IDS = [version.id for version in VERSIONS]


def told(*names: str, slots: int = 2, host: int = 3, pinned: tuple[str, ...] = (), **paths: str) -> Residency:
    """What an engine with the plugin tells of adapters in this order: first in slots, then in host memory."""
    tiers = [Tier.DEVICE] * slots + [Tier.HOST] * (host - slots) + [Tier.DISK] * len(names)
    residents = (
        Resident(name, tier, pinned=name in pinned, path=paths.get(name[0], f"/adapters/{name[0]}"))
        for name, tier in zip(names, tiers, strict=False)
    )
    return Residency(slots, min(slots, len(names)), None, host, min(host, len(names)), tuple(residents))


def report(*used: str, waiting: tuple[str, ...] = (), times: int = 1, gateway: int = 0) -> GatewayReport:
    """A gateway that has sent requests for these to the only replica, the last one last."""
    begun = {"default-0": dict.fromkeys(used, times)}
    return GatewayReport(gateway, 42 + gateway, 1, begun=begun, wanted=dict.fromkeys(waiting, 1))


@pytest.fixture
def look(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> Callable[..., list[str]]:
    """Let a ledger look at one replica that lists some adapters; what has drifted, in words."""

    def of(ledger: Ledger, *names: str, spec: FleetSpec | None = None, **fields: object) -> list[str]:
        reports = fields.pop("reports", ())
        replica = make_seen("default-0", POOL, *names, **{"residency": told(*names), **fields})
        situation = make_situation(spec or make_spec(*VERSIONS[:3], pools=[POOL]), replica)
        return [f"{kind} {name[0]}" for _, kind, name in ledger.look(situation, reports)]  # type: ignore[arg-type]

    return of


def test_what_control_does_is_no_drift(look: Callable[..., list[str]], make_spec: MakeSpec) -> None:
    """Adapters that are loaded one by one, unloaded because they left the fleet, or being changed, have not drifted."""
    ledger = Ledger()
    assert look(ledger) == look(ledger, changing=frozenset({A})) == look(ledger, A, B) == []
    without = make_spec(VERSIONS[1], pools=[POOL])
    assert look(ledger, A, B, spec=without) == look(ledger, A, B, spec=without, unlisted={A: NOW}) == []
    assert look(ledger, B, spec=without) == []


def test_what_an_engine_lost_has_drifted_once(look: Callable[..., list[str]]) -> None:
    """An adapter that a replica had, and lacks now, is missing; it is told once, and again when it goes again."""
    ledger = Ledger()
    assert [look(ledger, A, B), look(ledger, A), look(ledger, A)] == [[], ["missing b"], []]
    assert [look(ledger, A, B), look(ledger, A)] == [[], ["missing b"]]


def test_a_replica_that_starts_again_has_lost_nothing(
    look: Callable[..., list[str]], make_seen: MakeSeen, make_situation: MakeSituation, make_spec: MakeSpec
) -> None:
    """An engine that was started anew has nothing yet; one that does not answer is not looked at."""
    ledger = Ledger()
    look(ledger, A, B)
    assert look(ledger, silent_since=NOW - 1) == []
    fresh = make_seen("default-0", POOL)
    fresh = msgspec.structs.replace(fresh, launched=msgspec.structs.replace(fresh.launched, started=NOW))
    assert ledger.look(make_situation(make_spec(*VERSIONS[:3], pools=[POOL]), fresh), ()) == []


def test_what_nobody_here_loaded_is_unwanted(look: Callable[..., list[str]]) -> None:
    """An adapter that appears in an engine of ours is told, also by a control that has just been started."""
    ledger, stray = Ledger(), "x@" + "0" * 12
    assert look(ledger, A) == []
    assert look(ledger, A, stray) == []  # gateways have not been told of the fleet without it yet
    assert look(ledger, A, stray, unlisted={stray: NOW}) == ["unwanted x"]
    assert look(ledger, A, stray, unlisted={stray: NOW}) == []
    assert look(Ledger(), A, stray, unlisted={stray: NOW}) == ["unwanted x"]


def test_another_content_under_a_name_is_replaced(
    look: Callable[..., list[str]], make_spec: MakeSpec, make_seen: MakeSeen
) -> None:
    """What was read from another place is told and loaded again, but not in an engine that others may use, too."""
    ledger, wrong = Ledger(), told(A, B, b="/somewhere/else")
    assert look(ledger, A, B) == []
    assert look(ledger, A, B, residency=wrong) == ["changed b"]
    spec = make_spec(*VERSIONS[:2], pools=[POOL])
    ours = make_seen("default-0", POOL, A, B, residency=wrong)
    assert [*adapter_actions(spec, [ours], NOW, Limits())] == [Load("default-0", VERSIONS[1])]
    outside = msgspec.structs.replace(POOL, launcher="external", urls=("http://x",))
    theirs = make_seen("default-0", outside, A, B, residency=wrong)
    assert [*adapter_actions(spec, [theirs], NOW, Limits())] == []


def test_a_pin_that_was_lost_is_set_again(
    look: Callable[..., list[str]], make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """An adapter that had its slot for good and has not any more has drifted, and is pinned again."""
    ledger = Ledger()
    spec = msgspec.structs.replace(make_spec(*VERSIONS[:3], pools=[POOL]), pins=("a",))
    assert look(ledger, A, B, C, spec=spec, residency=told(A, B, C, pinned=(A,))) == []
    assert look(ledger, A, B, C, spec=spec) == ["unpinned a"]
    situation = make_situation(spec, make_seen("default-0", POOL, A, B, C, residency=told(A, B, C)))
    assert ledger.moves(situation) == [Move("default-0", "pin", A)]
    assert ledger.moves(situation) == []  # not again so soon
    figures = ledger.figures(situation)["default-0"]
    assert (figures.drift, figures.moved) == ({"unpinned": 1}, {"pin": 1})


def test_hot_adapters_are_pinned_and_cold_ones_let_go(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """From what gateways have sent follows who keeps a slot: one change at a time, none while any is missing."""
    ledger, spec = Ledger(), make_spec(*VERSIONS, pools=[POOL])
    bare = make_situation(spec, make_seen("default-0", POOL, *IDS[:5], residency=told(*IDS[:5])))
    full = make_situation(spec, make_seen("default-0", POOL, *IDS, residency=told(*IDS, pinned=(B,))))
    for times in (0, 100):
        ledger.look(full, [report(A, times=times)])
    assert ledger.moves(bare) == []
    assert ledger.moves(full) == [Move("default-0", "unpin", B)]
    assert ledger.moves(full) == [Move("default-0", "pin", A)]


def test_what_a_gateway_had_sent_before_control_began_tells_only_an_order(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """The first report that a control gets of a gateway makes nothing hot."""
    ledger, spec = Ledger(), make_spec(*VERSIONS, pools=[POOL])
    full = make_situation(spec, make_seen("default-0", POOL, *IDS, residency=told(*IDS)))
    ledger.look(full, [report(A, times=1000)])
    assert ledger.moves(full) == []


def test_what_requests_wait_for_is_read_ahead(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """An adapter on disk that requests wait for comes into host memory; a replica that does not tell is left alone."""
    spec = make_spec(*VERSIONS, pools=[POOL])
    full = make_situation(spec, make_seen("default-0", POOL, *IDS, residency=told(*IDS)))
    ledger = Ledger()
    ledger.look(full, [report(waiting=(A, IDS[4]))])
    assert ledger.moves(full) == [Move("default-0", "prefetch", IDS[4])]
    assert ledger.moves(make_situation(spec, make_seen("default-0", POOL, *IDS))) == []
    changing = make_seen("default-0", POOL, *IDS, residency=told(*IDS), changing=frozenset({A}))
    assert Ledger().moves(make_situation(spec, changing)) == []


def test_an_engine_that_does_not_tell_is_modelled(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """By what gateways have sent, and marked as a guess; a new control makes the same guess from their first report."""
    spec = make_spec(*VERSIONS[:4], pools=[POOL])
    plain = make_situation(spec, make_seen("default-0", POOL, *IDS[:4]))
    old, new = Ledger(), Ledger()
    old.look(plain, [report(B, A)])
    old.look(plain, [report(A, C, B, times=2)])
    new.look(plain, [report(A, C, B, times=2)])
    for ledger in (old, new):
        guess = ledger.figures(plain)["default-0"].residency
        assert guess is not None
        assert guess.guess
        assert (guess.slots, guess.slots_used, guess.host_capacity, guess.host_used) == (2, 2, 3, 3)
        tiers = {one.name: one.tier for one in guess.adapters}
        assert tiers == {B: Tier.DEVICE, C: Tier.DEVICE, A: Tier.HOST, IDS[3]: Tier.DISK}


def test_another_kind_of_server_is_modelled_by_plain_names(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """A server that cannot load adapters has them under the names that clients use."""
    pool = PoolSpec("default", engine="openai", launcher="external", urls=("http://x",), max_loras=1, max_cpu_loras=1)
    server = make_seen("default-0", pool, "a", "b", loads_adapters=False)
    situation = make_situation(make_spec(*VERSIONS[:2], pools=[pool]), server)
    ledger = Ledger()
    ledger.look(situation, [report(B, A)])
    guess = ledger.figures(situation)["default-0"].residency
    assert guess is not None
    assert {one.name: one.tier for one in guess.adapters} == {"a": Tier.DEVICE, "b": Tier.DISK}


def test_the_ledger_dates_each_move(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> None:
    """Each adapter is in its tier since it was first seen there."""
    ledger, spec = Ledger(), make_spec(*VERSIONS[:3], pools=[POOL])
    for now, names in ((NOW, (A, B, C)), (NOW + 5, (A, C, B))):
        replica = make_seen("default-0", POOL, A, B, C, residency=told(*names))
        situation = make_situation(spec, replica, now=now)
        ledger.look(situation, ())
    residency = ledger.figures(situation)["default-0"].residency
    assert residency is not None
    assert {one.name: one.since for one in residency.adapters} == {A: NOW, B: NOW + 5, C: NOW + 5}


def test_gateways_are_told_who_has_a_slot_for_good(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """They are pins as the engine tells, of what the replica serves."""
    spec = make_spec(*VERSIONS[:3], pools=[POOL])
    replica = make_seen(
        "default-0", POOL, A, B, C, residency=told(A, B, C, "x@" + "0" * 12, pinned=(A, "x@" + "0" * 12))
    )
    assert view_of(spec, replica).replicas[0].pinned == {A}
    assert view_of(spec, make_seen("default-0", POOL, A)).replicas[0].pinned == frozenset()
