"""Several gateways and one limit: whatever happens, all of them together let in no more than it allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneplex.errors import RateLimited
from tuneplex.gateway.admission import Admission, Cost, Ticket
from tuneplex.identity import Limits, Subject
from tuneplex.policy import Lessor, ceiling, floor, periods_at
from tuneplex.types import GatewayReport, Leases, Spent, Stage, Used

NAME = "tenant acme"
BUDGETS = ("tokens_per_day", "money_per_month")
PRICE = 7  # of a token
MINUTE_S = 60
WALL = 1_000_000.0  # far from midnight, and from the end of a month: no test takes as long


class LetIn:
    """A request that was let in: when, and what it has reserved or used."""

    def __init__(self, at: float, tokens: int, ticket: Ticket) -> None:
        self.at = at
        self.tokens = tokens
        self.ticket = ticket
        self.cost = 0  # of a stream, up to now
        self.money = 0
        self.look()

    def look(self) -> None:
        """Note what is reserved for it."""
        self.money = sum(taken.reserved for taken in self.ticket._taken)

    def grow(self) -> bool:
        """A stream has said one more token; whether it goes on."""
        if self.ticket.ended_by(self.cost + PRICE):
            self.ticket.settle(self.tokens, self.cost)
            self.money = self.cost
            return False
        self.cost += PRICE
        self.look()
        return True


class News(NamedTuple):
    """What control has published: shares, after so many views, in the last of which there were so many gateways."""

    leases: Leases | None
    view: int
    gateways: int


class Process:
    """One gateway process: its admission, what it let in, and what was published to it that it has not taken yet."""

    def __init__(self, index: int, pid: int, latest: News, stage: Stage = Stage.SERVING) -> None:
        self.index = index
        self.pid = pid
        self.stage = stage
        self.admission = Admission(index)
        self.views = -1
        self.see(latest)
        self.inbox = [latest] if latest.leases is not None else []
        self.events: list[LetIn] = []
        self.under_way: list[LetIn] = []

    def report(self, now: float) -> GatewayReport:
        """What it says of itself."""
        used, held = self.admission.report(now, WALL + now)
        return GatewayReport(
            self.index,
            self.pid,
            0,
            used=used,
            held=held,
            leases=self.admission.generation,
            stage=self.stage,
            sharing=self.sharing,
        )

    def see(self, news: News) -> None:
        """Learn how many there are; what is older than what it knows cannot come any more."""
        if news.view > self.views:
            self.views, self.sharing = news.view, news.gateways
            self.admission.share_among(news.gateways)

    def take(self, news: News) -> None:
        """Go by shares that were published, and by all views before them."""
        self.see(news)
        if news.leases is not None:
            self.admission.lease(news.leases)
            if self.stage is Stage.JOINING and self.index in news.leases.welcome:
                self.stage = Stage.SERVING

    def is_over(self, now: float) -> bool:
        """Whether it has left its place, and nothing that it has let in counts by the minute any more."""
        recent = any(event.at > now - MINUTE_S - 1 for event in self.events)
        return self.stage is Stage.DRAINING and not self.under_way and not recent

    def let_in(self, now: float) -> tuple[int, int]:
        """Requests and tokens of the last minute."""
        recent = [event.tokens for event in self.events if event.at > now - MINUTE_S]
        return len(recent), sum(recent)

    def spent(self) -> dict[str, int]:
        """Of each limit that is for a period."""
        tokens, money = (sum(getattr(event, what) for event in self.events) for what in ("tokens", "money"))
        return dict(zip(BUDGETS, (tokens, money), strict=True))


class World:
    """A control and its gateways, between which everything can be late, lost or in another order."""

    def __init__(self, limits: Limits, gateways: int) -> None:
        self.subject = Subject(NAME, limits)
        self.now = 1000.0
        self.pids = count(1)
        self.indexes = count(gateways)
        self.latest = News(None, 0, gateways)
        self.handed_over = False
        self.replaced: tuple[Process, Process] | None = None  # the old one and the new one
        self.lessor = Lessor()
        self.reports: list[GatewayReport] = []
        self.heard_pids: dict[int, int] = {}
        # What was counted by process, as control keeps it in the store.
        self.counted: dict[str, dict[int, int]] = {kind: {} for kind in BUDGETS}
        self.dead = dict.fromkeys(BUDGETS, 0)
        self.lost_by_kills = dict.fromkeys(BUDGETS, 0)
        self.refused: RateLimited | None = None
        self.processes = [Process(index, next(self.pids), self.latest) for index in range(gateways)]

    def ask(self, index: int, tokens: int, least: int | None = None) -> bool:
        """One request at one gateway; whether it was let in."""
        process = self.processes[index % len(self.processes)]
        if process.stage is Stage.JOINING:
            return False
        cost = Cost(tokens * PRICE, (tokens if least is None else least) * PRICE)
        try:
            ticket = process.admission.admit((self.subject,), tokens, self.now, WALL + self.now, cost)
        except RateLimited as error:
            self.refused = error
            return False
        process.events.append(LetIn(self.now, tokens, ticket))
        process.under_way.append(process.events[-1])
        return True

    def stream(self, index: int, tokens: int) -> None:
        """A request for a stream, which needs one token at least."""
        self.ask(index, tokens, min(1, tokens))

    def grow(self, index: int, by: int) -> None:
        """The streams of a gateway go on, some beyond what was reserved for them, until their limit ends them."""
        process = self.processes[index % len(self.processes)]
        if self.subject.limits.cut_streams:
            for _ in range(by):
                process.under_way = [event for event in process.under_way if event.grow()]

    def burst(self, index: int, tokens: int) -> None:
        """Many requests at one gateway."""
        for _ in range(10):
            self.ask(index, tokens)

    def finish(self, index: int, _: int) -> None:
        """A request is over."""
        process = self.processes[index % len(self.processes)]
        if process.under_way:
            process.under_way.pop(0).ticket.settle(None)

    def wait(self, tenths: int, _: int = 0) -> None:
        """Time passes."""
        self.now += tenths / 10

    def rest(self, seconds: int, _: int = 0) -> None:
        """Much time passes."""
        self.now += 5 * seconds

    def send_report(self, index: int, _: int = 0) -> None:
        """A report is on its way."""
        self.reports.append(self.processes[index % len(self.processes)].report(self.now))

    def hear(self, which: int, lost: int = 1) -> None:
        """One of the reports under way arrives, or is lost."""
        if self.reports:
            report = self.reports.pop(which % len(self.reports))
            # Whatever a process has sent has arrived, if at all, before another one is in its place and heard.
            overtaken = report.pid < self.heard_pids.get(report.gateway, 0)
            if lost and not overtaken:
                self.heard_pids[report.gateway] = report.pid
                self.lessor.heard(report)
                for used in report.used.values():
                    for kind, told in used.spent.items():
                        known = self.counted[kind]
                        known[report.pid] = max(known.get(report.pid, 0), told.amount)

    def decide(self, _: int = 0, __: int = 0) -> None:
        """Control publishes shares, if there is something new."""
        spent = {kind: {NAME: sum(counts.values())} for kind, counts in self.counted.items() if any(counts.values())}
        now = periods_at(WALL + self.now)
        living = [process.index for process in self.processes]
        leases = self.lessor.decide({NAME: self.subject.limits}, living, now, spent)
        if leases is not None:
            self.latest = self.latest._replace(leases=leases)
            for process in self.processes:
                process.inbox.append(self.latest)

    def view(self, _: int = 0, __: int = 0) -> None:
        """Control publishes how many gateways there are, if that has changed."""
        if self.latest.gateways != len(self.processes):
            self.latest = self.latest._replace(view=self.latest.view + 1, gateways=len(self.processes))

    def see(self, index: int, _: int = 0) -> None:
        """The latest view arrives."""
        self.processes[index % len(self.processes)].see(self.latest)

    def take(self, index: int, which: int = 0) -> None:
        """One of the publications under way arrives, not always in order."""
        process = self.processes[index % len(self.processes)]
        if process.inbox:
            process.take(process.inbox.pop(which % len(process.inbox)))

    def exchange(self, heard: int, reached: int) -> None:
        """Some are heard, and what follows from it reaches some, before anything else that is under way."""
        for index in range(len(self.processes)):
            if heard >> index & 1:
                self.send_report(index)
                self.hear(-1)
        self.decide()
        for index in range(len(self.processes)):
            if reached >> index & 1:
                self.take(index, -1)

    def kill(self, index: int, _: int) -> None:
        """A gateway dies with all that it knew, and another process takes its place.

        Not one that holds less than its part of the even half, as after a hand-over: with that its successor begins.
        """
        index %= len(self.processes)
        old = self.processes[index]
        if self.holds_little(old):
            return
        if old.stage is not Stage.JOINING:
            for kind, spent in old.spent().items():
                self.dead[kind] += spent
                least = floor(getattr(self.subject.limits, kind) or 0, old.sharing)
                self.lost_by_kills[kind] += max(least, spent)
        if old.stage is Stage.SERVING:
            self.processes[index] = new = Process(old.index, next(self.pids), self.latest)
            while self.handed_over and new.inbox:  # then parts of the even half change, and a process waits for its own
                self.take(index)
        else:
            del self.processes[index]
        if self.replaced is not None and old is self.replaced[1]:
            self.replaced = None
        elif self.replaced is not None and old is self.replaced[0]:
            self.replaced = self.processes[index], self.replaced[1]

    def holds_little(self, process: Process) -> bool:
        """Whether its shares are smaller than what a gateway that was told nothing goes by."""
        told, untold = process.admission._held(self.subject), Process(-1, 0, self.latest).admission._held(self.subject)
        amounts = zip(msgspec.structs.astuple(told), msgspec.structs.astuple(untold), strict=True)
        return any(amount < least for amount, least in amounts if amount is not None and least is not None)

    def join(self, index: int = 0, _: int = 0) -> None:
        """Another process begins to take the place of a gateway."""
        old = self.processes[index % len(self.processes)]
        if self.replaced is None and old.stage is Stage.SERVING and len(self.processes) < 6:
            new = Process(next(self.indexes), next(self.pids), self.latest, Stage.JOINING)
            self.processes.append(new)
            self.replaced = old, new
            self.handed_over = True

    def leave(self, _: int = 0, __: int = 0) -> None:
        """The new one serves, so the old one is told to finish what it has."""
        if self.replaced is not None and self.replaced[1].stage is Stage.SERVING:
            self.replaced[0].stage = Stage.DRAINING
            self.replaced = None

    def end(self, index: int, _: int = 0) -> None:
        """One that has finished ends; its last report is heard."""
        index %= len(self.processes)
        old = self.processes[index]
        if old.is_over(self.now):
            self.reports = [report for report in self.reports if report.pid != old.pid]
            self.send_report(index)
            self.hear(-1)
            for kind, spent in old.spent().items():
                self.dead[kind] += spent
            del self.processes[index]

    def restart_control(self, _: int, __: int) -> None:
        """Control dies and another begins; what was under way is lost with the connections."""
        self.lessor = Lessor()
        self.lessor._patience = 0  # so that those who were not heard are not waited for
        self.latest = self.latest._replace(leases=None)
        self.reports = []
        for process in self.processes:
            process.inbox = []

    def cycle(self, _: int = 0, __: int = 0) -> None:
        """A second as it should be."""
        self.wait(10)
        self.view()
        for index in range(len(self.processes)):
            self.see(index)
            self.send_report(index)
        while self.reports:
            self.hear(0)
        self.decide()
        for index, process in enumerate(self.processes):
            while process.inbox:
                self.take(index)
        self.leave()

    def check(self) -> None:
        """Nothing was let in that should not have been, and nobody may let in more than there is."""
        limits = self.subject.limits
        serving = (process for process in self.processes if process.stage is not Stage.JOINING)
        held = [process.admission._held(self.subject) for process in serving]
        for kind in ("requests_per_minute", "tokens_per_minute", "concurrent"):
            limit = getattr(limits, kind)
            assert limit is None or sum(getattr(one, kind) for one in held) <= limit, f"{kind} is held too often"
        let_in = [process.let_in(self.now) for process in self.processes]
        assert sum(one[0] for one in let_in) <= (limits.requests_per_minute or 10**9)
        assert sum(one[1] for one in let_in) <= (limits.tokens_per_minute or 10**9)
        assert sum(len(process.under_way) for process in self.processes) <= (limits.concurrent or 10**9)
        for kind in BUDGETS:
            spent = sum(process.spent()[kind] for process in self.processes) + self.dead[kind]
            assert spent <= (getattr(limits, kind) or 10**9) + self.lost_by_kills[kind], kind


# What happens, and how often; each takes two numbers.
STEPS: dict[Callable[[World, int, int], object], int] = {
    World.ask: 4,
    World.burst: 8,
    World.stream: 4,
    World.grow: 4,
    World.finish: 4,
    World.wait: 2,
    World.rest: 1,
    World.send_report: 2,
    World.hear: 2,
    World.decide: 1,
    World.take: 4,
    World.exchange: 8,
    World.cycle: 2,
    World.kill: 1,
    World.restart_control: 1,
    World.view: 1,
    World.see: 1,
    World.join: 1,
    World.leave: 1,
    World.end: 2,
}
ALL_STEPS = [step for step, weight in STEPS.items() for _ in range(weight)]
KINDS = (
    Limits(requests_per_minute=1),
    Limits(requests_per_minute=3),
    Limits(requests_per_minute=12),
    Limits(tokens_per_minute=100),
    Limits(concurrent=1),
    Limits(concurrent=7),
    Limits(tokens_per_day=100),
    Limits(requests_per_minute=9, tokens_per_minute=90, tokens_per_day=150, concurrent=5),
    Limits(money_per_month=100 * PRICE),
    Limits(money_per_month=100 * PRICE + 3, cut_streams=True),
    Limits(tokens_per_day=200, money_per_month=120 * PRICE, cut_streams=True, concurrent=6),
)


@settings(max_examples=300)
@given(st.randoms(use_true_random=True))
def test_all_gateways_together_keep_to_the_limit(chance: Random) -> None:
    """Whatever is late, lost, in another order or dead: only what a killed process has forgotten can come on top."""
    world = World(chance.choice(KINDS), chance.randint(1, 4))
    for _ in range(chance.randint(20, 150)):
        chance.choice(ALL_STEPS)(world, chance.randint(0, 15), chance.randint(0, 15))
        world.check()


def share(world: World, index: int) -> int:
    """What a gateway may let in within a minute."""
    return world.processes[index].admission._held(world.subject).requests_per_minute or 0


def ask_all(world: World, per_second: Mapping[int, int]) -> None:
    """So many requests at each gateway within a second as it should be."""
    for index, amount in per_second.items():
        for _ in range(amount):
            world.ask(index, 0)
    world.cycle()
    world.check()


def test_a_single_busy_gateway_gets_all_but_the_even_half() -> None:
    """Within three seconds it has what the idle ones may give up, and when demand moves, so do the shares."""
    world = World(Limits(requests_per_minute=120), 3)
    for _ in range(3):
        ask_all(world, {0: 60})
    assert [share(world, index) for index in range(3)] == [ceiling(120, 3), 20, 20]
    for _ in range(63):
        ask_all(world, {1: 60})
    assert [share(world, index) for index in range(3)] == [20, ceiling(120, 3), 20]
    assert sum(process.let_in(world.now)[0] for process in world.processes) == ceiling(120, 3)


def test_nobody_is_at_nothing_while_there_is_one_for_each() -> None:
    """A gateway that has just started and was told nothing can let in its part of the even half at once."""
    world = World(Limits(requests_per_minute=4), 4)
    for _ in range(10):
        ask_all(world, {0: 5})
    world.restart_control(0, 0)
    world.kill(3, 0)
    assert share(world, 3) == 1
    assert world.ask(3, 0)
    world.check()


def test_fewer_than_gateways_go_where_they_are_wanted() -> None:
    """One request at a time for four gateways: whoever asks again and again gets it within seven seconds."""
    world = World(Limits(concurrent=1), 4)
    for index in (2, 3):
        seconds = 0
        while not world.ask(index, 0):
            world.cycle()
            world.check()
            seconds += 1
        world.finish(index, 0)
        assert seconds <= 7


def test_a_limit_that_is_lowered_meanwhile() -> None:
    """Each gateway goes by the new one at once, before it was told of new shares, and then gets its part of it."""
    world = World(Limits(requests_per_minute=100), 2)
    for _ in range(3):
        ask_all(world, {0: 20})
    assert share(world, 0) == 75
    world.subject = Subject(NAME, Limits(requests_per_minute=40))
    assert share(world, 0) + share(world, 1) <= 40
    assert not world.ask(0, 0)
    world.now += 60
    for _ in range(3):
        ask_all(world, {0: 10})
    assert share(world, 0) == 30


def test_a_limit_that_is_lowered_before_control_restarts() -> None:
    """The new control gives nobody what a gateway that it has not heard may hold, however much others still use."""
    world = World(Limits(concurrent=50), 2)
    for _ in range(3):
        for index in (0, 1):
            world.burst(index, 0)
        world.cycle()
    world.subject = Subject(NAME, Limits(concurrent=3))
    for _ in range(3):
        world.cycle()
        world.ask(1, 0)
    world.restart_control(0, 0)
    world.exchange(0b10, 0b11)
    assert sum(process.admission._held(world.subject).concurrent or 0 for process in world.processes) <= 3


def test_a_period_that_is_over_does_not_count() -> None:
    """A gateway that has not let in anything since says what it had let in before, and that is of no interest."""
    limits = Limits(tokens_per_day=100, money_per_month=100)
    for period, left in ((5, 100), (6, 10), (7, 10)):  # a clock may be ahead
        lessor = Lessor()
        lessor.heard(GatewayReport(0, 1, 0, used={NAME: Used(spent={kind: Spent(period, 90) for kind in BUDGETS})}))
        leases = lessor.decide({NAME: limits}, (0,), dict.fromkeys(BUDGETS, 6), {})
        assert leases is not None
        assert leases.left[NAME] == dict.fromkeys(BUDGETS, left)


def test_the_money_of_a_month_goes_on_in_the_next_process() -> None:
    """What a process has spent is not there for the one that takes its place, once control has told it."""
    world = World(Limits(money_per_month=100 * PRICE), 1)
    for _ in range(6):
        world.ask(0, 15)
        world.cycle()
    world.kill(0, 0)
    world.take(0)
    assert not world.ask(0, 15)
    assert world.ask(0, 10)
    world.cycle()
    world.finish(0, 0)
    assert not world.ask(0, 1)
    assert world.refused is not None
    assert world.refused.code == "insufficient_quota"


def test_a_day_goes_on_in_the_next_process() -> None:
    """What a process has used of the day is not there for the one that takes its place, once control has told it."""
    world = World(Limits(tokens_per_day=100), 1)
    for _ in range(6):
        world.ask(0, 15)
        world.cycle()
    world.kill(0, 0)
    world.take(0)
    assert not world.ask(0, 15)
    assert world.ask(0, 10)
    world.cycle()
    assert not world.ask(0, 1)
    assert world.refused is not None
    assert world.refused.retry_after_s is not None
    assert world.refused.retry_after_s > 3600
