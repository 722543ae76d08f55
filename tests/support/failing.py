"""Four replicas that fail at random, and a stand-in for control that notices it a little late."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from tests.support.front import VERSIONS
from tuneplex.gateway import Gateway
from tuneplex.testing import FakeEngine, Record, Script
from tuneplex.types import FleetView, Replica, ReplicaState

__all__ = ["Chronicle", "Fleet", "Storm"]

_GENERATING = "completions"
_APART_S = 1.5  # between two deaths, so that a request that dies twice without a token in between is rare
_RECOVERY_S = 1.5  # until the breaker of a replica that came back has closed
_DARK_S = 20.0  # between two times that all of them die
_NEAR = 12  # tokens that an engine may have sent just before it died, and that nobody has read any more
_DEADLY = frozenset({"dies", "loses its core"})
_WEIGHTS = (4, 3, 2, 2, 2)
_SHOTS = (
    Script(reset_before_headers=True),
    Script(silent_before_headers=True),
    Script(raw="SSH-2.0-OpenSSH_9.2\r\n"),
    Script(raw="HTTP/1.1 429 x\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}"),
    Script(status=503),
    Script(reset_after_chunks=2, between_chunks_s=0.05),
    Script(close_after_chunks=3, between_chunks_s=0.05),
    Script(silent_after_chunks=4, between_chunks_s=0.05),
    Script(drop_done=True, between_chunks_s=0.05),
)


class _Asked(msgspec.Struct):
    stream: bool = False


class Chronicle:
    """Which requests were under way at which deaths.

    Attributes:
        deaths: By id, for each death: how many tokens the request had then, its prompt among them; 0 if nobody could
            know of any, because an engine that was about to end has refused it, or its reply does not come in pieces.
    """

    def __init__(self) -> None:
        self.deaths: defaultdict[str, list[int]] = defaultdict(list)

    def died(self, engine: FakeEngine, sent: Iterable[str], since: float = 0.0) -> None:
        """An engine ends now, with all that is under way; or it has lost its core then, with all that came since.

        Args:
            engine: Which; what is under way there is not counted twice.
            sent: Ids of the requests that have been sent to it, though it may not have read all of them yet.
            since: When it lost its core, as `Record.received_at` has it.
        """
        known = {_id(record): record for record in engine.requests if _GENERATING in record.path}
        dying = {name for name, one in known.items() if (one.received_at >= since if since else not one.ended.is_set())}
        engine.requests.clear()  # each dies once
        for name in dying | (set(sent) - known.keys()):
            record = known.get(name)
            self.deaths[name].append(0 if record is None else _told(record))

    def may_be_deadly(self, name: str) -> bool:
        """Whether two engines in a row have ended with this request under way and no new token of it in between."""
        tokens = self.deaths[name]
        return any(later - earlier <= _NEAR for earlier, later in itertools.pairwise(tokens))


class Seat:
    """One replica.

    Attributes:
        name: Its name.
        engine: Its engine, the last one while there is none.
        known: What control says of it.
        dead: That engine has died.
        well_from: From when on it is well; infinite while it is in trouble.
    """

    def __init__(
        self, name: str, known: Callable[[str, str, ReplicaState], Replica], pace_s: Callable[[], float]
    ) -> None:
        self.name = name
        self.well_from = 0.0
        self.dead = False
        self._known = known
        self._pace_s = pace_s
        self.engine = self._new(0)
        self.known = known(name, "", ReplicaState.STARTING)

    def _new(self, port: int) -> FakeEngine:
        pace_s = self._pace_s()
        script = Script(between_chunks_s=pace_s, before_first_chunk_s=pace_s)
        engine = FakeEngine("base", adapters=VERSIONS.values(), port=port, default=script)
        engine.script(*[Script()] * 1000, path="/health")  # which says nothing of how it answers
        return engine

    async def start(self, *, again: bool = False) -> None:
        """Start an engine, `again` at the same address."""
        self.engine = self._new(int(self.engine.url.rpartition(":")[2]) if again else 0)
        await self.engine.__aenter__()
        self.dead = False

    async def stop(self) -> None:
        """End the engine."""
        await self.engine.__aexit__(None, None, None)

    def say(self, state: ReplicaState) -> None:
        """What control knows from now on."""
        self.known = self._known(self.name, self.engine.endpoint if state is ReplicaState.READY else "", state)


class Fleet:
    """The replicas, and control's view of them.

    Args:
        view: Without replicas.
        dice: Decides what is random.
        pace_s: Between two tokens, at least and at most.
        concurrent: Requests that each replica takes.
    """

    def __init__(self, view: FleetView, dice: random.Random, pace_s: tuple[float, float], concurrent: int) -> None:
        self._whole = view
        self._concurrent = concurrent
        self._gateway: Gateway | None = None
        self._generation = view.generation
        self.seats = [Seat(f"r{number}", self._replica, lambda: dice.uniform(*pace_s)) for number in range(4)]

    def _replica(self, name: str, endpoint: str, state: ReplicaState) -> Replica:
        versions = {model.version: model.version for model in self._whole.models.values()}
        ready = state is ReplicaState.READY
        return Replica(
            name,
            "default",
            "vllm",
            endpoint,
            state=state,
            serves=versions if ready else {},
            concurrent=self._concurrent,
            context=8192,
            awaited=frozenset() if ready else frozenset(versions),
        )

    async def start(self) -> FleetView:
        """Start all of them; the view of that."""
        for seat in self.seats:
            await seat.start()
            seat.say(ReplicaState.READY)
        return self.view()

    async def stop(self) -> None:
        """End all of them."""
        for seat in self.seats:
            await seat.stop()

    def tell(self, gateway: Gateway) -> None:
        """Tell this gateway of changes."""
        self._gateway = gateway

    def view(self) -> FleetView:
        """What control knows."""
        self._generation += 1
        replicas = tuple(seat.known for seat in self.seats)
        return msgspec.structs.replace(self._whole, generation=self._generation, replicas=replicas)

    def say(self, seat: Seat, state: ReplicaState) -> None:
        """Control notices something."""
        seat.say(state)
        if self._gateway is not None:
            self._gateway.update(self.view())

    def under_way(self, seat: Seat) -> list[str]:
        """The ids of the requests that the gateway has sent there, and that have not ended."""
        attempts = () if self._gateway is None else self._gateway.ledger.attempts
        return [one.exchange.request_id.decode() for one in attempts if one.upstream.replica.name == seat.name]

    def forget(self) -> None:
        """Let engines forget what they are done with."""
        for seat in self.seats:
            seat.engine.requests[:] = [one for one in seat.engine.requests if not one.ended.is_set() or _is_new(one)]


def _told(record: Record) -> int:
    """How many tokens somebody may know of."""
    if not msgspec.json.decode(record.body, type=_Asked).stream:
        return 0
    return len(record.prompt_ids) + sum(map(len, record.reply_ids))


def _id(record: Record) -> str:
    """As the client has sent it."""
    return record.headers["x-request-id"].rpartition("-")[0]


def _is_new(record: Record) -> bool:
    return time.perf_counter() - record.received_at < 5  # may still be asked for


class Storm:
    """All that happens to the replicas, by chance; the same chances for the same seed.

    At least one replica is well at any time, but when all die at once, and then control brings all of them back.

    Attributes:
        happened: How often what happened.
        chronicle: Who was under way when engines ended.
    """

    def __init__(self, fleet: Fleet, dice: random.Random) -> None:
        self.happened: Counter[str] = Counter()
        self.chronicle = Chronicle()
        self._fleet = fleet
        self._dice = dice
        self._died_at = time.monotonic()
        self._dark_from = self._died_at + 3
        self._faults: dict[str, Callable[[Seat], Awaitable[None]]] = {
            "dies": self._dies,
            "loses its core": self._loses_core,
            "hangs": self._hangs,
            "is unavailable": self._is_unavailable,
            "is slow": self._is_slow,
        }

    async def run(self, until: float) -> None:
        """Rage until then, on the clock of `time.monotonic`, and let everything come back."""
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until:
                await asyncio.sleep(self._dice.uniform(0.05, 0.6))
                self._fleet.forget()
                self._happen(group)

    def _happen(self, group: asyncio.TaskGroup) -> None:
        now, dice = time.monotonic(), self._dice
        well = [seat for seat in self._fleet.seats if seat.well_from <= now]
        if now > self._dark_from:
            self._darken(group, well, now)
        elif dice.random() < 0.3:
            seat = dice.choice(self._fleet.seats)
            if well != [seat]:
                self._small(seat, now)
        elif len(well) > 1:
            name = dice.choices(list(self._faults), _WEIGHTS)[0]
            if name not in _DEADLY or self._may_die(now):
                self.happened[name] += 1
                group.create_task(self._in_trouble(dice.choice(well), self._faults[name]))

    def _darken(self, group: asyncio.TaskGroup, well: list[Seat], now: float) -> None:
        """Once all are well, all die."""
        if len(well) == len(self._fleet.seats) and self._may_die(now):
            self._dark_from = now + _DARK_S
            self.happened["all die"] += 1
            for seat in well:
                self._kill(seat)
            for seat in well:
                group.create_task(self._in_trouble(seat, self._comes_back))

    def _may_die(self, now: float) -> bool:
        if now - self._died_at < _APART_S:
            return False
        self._died_at = now
        return True

    async def _in_trouble(self, seat: Seat, fault: Callable[[Seat], Awaitable[None]]) -> None:
        seat.well_from = float("inf")
        await fault(seat)
        seat.well_from = time.monotonic() + _RECOVERY_S

    # --- small ones

    def _small(self, seat: Seat, now: float) -> None:
        """Something goes wrong with single requests."""
        dice = self._dice
        if dice.random() < 0.5:
            seat.engine.reset(lambda: dice.random() < 0.1)
            self.happened["resets"] += 1
        else:
            seat.engine.script(*dice.choices(_SHOTS, k=dice.randrange(1, 4)))
            self.happened["shots"] += 1
        seat.well_from = max(seat.well_from, now + _RECOVERY_S)

    # --- large ones

    async def _dies(self, seat: Seat) -> None:
        """Its process is killed."""
        if self._dice.random() < 0.7:
            await self._comes_back(seat)
        else:
            await self._comes_back_unnoticed(seat)

    async def _comes_back(self, seat: Seat, since: float = 0.0) -> None:
        """Control notices that it has died, starts another one, and notices that."""
        await self._die(seat, since)
        await self._notice()
        self._fleet.say(seat, ReplicaState.STARTING)
        await asyncio.sleep(self._dice.uniform(0.1, 2))
        await seat.start(again=self._dice.random() < 0.5)
        await self._notice()
        self._fleet.say(seat, ReplicaState.READY)

    async def _comes_back_unnoticed(self, seat: Seat) -> None:
        """As an engine that somebody else starts: it is back where it was before control has seen anything."""
        await self._die(seat)
        await asyncio.sleep(self._dice.uniform(0.2, 3))
        await seat.start(again=True)

    async def _die(self, seat: Seat, since: float = 0.0) -> None:
        self._kill(seat, since)
        await seat.stop()

    def _kill(self, seat: Seat, since: float = 0.0) -> None:
        if seat.dead:
            return
        seat.dead = True
        self.chronicle.died(seat.engine, () if since else self._fleet.under_way(seat), since)
        seat.engine.die()

    async def _notice(self) -> None:
        await asyncio.sleep(self._dice.uniform(0.1, 1))

    async def _loses_core(self, seat: Seat) -> None:
        """It runs out of memory, and says so until its process ends."""
        since = time.perf_counter()
        self.chronicle.died(seat.engine, self._fleet.under_way(seat))
        seat.engine.lose_core()
        await asyncio.sleep(self._dice.uniform(0.1, 0.6))
        await self._comes_back(seat, since)

    async def _hangs(self, seat: Seat) -> None:
        """It says nothing for a while."""
        seat.engine.hang()
        await asyncio.sleep(self._dice.uniform(0.5, 7))
        seat.engine.go_on()

    async def _is_unavailable(self, seat: Seat) -> None:
        """It refuses what is new."""
        await self._differs(seat, Script(status=503))

    async def _is_slow(self, seat: Seat) -> None:
        """What is new takes long."""
        await self._differs(seat, Script(before_headers_s=0.5, before_first_chunk_s=0.5, between_chunks_s=0.1))

    async def _differs(self, seat: Seat, script: Script) -> None:
        before, seat.engine.default = seat.engine.default, script
        await asyncio.sleep(self._dice.uniform(0.5, 3))
        seat.engine.default = before
