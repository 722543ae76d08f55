"""The waiting room, with clocks that stand still."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.room import Stage, replica
from tuneplex.errors import ApiError, BadRequest
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.counters import Outcome
from tuneplex.gateway.urgency import Priority
from tuneplex.types import ReplicaState, Route, Turns

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW


def went(stage: Stage) -> list[Asked]:
    """What went to replicas, in this order."""
    return [asked for asked, _ in stage.sent]


def codes(stage: Stage) -> list[str | None]:
    """Of what was refused."""
    return [error.code for error in stage.errors.values()]


def saturate(stage: Stage, rounds: int, **who: int) -> Counter[str]:
    """Serve so many requests while each of these tenants always has some waiting; how much work each has got."""
    got: Counter[str] = Counter()
    for tenant, weight in who.items():
        for _ in range(20):
            stage.ask(tenant=tenant, weight=weight)
    stage.run()
    for _ in range(rounds):
        done = stage.under_way[0]
        got[done.principal.tenant] += 200
        stage.ask(tenant=done.principal.tenant, weight=who[done.principal.tenant])
        stage.finish(done)
    return got


# --- places


def test_a_request_goes_at_once_where_there_is_a_place() -> None:
    """Nothing is put off, nothing is told to wait, and the one with less to do takes it."""
    stage = Stage(replica("r0", concurrent=2), replica("r1", concurrent=1))
    asked = [stage.ask() for _ in range(3)]
    assert [where for _, where in stage.sent] == ["r0", "r1", "r0"]
    assert all(one.exchange.extra == b"" for one in asked)
    assert len(stage.room) == 0


def test_without_a_bound_nothing_waits() -> None:
    """A replica of which nobody knows how much it takes takes everything."""
    stage = Stage(replica(concurrent=None))
    for _ in range(500):
        stage.ask()
    assert len(stage.sent) == 500


def test_what_waits_goes_when_a_place_gets_free() -> None:
    """First come, first served; each is told how long it has waited."""
    stage = Stage(replica())
    first, second, third = stage.ask(), stage.ask(), stage.ask()
    stage.wait(1.5)
    stage.finish(first)
    assert went(stage) == [first, second]
    assert second.exchange.extra == b"x-tuneplex-waited: 1.500\r\n"
    stage.finish(second)
    assert went(stage) == [first, second, third]
    stage.finish(third)
    assert stage.left_behind() == {}


def test_nobody_goes_before_those_that_wait() -> None:
    """Not even in the moment between a place that gets free and the turn that follows."""
    stage = Stage(replica())
    first, second = stage.ask(), stage.ask()
    relay = stage._relays.pop(first)
    stage.close(relay)
    third = stage.ask()
    assert went(stage) == [first]
    stage.run()
    assert went(stage) == [first, second]
    stage.finish(second)
    assert went(stage)[-1] is third


def test_what_can_go_elsewhere_does_not_wait_behind_what_cannot() -> None:
    """A place on another replica is used at once, though others wait for a replica that is full."""
    stage = Stage(replica("r0", serves=("legal",)), replica("r1", serves=("contacts",)))
    for _ in range(3):
        stage.ask("legal")
    other = stage.ask("contacts")
    stage.run()
    assert stage.sent[-1] == (other, "r1")
    assert len(stage.room) == 2


def test_a_route_does_not_wait_for_the_replicas_of_another() -> None:
    """Requests of one tenant for one model, first come, first served, but for what can go elsewhere."""
    stage = Stage(replica(routes=frozenset({Route.CHAT})), replica("other", routes=frozenset({Route.EMBEDDINGS})))
    stage.ask()
    stage.ask()
    embeddings = stage.ask(route=Route.EMBEDDINGS)
    stage.run()
    assert stage.sent[-1] == (embeddings, "other")


def test_several_gateways_share_the_places() -> None:
    """Before one is told its share, it takes its even part, at least one place; then what it was told."""
    stage = Stage(replica(concurrent=6), gateways=2)
    for _ in range(8):
        stage.ask()
    stage.run()
    assert len(stage.sent) == 3
    stage.places.update_turns(Turns(1, places={0: {"r0": 5}, 1: {"r0": 1}}))
    stage.room.served()
    stage.run()
    assert len(stage.sent) == 5
    narrow = Stage(replica(concurrent=1), gateways=4)
    narrow.ask()
    assert len(narrow.sent) == 1


# --- order


def test_tenants_share_by_weight() -> None:
    """Under load each gets work as its weight is, however many of its requests wait."""
    stage = Stage(replica(concurrent=2), requests=10_000)
    got = saturate(stage, 600, big=3, small=1)
    assert got["big"] / sum(got.values()) == pytest.approx(0.75, abs=0.02)


def test_fairness_is_in_work() -> None:
    """A tenant whose requests are ten times as large gets a tenth as many turns."""
    stage = Stage(replica())
    stage.ask()
    for _ in range(50):
        stage.ask(tenant="long", size=4000, longest=1000)
        stage.ask(tenant="short", size=400, longest=100)
    turns: Counter[str] = Counter()
    for _ in range(40):
        done = stage.under_way[0]
        turns[done.principal.tenant] += 1
        stage.finish(done, (1000, 1000) if done.principal.tenant == "long" else (100, 100))
    assert turns["short"] > 7 * turns["long"] > 0


def test_what_was_really_used_counts() -> None:
    """Whoever asks for more than its requests look like is charged for it when they are over."""
    stage = Stage(replica(), requests=10_000)
    got: Counter[str] = Counter()
    for tenant in ("modest", "greedy"):
        for _ in range(20):
            stage.ask(tenant=tenant)
    for _ in range(400):
        done = stage.under_way[0]
        tenant = done.principal.tenant
        used = 1000 if tenant == "greedy" else 200
        got[tenant] += used
        stage.ask(tenant=tenant)
        stage.finish(done, (100, used - 100))
    assert got["greedy"] / sum(got.values()) == pytest.approx(0.5, abs=0.05)


def test_who_leaves_just_before_the_end_has_had_its_turn() -> None:
    """How much there was of a whole answer nobody knows, so that what was expected is charged, and not nothing."""
    stage = Stage(replica(concurrent=2))
    for _ in range(10):
        stage.ask(tenant="stays")
        stage.ask(tenant="leaves")
    turns: Counter[str] = Counter()
    for _ in range(100):
        asked = stage.under_way[0]
        turns[asked.principal.tenant] += 1
        if asked.principal.tenant == "stays":
            stage.finish(asked)
        else:
            stage.finish(asked, (100, 0), Outcome.CLIENT_GONE, exact=False)
        stage.ask(tenant=asked.principal.tenant)
    assert 45 <= turns["leaves"] <= 55


def test_replies_are_expected_to_be_as_long_as_they_were() -> None:
    """What a turn costs beforehand follows the model's own replies, and never more than the request allows."""
    stage = Stage(replica())
    stage.ask()
    known, small = stage.ask(longest=1000), stage.ask(longest=1000)
    assert known.charge.work == 100 + 256
    for _ in range(3):
        stage.finish(stage.under_way[0], (100, 20))
    stage.ask()
    assert small.charge.work == 100 + 256
    assert stage.ask(longest=1000).charge.work == 100 + 20
    assert stage.ask(longest=5).charge.work == 100 + 5


def test_priorities_share_inside_their_tenant_only() -> None:
    """High goes more often than low, low still goes, and another tenant has its half whatever they say."""
    stage = Stage(replica(), requests=10_000)
    stage.ask()
    for _ in range(300):
        stage.ask(tenant="loud", priority=HIGH)
        stage.ask(tenant="loud", priority=LOW)
        stage.ask(tenant="calm", priority=LOW)
    turns: Counter[tuple[str, Priority]] = Counter()
    for _ in range(341):
        done = stage.under_way[0]
        turns[done.principal.tenant, done.priority] += 1
        stage.finish(done, (100, 100))
    assert turns["calm", LOW] == pytest.approx(170, abs=5)
    assert turns["loud", LOW] == pytest.approx(10, abs=2)


def test_shares_from_control_replace_weights() -> None:
    """With several gateways a tenant's weight is what control says it is worth here."""
    stage = Stage(replica(concurrent=2), requests=10_000)
    stage.room.reweigh({"big": 1.0, "small": 3.0})
    got = saturate(stage, 400, big=3, small=1)
    assert got["small"] / sum(got.values()) == pytest.approx(0.75, abs=0.02)


# --- models that are on their way


def test_a_model_that_is_on_its_way_is_waited_for() -> None:
    """A replica that loads it makes its requests wait; when it has, they go."""
    loading = replica(serves=("base",), awaited=frozenset({"legal"}), concurrent=4)
    stage = Stage(loading)
    waiting, other = stage.ask("legal"), stage.ask("base")
    stage.run()
    assert went(stage) == [other]
    stage.show(replica(serves=("base", "legal"), concurrent=4))
    assert went(stage) == [other, waiting]


def test_a_replica_that_starts_again_is_waited_for() -> None:
    """What waits for a place goes on waiting while its replica starts again, and goes there afterwards."""
    stage = Stage(replica())
    first, second = stage.ask(), stage.ask()
    stage.doubted.add("r0")  # its connections broke
    stage.finish(first, (0, 0), Outcome.BROKEN)
    assert went(stage) == [first]
    stage.doubted.clear()
    stage.show(replica(state=ReplicaState.STARTING, awaited=frozenset({"base", "legal"})))
    assert went(stage) == [first]
    stage.show(replica())
    assert went(stage) == [first, second]


def test_what_nobody_will_answer_is_refused() -> None:
    """When the last replica that could take it is given up, or its model leaves the fleet, waiting is over."""
    stage = Stage(replica())
    under_way, base, legal = stage.ask(), stage.ask(), stage.ask("legal")
    stage.show(replica(), models=())
    assert codes(stage) == ["model_not_found"]
    stage.show(replica(state=ReplicaState.DEAD))
    assert codes(stage) == ["model_not_found", "no_ready_engine"]
    assert [stage.tickets(one) for one in (base, legal)] == [(1, 0)] * 2
    stage.finish(under_way)
    assert stage.left_behind() == {}


def test_many_are_looked_at_again_in_small_lots() -> None:
    """A new view is followed by all, though no single step looks at more than a few hundred."""
    stage = Stage(replica(), requests=2000)
    for _ in range(1000):
        stage.ask()
    before = len(stage.sent)
    stage.show(replica(concurrent=1001))
    assert len(stage.sent) - before == 999


# --- slots


def test_a_hot_adapter_lets_a_cold_one_have_its_slot() -> None:
    """With one slot and endless requests for one adapter, the other one has its turn, and then the first again."""
    stage = Stage(replica(slots=1, concurrent=4), requests=10_000)
    cold = None
    for step in range(200):
        if len(stage.under_way) + len(stage.room) < 8:
            stage.ask("legal", tenant="hot")
        if step == 20:
            cold = stage.ask("contacts", tenant="cold")
        stage.run()
        stage.wait(0.1)
        if stage.under_way:
            stage.finish(stage.under_way[0])
    assert cold in went(stage)
    assert went(stage)[-1].model.name == "legal"
    assert all(len({asked.model.name}) == 1 for asked, _ in stage.sent)


def test_never_more_adapters_than_slots() -> None:
    """Whatever comes, a replica works on no more different adapters than it has slots for, and the base needs none."""
    stage = Stage(replica(slots=1, concurrent=8), requests=10_000)
    for step in range(300):
        stage.ask(("legal", "contacts", "base")[step % 3], tenant=f"t{step % 5}")
        stage.wait(0.1)
        busy = {asked.model.name for asked in stage.under_way}
        assert len(busy - {"base"}) <= 1
        while len(stage.under_way) > 5:
            stage.finish(stage.under_way[0])
    turns = Counter(asked.model.name for asked in went(stage))
    assert all(turns[name] > 50 for name in ("legal", "contacts", "base"))


def test_a_slot_that_nobody_waits_for_any_more_opens_again() -> None:
    """When the client of the cold adapter leaves, the hot one goes on at once."""
    stage = Stage(replica(slots=1, concurrent=4))
    stage.ask("legal")
    cold = stage.ask("contacts")
    stage.wait(3)
    assert stage.places.slots.closing == {"r0": ("legal",)}
    stage.leave(cold)
    assert stage.places.slots.closing == {}
    stage.ask("legal")
    assert len(stage.under_way) == 2


def test_what_others_had_keeps_no_adapter_waiting_when_nobody_tells_any_more() -> None:
    """While control is away nobody says when another gateway's requests are over, or what is open again."""
    stage = Stage(replica(slots=1, concurrent=8), gateways=2)
    elsewhere = {0: {"r0": {"contacts": 1}}}
    stage.places.update_turns(Turns(1, places={0: {"r0": 3}}, elsewhere=elsewhere, closing={"r0": ("legal",)}))
    asked = [stage.ask("legal") for _ in range(4)]
    stage.wait(10)
    assert stage.sent == []
    stage.places.forget_others()
    stage.room.served()
    stage.run()
    assert went(stage) == asked[:3]


# --- bounds


def test_a_full_room_refuses_the_newest_of_whoever_has_most() -> None:
    """Somebody with few requests is let in, in the place of somebody with many; nobody can fill the room for others."""
    stage = Stage(replica(), requests=4)
    stage.ask()
    crowd = [stage.ask(tenant="crowd") for _ in range(4)]
    late = stage.ask(tenant="late")
    assert list(stage.errors) == [crowd[-1]]
    error = stage.errors[crowd[-1]]
    assert (error.status, error.code) == (503, "overloaded")
    assert error.retry_after_s is not None
    again = stage.ask(tenant="crowd")
    assert list(stage.errors) == [crowd[-1], again]
    assert late not in stage.errors
    assert len(stage.room) == 4


def test_many_small_requests_keep_no_large_one_out() -> None:
    """Who has most requests gives way, however small they are."""
    stage = Stage(replica(), requests=20)
    stage.ask()
    crowd = [stage.ask(tenant="crowd", size=40, longest=10) for _ in range(20)]
    large = stage.ask(tenant="large", size=40_000, longest=1000)
    assert list(stage.errors) == [crowd[-1]]
    assert large in stage.room._waiters


def test_a_room_full_of_others_refuses_nothing_that_can_go() -> None:
    """Whoever has a free place goes to it, though all that waits for another replica is the same tenant's."""
    stage = Stage(replica("full", serves=("legal",)), replica("free", serves=("contacts",), concurrent=2), requests=3)
    for _ in range(4):
        stage.ask("legal")
    asked = [stage.ask("contacts") for _ in range(3)]
    stage.run()
    assert stage.sent[1:] == [(asked[0], "free"), (asked[1], "free")]
    assert list(stage.errors) == [asked[2]]


def test_low_priority_gives_way_first() -> None:
    """Of the tenant that has too much, the newest request of the lowest priority."""
    stage = Stage(replica(), requests=3)
    stage.ask()
    low, _normal, _high = (stage.ask(priority=priority) for priority in (LOW, NORMAL, HIGH))
    stage.ask(priority=HIGH)
    assert list(stage.errors) == [low]


def test_bytes_are_bounded() -> None:
    """Large bodies are refused to whoever has most bytes here, not to those with many small ones."""
    stage = Stage(replica(), bytes=10_000)
    stage.ask()
    small = [stage.ask(tenant="small", size=100) for _ in range(30)]
    large = [stage.ask(tenant="large", size=3000) for _ in range(3)]
    assert list(stage.errors) == [large[-1]]
    assert stage.room.bytes == 9000
    stage.ask(tenant="small", size=2000)
    assert list(stage.errors) == [large[-1], large[-2]]
    assert not set(small) & set(stage.errors)


def test_bytes_of_low_priority_give_way_first() -> None:
    """As with requests: of whoever has too much, the newest of the lowest priority."""
    stage = Stage(replica(), bytes=10_000)
    stage.ask()
    first, second, _third = (stage.ask(priority=one, size=3000) for one in (LOW, LOW, HIGH))
    stage.ask(size=3000)
    assert list(stage.errors) == [second]
    assert first not in stage.errors


def test_a_room_without_room_refuses_everything_that_would_wait() -> None:
    """`requests: 0` means that nothing waits; what finds a place goes."""
    stage = Stage(replica(), requests=0)
    stage.ask()
    refused = stage.ask()
    assert list(stage.errors) == [refused]
    assert stage.tickets(refused) == (1, 0)


def test_smaller_bounds_hold_at_once() -> None:
    """When the settings change, what is too much is refused."""
    stage = Stage(replica())
    for _ in range(5):
        stage.ask()
    stage.settle(requests=2)
    assert codes(stage) == ["overloaded"] * 2


# --- time


def test_nobody_waits_longer_than_the_longest_time() -> None:
    """Then it is refused, with what it has waited for."""
    stage = Stage(replica(serves=("base",), awaited=frozenset({"legal"})), longest_s=3)
    stage.ask()
    place, adapter = stage.ask(), stage.ask("legal")
    stage.wait(2.9)
    assert not stage.errors
    stage.wait(0.2)
    assert [error.status for error in stage.errors.values()] == [503, 503]
    assert codes(stage) == ["waited_too_long"] * 2
    assert "No place got free within 3.0 s" in stage.errors[place].message
    assert "No engine got ready for the model `legal`" in stage.errors[adapter].message
    assert place.exchange.extra.startswith(b"x-tuneplex-waited: 3.")


def test_a_deadline_passes_while_waiting() -> None:
    """504, and no engine hears of it."""
    stage = Stage(replica())
    stage.ask()
    asked = stage.ask(within=2)
    stage.wait(2.1)
    assert (stage.errors[asked].status, stage.errors[asked].code) == (504, "deadline_exceeded")
    assert stage.tickets(asked) == (1, 0)
    assert len(stage.sent) == 1


def known_speed(**waiting: Any) -> Stage:  # noqa: ANN401 - of `Waiting`
    """A room that knows its speed: a request of 200 tokens each half second, and twenty that wait."""
    stage = Stage(replica(), **waiting)
    for _ in range(40):
        stage.ask()
    for _ in range(20):
        stage.wait(0.5)
        stage.finish(stage.under_way[0])
    return stage


def test_what_would_wait_in_vain_is_refused_at_once() -> None:
    """With a known speed, nobody has to wait for a deadline, or for the longest time, only to be refused then."""
    stage = known_speed(longest_s=60)
    hopeless, hopeful = stage.ask(within=3), stage.ask(within=30)
    assert list(stage.errors) == [hopeless]
    error = stage.errors[hopeless]
    assert (error.status, error.code) == (504, "deadline_exceeded")
    assert error.retry_after_s is not None
    assert 3 <= error.retry_after_s <= 12
    assert hopeful not in stage.errors
    stage.settle(longest_s=5)
    too_long = stage.ask()
    assert stage.errors[too_long].code == "overloaded"


def test_a_speed_of_long_ago_refuses_nobody() -> None:
    """Already the first burst after a pause is not judged by how slow the engines were before it."""
    stage = Stage(replica(), longest_s=120)
    for _ in range(20):
        stage.ask()
    for _ in range(20):
        stage.wait(4)
        stage.finish(stage.under_way[0])
    assert not stage.errors
    assert len(stage.room) == 0
    stage.now += 3600
    for _ in range(100):
        stage.ask()
    assert not stage.errors


def test_nobody_is_refused_for_the_time_that_others_wait_for_other_replicas() -> None:
    """Where a place is free, the turn comes at once, whatever estimates say of those that wait."""
    stage = known_speed()
    stage.show(replica(serves=("base",)), replica("free", serves=("contacts",)))
    hopeful = stage.ask("contacts", within=0.2, size=4000)
    stage.run()
    assert stage.sent[-1] == (hopeful, "free")


def test_a_large_request_does_not_wait_for_itself() -> None:
    """Its turn comes when those before it have gone, however long its own work is going to take."""
    stage = known_speed(longest_s=60)
    large = stage.ask(tenant="large", size=400_000)
    assert large not in stage.errors
    stage.finish(stage.under_way[0])
    assert large in stage.under_way


def test_what_is_not_known_refuses_nobody() -> None:
    """Before anything was finished a deadline is only a deadline."""
    stage = Stage(replica())
    for _ in range(500):
        stage.ask(within=0.5)
    assert not stage.errors


def test_a_start_that_takes_too_long_is_told_at_once() -> None:
    """When it is known that a replica gets ready later than a request may wait."""
    stage = Stage(replica(state=ReplicaState.STARTING, awaited=frozenset({"base"}), ready_at=1300.0))
    asked = stage.ask()
    error = stage.errors[asked]
    assert (error.status, error.code, error.retry_after_s) == (503, "no_ready_engine", 180)
    assert "about 300 s, and it may wait 120 s" in error.message
    stage.show(replica(state=ReplicaState.STARTING, awaited=frozenset({"base"}), ready_at=1060.0))
    assert stage.ask() not in stage.errors


def test_a_start_of_which_nobody_knows_how_long_it_takes_is_waited_for() -> None:
    """It may be over before another one that takes too long."""
    slow = replica("slow", state=ReplicaState.STARTING, awaited=frozenset({"base"}), ready_at=1300.0)
    unknown = replica("unknown", state=ReplicaState.STARTING, awaited=frozenset({"base"}))
    stage = Stage(slow, unknown)
    asked = stage.ask()
    assert not stage.errors
    stage.wait(1)
    stage.show(slow, replica("unknown"))
    assert stage.sent == [(asked, "unknown")]


# --- what clients are told


def test_streams_are_told_that_they_wait() -> None:
    """The head leaves with the first comment and says how it stood then; comments go on until its turn."""
    stage = Stage(replica(), comment_s=2)
    first = stage.ask()
    stage.ask()
    asked = stage.ask(stream=True)
    stage.wait(1.4)
    assert stage.read(asked) == ""
    stage.wait(0.7)
    head, _, body = stage.read(asked).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert "x-tuneplex-queue-position: 2" in head
    assert "estimated-wait" not in head
    assert ": waiting, position 2 of 2\n\n" in body
    stage.finish(first)
    stage.wait(2)
    assert ": waiting, position 1 of 1\n\n" in stage.read(asked)
    assert "x-tuneplex-waited" not in stage.read(asked)


def test_estimates_are_told_when_there_are_any() -> None:
    """In the head and in the comments, in whole seconds."""
    stage = known_speed(comment_s=1)
    asked = stage.ask(stream=True)
    stage.wait(1.1)
    head, _, body = stage.read(asked).partition("\r\n\r\n")
    told = [line for line in head.split("\r\n") if line.startswith("x-tuneplex-estimated-wait: ")]
    assert len(told) == 1
    assert 8 <= int(told[0].split(": ")[1]) <= 14
    assert ", about " in body


def test_others_are_told_nothing_while_they_wait() -> None:
    """A reply that is no stream begins when it is there."""
    stage = Stage(replica(), comment_s=1)
    stage.ask()
    asked = stage.ask()
    stage.wait(20)
    assert stage.read(asked) == ""


def test_who_does_not_read_gets_no_comments() -> None:
    """They do not pile up; they go on when it reads again."""
    stage = Stage(replica(), comment_s=1)
    stage.ask()
    asked = stage.ask(stream=True)
    stage.wait(1.1)
    read = stage.read(asked)
    stage.pause(asked)
    stage.wait(10)
    assert stage.read(asked) == read
    stage.pause(asked, paused=False)
    stage.wait(1.1)
    assert stage.read(asked).count(": waiting") in {2, 3}


def test_after_comments_an_error_is_an_event() -> None:
    """The status has left; the error follows as the stream's last event, and no `[DONE]`."""
    stage = Stage(replica(), comment_s=1, longest_s=3)
    stage.ask()
    asked = stage.ask(stream=True)
    stage.wait(3.1)
    read = stage.read(asked)
    assert read.count("HTTP/1.1") == 1
    assert '"code":"waited_too_long"' in read
    assert read.endswith("0\r\n\r\n")
    assert "[DONE]" not in read


# --- ends


def test_who_leaves_frees_its_place_at_once() -> None:
    """Its ticket is given back, and it is counted as one that left."""
    stage = Stage(replica())
    first, second, third = stage.ask(), stage.ask(), stage.ask()
    stage.leave(second)
    assert stage.tickets(second) == (1, 0)
    assert len(stage.room) == 1
    stage.finish(first)
    assert went(stage) == [first, third]
    assert stage.ledger.counters.counts()["tuneplex_left_waiting_total"] == [(("base",), 1.0)]
    stage.finish(third)
    assert stage.left_behind() == {}


@pytest.mark.parametrize("error, code", [(BadRequest("no", code="odd"), "odd"), (ValueError(), "internal_error")])
def test_what_cannot_be_sent_is_answered(error: Exception, code: str) -> None:
    """A request that turns out to be wrong at its turn, even by a defect of ours, holds up nobody."""
    stage = Stage(replica())
    first, second, third = stage.ask(), stage.ask(), stage.ask()
    stage.broken = error
    relay = stage._relays.pop(first)
    stage.close(relay)
    stage._coming.pop()()
    stage.broken = None
    assert [one.code for one in stage.errors.values()] == [code] * 2
    assert [stage.tickets(one) for one in (second, third)] == [(1, 0)] * 2
    assert stage.left_behind() == {}


def test_a_turn_that_came_to_nothing_is_not_charged() -> None:
    """What could not be sent is given back to its tenant."""
    stage = Stage(replica())
    first = stage.ask(tenant="other")
    stage.ask()
    before = stage.room._queue._tenants.members["acme"].start
    stage.broken = BadRequest("no")
    stage.finish(first)
    assert stage.room._queue._tenants.members["acme"].start == before


def test_what_is_wrong_from_the_beginning_is_not_charged() -> None:
    """It raises where it came in, and its tenant is owed as much as before."""
    stage = Stage(replica())
    stage.broken = BadRequest("no")
    asked = stage.ask()
    assert isinstance(stage.errors[asked], ApiError)
    assert stage.left_behind() == {}


def test_a_gateway_that_stops_refuses_what_waits() -> None:
    """At once, with 503 and `retry-after`; what is under way goes on, and what comes and would wait is refused too."""
    stage = Stage(replica())
    under_way, waiting = stage.ask(), stage.ask()
    stage.room.close()
    late = stage.ask()
    assert [(stage.errors[one].status, stage.errors[one].retry_after_s) for one in (waiting, late)] == [(503, 1)] * 2
    assert [stage.tickets(one) for one in (waiting, late)] == [(1, 0)] * 2
    stage.finish(under_way)
    assert stage.ask() in went(stage)


def test_demand_is_what_is_under_way_and_what_waits() -> None:
    """By replica and tenant; what could go to several counts as a part in each."""
    stage = Stage(replica("r0"), replica("r1", serves=("base",)))
    for tenant in ("a", "a", "b", "b"):
        stage.ask(tenant=tenant)
    stage.ask("legal", tenant="c")
    assert stage.room.demand() == {"r0": {"a": 1, "b": 1, "c": 1}, "r1": {"a": 1, "b": 1}}


def test_many_are_told_in_small_lots() -> None:
    """Streams that came at the same moment are not all told at the same one, and all are told."""
    stage = Stage(replica(), comment_s=5)
    asked = [stage.ask(stream=True) for _ in range(301)][1:]
    stage.wait(5.05)
    told = sum(one.exchange.spoken for one in asked)
    assert 0 < told <= 100
    stage.wait(1)
    assert all(one.exchange.spoken for one in asked)
