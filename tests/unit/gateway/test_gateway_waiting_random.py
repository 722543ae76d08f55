"""The waiting room under everything that can happen, in any order."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.room import Stage, replica
from tuneplex.errors import BadRequest
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.counters import Outcome
from tuneplex.gateway.urgency import Priority
from tuneplex.types import Replica, ReplicaState, Turns

TENANTS = {"a": 1, "b": 2, "c": 5}
ADAPTERS = ("legal", "contacts")


class Chaos:
    """Does random things to a stage, and checks after each what must always hold."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - not for secrets
        self.gateways = self.dice.choice((1, 1, 2))
        self.stage = Stage(
            replica("r0", concurrent=3, slots=1),
            replica("r1", concurrent=2, slots=2),
            gateways=self.gateways,
            requests=12,
            bytes=20_000,
            longest_s=8,
            comment_s=1,
        )
        self.asked: list[Asked] = []

    def step(self) -> None:
        """One of the things that happen."""
        dice = self.dice
        what: tuple[tuple[int, Callable[[], None]], ...] = (
            (10, self.ask),
            (6, self.finish),
            (3, self.leave),
            (3, lambda: self.stage.wait(dice.choice((0.1, 0.1, 1.0, 3.0)))),
            (3, self.change),
            (1, self.turns),
            (1, self.doubt),
            (1, self.fail),
            (1, lambda: self.stage.settle(requests=dice.randrange(15), bytes=20_000, longest_s=8, comment_s=1)),
        )
        dice.choices([act for _, act in what], [weight for weight, _ in what])[0]()
        if dice.random() < 0.8:
            self.stage.run()
        self.check()

    def ask(self) -> None:
        """A request comes."""
        dice, tenant = self.dice, self.dice.choice(tuple(TENANTS))
        self.asked.append(
            self.stage.ask(
                dice.choice(("base", *ADAPTERS)),
                tenant=tenant,
                weight=TENANTS[tenant],
                stream=dice.random() < 0.5,
                priority=dice.choice(tuple(Priority)),
                within=dice.choice((1e9, 1e9, 1.0, 5.0)),
                size=dice.choice((100, 400, 5000)),
            )
        )

    def finish(self) -> None:
        """An engine is done, or fails."""
        if self.stage.under_way:
            used = (self.dice.randrange(200), self.dice.randrange(400))
            self.stage.finish(self.dice.choice(self.stage.under_way), used, self.dice.choice(tuple(Outcome)))

    def leave(self) -> None:
        """A client that waits leaves."""
        waiting = tuple(self.stage.room._waiters)
        if waiting:
            self.stage.leave(self.dice.choice(waiting))

    def change(self) -> None:
        """Replicas stop, start, load and unload."""
        self.stage.show(*(self.some(name) for name in ("r0", "r1") if self.dice.random() < 0.9), models=self.models())

    def models(self) -> tuple[str, ...]:
        """Mostly all of them."""
        return ADAPTERS if self.dice.random() < 0.9 else ADAPTERS[:1]

    def some(self, name: str) -> Replica:
        """A replica in some state."""
        dice = self.dice
        serves = tuple(one for one in ("base", *ADAPTERS) if dice.random() < 0.8)
        ready_at = dice.choice((None, self.stage.now + 3, self.stage.now + 100))
        state = dice.choice((ReplicaState.READY, ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DEAD))
        return replica(
            name,
            serves=serves,
            awaited=frozenset(ADAPTERS) if dice.random() < 0.7 else frozenset(),
            state=state,
            ready_at=ready_at,
            concurrent=dice.choice((1, 2, 4)),
            slots=dice.choice((None, 1, 2)),
        )

    def turns(self) -> None:
        """Control shares the replicas anew."""
        places = {"r0": self.dice.randrange(1, 4), "r1": self.dice.randrange(3)}
        closing: dict[str, tuple[str, ...]] = {"r0": ("legal",)} if self.dice.random() < 0.3 else {}
        self.stage.places.update_turns(Turns(1, places={0: places}, closing=closing))
        self.stage.room.reweigh({"a": self.dice.choice((0.5, 2.0))})
        self.stage.room.served()

    def doubt(self) -> None:
        """A replica may be gone, or is there after all."""
        self.stage.doubted ^= {"r0"}
        self.stage.room.served()

    def fail(self) -> None:
        """Whatever is sent now turns out to be wrong."""
        self.stage.broken = self.dice.choice((None, BadRequest("odd"), ValueError("a defect")))
        if isinstance(self.stage.broken, ValueError):
            self.stage.run()
            self.stage.broken = None

    def check(self) -> None:
        """What always holds."""
        stage, room = self.stage, self.stage.room
        waiting = list(room._waiters)
        assert len(room._queue) == len(room) == len(waiting)
        assert room.bytes == sum(one.exchange.received for one in waiting)
        assert all(one.place.waits and one.exchange.listener is one for one in waiting)
        assert sum(stage.places._waiting.values()) == len(waiting)
        assert len(waiting) <= stage.view.settings.waiting.requests
        sent = {asked for asked, _ in stage.sent}
        assert len(sent) == len(stage.sent), "something was sent twice"
        for one in self.asked:
            ends = (one in room._waiters, one in sent, one in stage.errors, one.exchange.gone)
            assert sum(ends) == 1, ends
            assert stage.tickets(one)[0] == (one in stage.errors or one.exchange.gone)

    def end(self) -> None:
        """All engines are well again: whatever waits is answered, and nothing is left."""
        stage = self.stage
        stage.broken = None
        stage.doubted.clear()
        stage.places.update_turns(Turns(2))
        stage.show(replica("r0", concurrent=2, slots=1), replica("r1", concurrent=2, slots=1))
        for _ in range(200):
            stage.wait(0.5)
            for one in stage.under_way:
                stage.finish(one)
            self.check()
            if not len(stage.room) and not stage.under_way:
                break
        assert stage.left_behind() == {}


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_nothing_is_lost_and_nothing_is_left(seed: int) -> None:
    """Each request is sent once, refused once or left, its ticket goes with it, and in the end nothing is kept."""
    chaos = Chaos(seed)
    for _ in range(120):
        chaos.step()
    chaos.end()
