"""Limits that are raised and lowered while everything runs, and that control and the gateways learn of in any order."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gateway.test_gateway_shared_limits import MINUTE_S, NAME, STEPS, WALL, LetIn, World
from tuneplex.errors import RateLimited
from tuneplex.identity import Limits, Subject

AMOUNTS = (1, 2, 3, 7, 20, 50)
KINDS = ("requests_per_minute", "tokens_per_minute", "concurrent")


class ChangingWorld(World):
    """A world in which each gateway, and control, knows a limit of its own until it learns the newest one."""

    def __init__(self, kind: str, amount: int, gateways: int) -> None:
        super().__init__(msgspec.convert({kind: amount}, Limits), gateways)
        self.kind = kind
        self.newest = self.subject
        self.known = [self.subject] * gateways
        self.history = [(self.now, amount)]

    def change(self, which: int, _: int) -> None:
        """Somebody sets the limit."""
        self.newest = Subject(NAME, msgspec.convert({self.kind: AMOUNTS[which % len(AMOUNTS)]}, Limits))

    def learn(self, who: int, _: int) -> None:
        """A gateway, or control, hears of it."""
        who %= len(self.known) + 1
        if who == len(self.known):
            self.subject = self.newest
        else:
            self.known[who] = self.newest

    def ask(self, index: int, tokens: int, least: int | None = None) -> bool:  # noqa: ARG002 - there is no money
        """One request at one gateway; whether it was let in."""
        index %= len(self.known)
        process = self.processes[index]
        try:
            ticket = process.admission.admit((self.known[index],), tokens, self.now, WALL + self.now)
        except RateLimited:
            return False
        process.events.append(LetIn(self.now, tokens, ticket))
        process.under_way.append(process.events[-1])
        return True

    def check(self) -> None:
        """Together the gateways go by no more than the highest limit that anybody knew within the last minute."""
        highest = max(getattr(one.limits, self.kind) for one in (*self.known, self.subject))
        self.history.append((self.now, highest))
        allowed = max(amount for at, amount in self.history if at >= self.now - MINUTE_S - 1)
        held = [process.admission._held(one) for process, one in zip(self.processes, self.known, strict=True)]
        assert sum(getattr(one, self.kind) for one in held) <= allowed
        requests, tokens = zip(*(process.let_in(self.now) for process in self.processes), strict=True)
        assert self.kind != "requests_per_minute" or sum(requests) <= allowed
        assert self.kind != "tokens_per_minute" or sum(tokens) <= allowed


WEIGHTS = {step.__name__: weight for step, weight in STEPS.items()} | {"change": 1, "learn": 4, "kill": 0, "join": 0}
ALL_STEPS = [step for step, weight in WEIGHTS.items() for _ in range(weight)]


@settings(max_examples=200)
@given(st.randoms(use_true_random=True))
def test_a_limit_that_changes_is_kept_by_all_gateways_together(chance: Random) -> None:
    """Whoever learns of it first, and whatever is late or lost: never more than what was the limit for somebody."""
    world = ChangingWorld(chance.choice(KINDS), chance.choice(AMOUNTS), chance.randint(1, 4))
    for _ in range(chance.randint(20, 150)):
        getattr(world, chance.choice(ALL_STEPS))(chance.randint(0, 15), chance.randint(0, 15))
        world.check()


def test_who_knows_of_a_higher_limit_does_not_take_what_others_have() -> None:
    """A gateway that heard of it first goes on by its share, until control has divided the new limit."""
    world = ChangingWorld("requests_per_minute", 7, 2)
    world.ask(0, 0)
    world.cycle()
    before = [process.admission._held(world.subject) for process in world.processes]
    world.change(5, 0)
    world.learn(0, 0)
    assert [process.admission._held(one) for process, one in zip(world.processes, world.known, strict=True)] == before
    for who in (1, 2):
        world.learn(who, 0)
    for _ in range(3):
        world.ask(0, 0)
        world.cycle()
        world.check()
    assert sum(process.admission._held(world.newest).requests_per_minute or 0 for process in world.processes) == 50
