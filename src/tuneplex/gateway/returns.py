"""Requests that have lost their replica: which of them get another one, when, and what they are told otherwise.

A request whose client has got nothing begins anew; a stream that has begun goes on where it broke off, if it can be
continued (`engines.continuing`). Until another replica has a place for it, it waits here, before everything that waits
in the room: somebody reads it already. All that goes out has passed `policy.eligible` just before.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from tuneplex.engines.resuming import Seam
from tuneplex.errors import ApiError, NotFound, Quarantined
from tuneplex.gateway.answers import STREAM_HEADERS
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.attempt import Attempt
from tuneplex.gateway.choosing import as_it_is_now
from tuneplex.gateway.counters import Outcome
from tuneplex.gateway.doubts import Doubts
from tuneplex.gateway.heads import EVENT_STREAM
from tuneplex.gateway.health import Health
from tuneplex.gateway.ledger import Ledger
from tuneplex.gateway.places import Places
from tuneplex.gateway.relay import Relay
from tuneplex.gateway.tokens import TokenCounter
from tuneplex.gateway.upstreams import Upstreams
from tuneplex.log import get_logger
from tuneplex.policy import DEATHS, Budget, End, backoff_s
from tuneplex.types import FleetView, GatewaySettings, Replica, ReplicaState, Retries, Route

__all__ = ["Desk", "Returns"]

_log = get_logger(__name__)

_DISPATCHED_AT_ONCE = 16  # and no more, so that streams go on in between
_LOOKED_AT_ONCE = 50
_DOUBTED = frozenset({End.UNREACHABLE, End.BROKEN, End.DEAD})
_THERE = frozenset({End.COMPLETE, End.BUSY, End.UNAVAILABLE, End.FAILED, End.REFUSED})
_LEAVES_EARLY_S = 1.0  # before its replica is stopped: it takes about as long to tell it


class Desk(Protocol):
    """Who knows the fleet."""

    view: FleetView

    def find(self, asked: Asked) -> tuple[tuple[Replica, ...], tuple[Replica, ...]]:
        """The replicas that may take a request now; where there are none, those that will.

        Raises:
            ApiError: There are none, either.
        """

    def coming(self, asked: Asked) -> tuple[Replica, ...]:
        """The replicas that will be able to take a request, whether there are others or not."""


class _Back(msgspec.Struct):
    """A request that waits here.

    Attributes:
        error: What its client is told if nothing comes of it.
        end: How its last attempt ended.
        same_from: When replicas that it has been sent to may be tried again, if no other one can take it.
        until: How long it may wait.
        comment_at: When its client is told next that it waits.
        seam: Where a stream goes on; None for a request that begins anew.
    """

    error: ApiError
    end: End
    same_from: float
    until: float
    comment_at: float
    seam: Seam | None = None


class Returns:
    """The requests of one gateway that have lost their replica.

    Args:
        desk: Knows the fleet.
        ledger: Knows what is under way.
        places: Knows where there is room.
        ways: To the replicas.
        doubts: Knows which replicas may be gone.
        health: Knows which replicas fail.
        tokens: Has the base's tokenizer.
        soon: Calls something a little later, on the event loop.
        clock: Seconds that only go forward.
        wall: Unix time; `Replica.leave_at` is on it.
        random: Numbers from 0 to 1.

    Attributes:
        settings: Of the gateway, as they are now.
        budget: Of what is sent again.
    """

    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        places: Places,
        *,
        ways: Upstreams,
        doubts: Doubts,
        health: Health,
        tokens: TokenCounter,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        wall: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self.settings = GatewaySettings()
        self.budget = Budget(Retries(), clock())
        self.migrates = False
        self._desk = desk
        self._places = places
        self._ways = ways
        self._doubts = doubts
        self._health = health
        self._ledger = ledger
        self._counters = ledger.counters
        self._tokens = tokens
        self._soon = soon
        self._clock = clock
        self._wall = wall
        self._random = random
        self._waiting: dict[Relay, _Back] = {}
        self._leaving: dict[str, float] = {}
        self._awake = False
        self._looked = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def wanted(self) -> Iterator[tuple[str, Sequence[Replica]]]:
        """Of each that waits its tenant, and the replicas that may take it now, or will."""
        for relay in self._waiting:
            with contextlib.suppress(ApiError):
                ready, coming = self._find(relay)
                yield relay.asked.charge.tenant, ready or coming

    # --- what changes

    def update(self, view: FleetView) -> None:
        """Go by this view from now on."""
        self.settings = view.settings
        self.migrates = view.settings.migrate and bool(view.tokenizer)
        self.budget.settings = view.settings.retries
        self._leaving = {
            replica.name: replica.leave_at - _LEAVES_EARLY_S
            for replica in view.replicas
            if replica.state is ReplicaState.DRAINING and replica.leave_at is not None
        }
        for relay, back in tuple(self._waiting.items()):
            self._out(relay)
            self._wait(relay, back)
        self.served()

    def served(self) -> None:
        """There may be places now that were not there before."""
        if self._waiting and not self._awake:
            self._awake = True
            self._soon(self._serve)

    # --- what becomes of attempts (see `relay.Host`)

    def began(self, attempt: Attempt) -> None:
        """It is about to be sent."""
        attempt.era = self._health.began(attempt.upstream.replica.name)
        self._places.began(attempt)

    def answers(self, attempt: Attempt) -> None:
        """The first part of an answer has come."""
        self._health.answered(attempt.upstream.replica.name, attempt.era)
        relay = attempt.relay
        if relay.hedge is not None:
            self._counters.hedged(relay.asked.model.name, won=attempt is relay.hedge)
            relay.hedge = None

    def ended(self, attempt: Attempt) -> None:
        """It is over."""
        self._health.ended(attempt.upstream.replica.name, attempt.era, attempt.verdict)
        self._places.ended(attempt)
        if attempt.ended in _DOUBTED:
            upstream = self._ways.find(attempt.upstream.replica)
            if upstream is not None:
                self._doubts.doubt(upstream)
        elif attempt.ended in _THERE:
            self._doubts.answered(attempt.upstream)
        self.served()

    def failed(self, attempt: Attempt, error: ApiError) -> bool:
        """Whether its request gets another one, or another one is under way."""
        relay = attempt.relay
        relay.lost(attempt)
        if relay.attempts:
            return True  # whatever it is: the other one would be answered without this one, too
        # What one engine has taken another one may refuse only for reasons of its own.
        again = attempt.verdict.again or (relay.begun and not attempt.answers and attempt.ended is End.REFUSED)
        if attempt.ended is not End.STOPPED and (not again or relay.tries >= self.settings.retries.tries):
            return False
        return self._moves(relay, attempt, error) if relay.begun else self._tries_again(relay, attempt, error)

    def _tries_again(self, relay: Relay, attempt: Attempt, error: ApiError) -> bool:
        """Begin anew, if that is not too much now."""
        self._renew(relay)
        back = self._back(relay, attempt, error)
        if not self._has_prospects(relay):
            return False
        if attempt.ended is not End.STOPPED and not self.budget.take(self._clock()):
            self._counters.not_retried(relay.asked.model.name)
            error.retry_after_s = error.retry_after_s or 1
            return False
        self._wait(relay, back)
        return True

    def _moves(self, relay: Relay, attempt: Attempt, error: ApiError) -> bool:
        """Go on where the stream broke off; where that is, is found out in another thread."""
        journal = relay.journal
        if not self.migrates or journal is None or not journal.continuable_now:
            return False

        def found(seam: Seam | None) -> None:
            if relay.over:
                return
            back = self._back(relay, attempt, error, seam)
            if seam is not None and self._has_prospects(relay):
                self._wait(relay, back)
            else:
                relay.give_up_after(attempt.ended, error)

        self._tokens.work(journal.seam, found)
        return True

    def _back(self, relay: Relay, attempt: Attempt, error: ApiError, seam: Seam | None = None) -> _Back:
        now, verdict, waiting = self._clock(), attempt.verdict, self.settings.waiting
        return _Back(
            error,
            attempt.ended,
            now + max(backoff_s(relay.tries, self._random), verdict.hold_s),
            min(relay.asked.deadline, now + waiting.longest_s),
            now + waiting.comment_s if relay.asked.stream else math.inf,
            seam,
        )

    def _wait(self, relay: Relay, back: _Back) -> None:
        """Let it wait for a place."""
        self._renew(relay)
        self._waiting[relay] = back
        self._places.waits(relay.asked.model.version)
        self.served()

    def _renew(self, relay: Relay) -> None:
        """What begins anew is for the model as it is now: there may be no engine with the old version any more."""
        asked = relay.asked
        if not relay.begun:
            with contextlib.suppress(NotFound):
                asked.model = as_it_is_now(self._desk.view, asked)

    def _out(self, relay: Relay) -> None:
        """It waits no longer."""
        del self._waiting[relay]
        self._places.waits_no_more(relay.asked.model.version)

    def _has_prospects(self, relay: Relay) -> bool:
        """Whether there is anything to wait for."""
        try:
            ready, _ = self._find(relay)
        except ApiError:
            return False
        if self._desk.coming(relay.asked) or any(replica.name in self._doubts for replica in ready):
            return True
        return any(replica.endpoint not in relay.tried or self._is_worth(relay, replica) for replica in ready)

    def _find(self, relay: Relay) -> tuple[tuple[Replica, ...], tuple[Replica, ...]]:
        """As `Desk.find`; for a stream that has begun, only replicas that can continue it are ready."""
        ready, coming = self._desk.find(relay.asked)
        return tuple(filter(self._continues, ready)) if relay.begun else ready, coming

    def _continues(self, replica: Replica) -> bool:
        return Route.COMPLETIONS in replica.routes and self._ways[replica].dialect.continues

    def _is_worth(self, relay: Relay, replica: Replica) -> bool:
        """Whether it is worth another try. If it is gone, control may know more than we; it will say so."""
        return replica.endpoint not in relay.spent and not self._doubts.is_away(self._ways[replica])

    def silent(self, relay: Relay) -> None:
        """Ask another replica beside the one that says nothing."""
        try:
            ready, _ = self._desk.find(relay.asked)
            first = relay.attempts[0].upstream.replica.endpoint
            replica = self._places.choose([one for one in ready if one.endpoint != first], relay.asked.model)
            if replica is not None and self.budget.take(self._clock()):
                relay.hedge = relay.attempt(self._ways[replica])
        except ApiError:
            return

    def forget(self, relay: Relay) -> None:
        """It is over."""
        if relay in self._waiting:
            self._out(relay)
            if not self._waiting:  # else it is done when they are looked at
                self._places.settle()

    # --- turns

    def _serve(self) -> None:
        """Let go whoever can, those that have waited longest first."""
        self._awake = False
        gone, free = 0, self._places.free()
        for relay, back in tuple(self._waiting.items()):
            if not free or gone == _DISPATCHED_AT_ONCE:
                break
            version = relay.asked.model.version
            if relay in self._waiting and any(version in one.serves for one in free) and self._goes(relay, back):
                gone, free = gone + 1, self._places.free()
        if self._places.settle() or gone == _DISPATCHED_AT_ONCE:
            self.served()

    def _goes(self, relay: Relay, back: _Back) -> bool:
        """Send it to a replica, if there is one; whether something was sent."""
        if self._is_suspect(relay):
            return False
        try:
            replica = self._choose(relay, back)
            if replica is None:
                return False
            self._out(relay)
            self._send(relay, back, replica)
        except ApiError:
            relay.give_up_after(back.end, back.error)
        except Exception:  # noqa: BLE001 - the last resort: the others must have their turns
            _log.exception("a request could not be sent again", request_id=relay.exchange.request_id.decode())
            relay.give_up_after(back.end, back.error)
        return True

    def _choose(self, relay: Relay, back: _Back) -> Replica | None:
        asked = relay.asked
        ready, _ = self._find(relay)
        found = self._places.choose([one for one in ready if one.endpoint not in relay.tried], asked.model)
        if found is not None or self._clock() < back.same_from:
            return found
        return self._places.choose([one for one in ready if self._is_worth(relay, one)], asked.model)

    def _send(self, relay: Relay, back: _Back, replica: Replica) -> None:
        name = relay.asked.model.name
        if back.seam is None:
            self._counters.retried(name, back.end.value)
        else:
            relay.resume(back.seam)
            self._counters.migrated(name, back.end.value)
        relay.attempt(self._ways[replica])

    def _is_suspect(self, relay: Relay) -> bool:
        """Whether it may be what engines die of; if it is, by all that can be known, it ends here."""
        died = [True if loss.sure else self._doubts.died(loss.upstream, loss.at) for loss in relay.losses]
        if died.count(True) >= DEATHS:
            self._counters.quarantined(relay.asked.model.name)
            relay.give_up(Quarantined(), Outcome.BROKEN)
            return True
        return len(died) - died.count(False) >= DEATHS

    # --- time

    def tick(self, now: float) -> None:
        """Look after those that have waited long enough, and those whose replica goes away."""
        if self._leaving:
            self._leave()
        if not self._waiting:
            return
        waiting = tuple(self._waiting.items())
        first, self._looked = self._looked, self._looked + _LOOKED_AT_ONCE
        for number, (relay, back) in enumerate(waiting):
            looks = (number - first) % len(waiting) < _LOOKED_AT_ONCE
            if looks and self._is_suspect(relay):
                continue
            if back.until <= now or (looks and not self._has_prospects(relay)):
                relay.give_up_after(back.end, back.error)
            elif back.comment_at <= now:
                back.comment_at = now + self.settings.waiting.comment_s
                _say(relay)
        self.served()

    def _leave(self) -> None:
        """Take away from replicas that go away what can go on elsewhere."""
        wall = self._wall()
        leaving = {name for name, at in self._leaving.items() if at <= wall}
        for attempt in [one for one in self._ledger.attempts if one.upstream.replica.name in leaving]:
            self._take_away(attempt)

    def _take_away(self, attempt: Attempt) -> None:
        relay = attempt.relay
        journal = relay.journal
        stays = relay.begun and (not self.migrates or journal is None or not journal.continuable_now)
        if stays or relay.attempts != [attempt] or not self._has_elsewhere(relay):
            return
        attempt.leave()

    def _has_elsewhere(self, relay: Relay) -> bool:
        try:
            return bool(self._find(relay)[0])
        except ApiError:
            return False


def _say(relay: Relay) -> None:
    exchange = relay.exchange
    if exchange.paused or exchange.gone:
        return
    if not exchange.spoken:
        exchange.start(200, EVENT_STREAM, STREAM_HEADERS)
    exchange.comment(b"waiting for another engine")
