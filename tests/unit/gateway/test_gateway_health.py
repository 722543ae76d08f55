"""Which replicas get requests, by what became of those that they got."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tuneplex.errors import Quarantined
from tuneplex.gateway.counters import Counters
from tuneplex.gateway.heads import error_lines
from tuneplex.gateway.health import Health, no_healthy_engine
from tuneplex.policy import End, verdict
from tuneplex.types import Breaking, Replica, ReplicaState

SETTINGS = Breaking(failures=2, open_s=5.0, longest_s=60.0)


def replica(name: str, endpoint: str = "unix:/1", state: ReplicaState = ReplicaState.READY) -> Replica:
    """One that serves nothing in particular."""
    return Replica(name, "default", "vllm", endpoint, state=state)


class Fleet:
    """A `Health` of the replicas `a` and `b`, and the clock that it goes by."""

    def __init__(self) -> None:
        self.now = 100.0
        self.recovered = 0
        self.counters = Counters()
        self.health = Health(self.counters, self._recover, lambda: self.now)
        self.update([replica("a"), replica("b")])

    def _recover(self) -> None:
        self.recovered += 1

    def update(self, replicas: Iterable[Replica], settings: Breaking = SETTINGS) -> None:
        """Control has spoken."""
        self.health.update(replicas, settings)

    def send(self, name: str, *ends: End) -> None:
        """Requests that end like this, one after another."""
        for end in ends:
            self.health.ended(name, self.health.began(name), verdict(end))

    def openings(self) -> list[tuple[tuple[str, ...], float]]:
        """As they are reported."""
        return self.counters.counts().get("tuneplex_breaker_opened_total", [])


def test_a_replica_that_fails_gets_nothing_and_the_other_does() -> None:
    """Each replica has a breaker of its own, and its openings are counted."""
    fleet = Fleet()
    fleet.send("a", End.BROKEN, End.STALLED)
    assert not fleet.health.admits("a")
    assert fleet.health.admits("b")
    assert fleet.health.states() == {"a": "open"}
    assert fleet.openings() == [(("a",), 1.0)]


def test_what_the_request_is_to_blame_for_leaves_the_replica_alone() -> None:
    """Any number of refusals, clients that left and single 500s does not open a breaker."""
    fleet = Fleet()
    fleet.send("a", *[End.REFUSED, End.STOPPED] * 50, *[End.FAILED] * 10, *[End.REFUSED] * 50)
    assert fleet.health.admits("a")
    assert fleet.health.states() == {}


def test_the_first_part_of_a_probe_s_reply_is_enough() -> None:
    """All go again as soon as a probe is answered, however long its stream goes on, and those that wait hear of it."""
    fleet = Fleet()
    fleet.send("a", End.UNREACHABLE, End.UNREACHABLE)
    fleet.now += 5
    assert fleet.health.admits("a")
    probe = fleet.health.began("a")
    assert not fleet.health.admits("a")
    assert fleet.health.states() == {"a": "half-open"}
    fleet.health.answered("a", probe)
    assert fleet.health.admits("a")
    assert fleet.recovered == 1
    fleet.health.ended("a", probe, verdict(End.COMPLETE))
    assert fleet.health.states() == {}
    assert fleet.recovered == 1


def test_the_first_part_of_any_other_reply_is_not() -> None:
    """Streams that begin and then stall are failures in a row, also while the replica is held."""
    fleet = Fleet()
    eras = [fleet.health.began("a") for _ in range(3)]
    fleet.health.ended("a", eras.pop(), verdict(End.BUSY, 3.0))
    for era in eras:
        fleet.health.answered("a", era)
        fleet.health.ended("a", era, verdict(End.STALLED))
    assert fleet.health.states() == {"a": "open"}


def test_failed_probes_are_counted_as_openings() -> None:
    """A breaker that opens again is counted again, and stays open for longer."""
    fleet = Fleet()
    fleet.send("a", End.BROKEN, End.BROKEN)
    fleet.now += 5
    fleet.send("a", End.SILENT)
    assert fleet.openings() == [(("a",), 2.0)]
    assert fleet.health.broken_s(["a"]) == 10.0


def test_a_busy_replica_is_left_alone_for_as_long_as_it_says() -> None:
    """A 429 with `retry-after` holds the replica, is no failure, and is over by itself."""
    fleet = Fleet()
    fleet.health.ended("a", fleet.health.began("a"), verdict(End.BUSY, 3.0))
    assert not fleet.health.admits("a")
    assert fleet.health.states() == {"a": "held"}
    fleet.now += 3
    assert fleet.health.admits("a")
    assert fleet.health.states() == {}
    assert fleet.openings() == []


def test_the_first_replica_that_is_back_counts() -> None:
    """Whoever asks when to come back is told of the first of its replicas, and of none while one has not failed."""
    fleet = Fleet()
    fleet.send("a", End.BROKEN, End.BROKEN)
    assert fleet.health.broken_s(["a", "b"]) is None
    fleet.now += 2
    fleet.health.ended("b", fleet.health.began("b"), verdict(End.UNAVAILABLE, 30.0))
    assert fleet.health.broken_s(["a", "b"]) is None  # it has asked for time, and has not failed
    fleet.send("b", End.BROKEN, End.BROKEN)
    assert fleet.health.broken_s(["a", "b"]) == 3.0
    assert fleet.health.broken_s(["b"]) == 30.0
    assert fleet.health.broken_s([]) is None


def test_a_replica_that_was_started_again_begins_anew() -> None:
    """At another endpoint nothing is held against it, and what still ends at the old one does not count."""
    fleet = Fleet()
    old = [fleet.health.began("a") for _ in range(10)]
    fleet.send("a", End.BROKEN, End.BROKEN)
    fleet.update([replica("a", "unix:/2"), replica("b")])
    assert fleet.health.admits("a")
    for era in old:
        fleet.health.ended("a", era, verdict(End.BROKEN))
    assert fleet.health.admits("a")


def test_a_replica_that_starts_at_the_same_endpoint_begins_anew() -> None:
    """One that control has seen dead, or starting, has nothing held against it when it is back."""
    fleet = Fleet()
    fleet.send("a", End.BROKEN, End.BROKEN)
    fleet.update([replica("a", state=ReplicaState.STARTING)])
    fleet.update([replica("a")])
    assert fleet.health.admits("a")


def test_a_new_view_of_the_same_replicas_changes_nothing() -> None:
    """What is open stays open, and its settings are the new ones."""
    fleet = Fleet()
    fleet.send("a", End.BROKEN, End.BROKEN)
    fleet.update([replica("a", state=ReplicaState.DRAINING), replica("b")], Breaking(1, 1.0, 1.0))
    assert fleet.health.broken_s(["a"]) == 5.0
    fleet.send("b", End.BROKEN)
    assert fleet.health.broken_s(["b"]) == 1.0


def test_requests_at_replicas_that_are_gone_end_quietly() -> None:
    """A replica that control has taken away is nobody's concern, while its last requests end."""
    fleet = Fleet()
    era = fleet.health.began("a")
    fleet.update([replica("b")])
    fleet.health.answered("a", era)
    fleet.health.ended("a", era, verdict(End.BROKEN))
    fleet.send("a", End.BROKEN, End.BROKEN)
    assert fleet.health.admits("a")
    assert fleet.health.states() == {}


def test_clients_are_told_when_to_come_back() -> None:
    """An open breaker is a 503 in OpenAI's shape, with whole seconds in `retry-after`."""
    error = no_healthy_engine("legal", 3.2)
    assert error.status == 503
    assert msgspec.json.decode(error.body())["error"]["code"] == "no_healthy_engine"
    assert error_lines(error) == b"retry-after: 4\r\n"
    assert error_lines(no_healthy_engine("legal", 0.0)) == b"retry-after: 1\r\n"


def test_nobody_is_asked_to_send_a_quarantined_request_again() -> None:
    """It is a 502 that tells OpenAI's clients not to try again, and not when to."""
    error = Quarantined()
    assert error.status == 502
    assert msgspec.json.decode(error.body())["error"] == {
        "message": error.message,
        "type": "server_error",
        "param": None,
        "code": "quarantined",
    }
    assert error_lines(error) == b"x-should-retry: false\r\n"
