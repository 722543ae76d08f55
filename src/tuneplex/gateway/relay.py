"""A request at the engines: from its dispatch to the one place where it is accounted for.

Mostly it is one attempt at one replica. When that fails, the request comes back (`returns`) and another attempt is
made, which begins anew as long as the client has got nothing of a reply, and goes on where its stream broke off later.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from tuneplex.engines.continuing import Terms, continuable
from tuneplex.engines.journal import Journal
from tuneplex.engines.resuming import Seam
from tuneplex.engines.usage import Usage, estimated_tokens
from tuneplex.errors import ApiError, DeadlineExceeded, UpstreamTimeout
from tuneplex.gateway.answers import PASSED, tell
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.attempt import Attempt
from tuneplex.gateway.counters import Outcome
from tuneplex.gateway.ledger import Ledger
from tuneplex.gateway.reading import Reading
from tuneplex.gateway.scribe import PROGRESS_S, PROGRESS_TOKENS
from tuneplex.gateway.upstreams import Upstream
from tuneplex.policy import End
from tuneplex.types import GatewaySettings, Route

if TYPE_CHECKING:
    from tuneplex.gateway.answers import LongAnswer, StreamAnswer, WholeAnswer
    from tuneplex.gateway.gaps import Gaps

__all__ = ["Host", "Loss", "Relay"]

_NOTHING = Usage(0, 0)
_NO_FIELDS: dict[str, msgspec.Raw] = {}
_PROMPTS = ("messages", "prompt", "input")
_LARGEST_PROMPT = 1024 * 1024  # of which the ids come in one event, about as large
_UNREAD = 3  # tokens that an engine may make just before it ends, and that nobody can read any more
_NOT_BEGUN = frozenset({Outcome.UNREACHABLE, Outcome.REFUSED, Outcome.ENGINE_ERROR})  # unless there are tokens
_SERVER_ERRORS = 500  # and above

_OUTCOMES = {
    End.COMPLETE: Outcome.COMPLETE,
    End.UNREACHABLE: Outcome.UNREACHABLE,
    End.BROKEN: Outcome.BROKEN,
    End.INVALID: Outcome.BROKEN,
    End.STOPPED: Outcome.BROKEN,
    End.SILENT: Outcome.TIMEOUT,
    End.STALLED: Outcome.TIMEOUT,
    End.DEAD: Outcome.ENGINE_ERROR,
    End.BUSY: Outcome.ENGINE_ERROR,
    End.UNAVAILABLE: Outcome.ENGINE_ERROR,
    End.FAILED: Outcome.ENGINE_ERROR,
    End.REFUSED: Outcome.REFUSED,
}


class Host(Protocol):
    """Who decides what becomes of a request when an attempt at it has failed.

    Attributes:
        settings: Of the gateway, as they are now.
        migrates: Streams are to be continued elsewhere, where that is possible.
    """

    settings: GatewaySettings
    migrates: bool

    def answers(self, attempt: Attempt) -> None:
        """The first part of an answer has come."""

    def failed(self, attempt: Attempt, error: ApiError) -> bool:
        """An attempt is over. Whether its request gets another one, or another one is under way."""

    def silent(self, relay: Relay) -> None:
        """Nothing has come of its only attempt for as long as the settings say: another one may be made beside it."""

    def forget(self, relay: Relay) -> None:
        """It is over."""


class Loss(msgspec.Struct, frozen=True):
    """An engine that perhaps ended with a request in flight.

    Attributes:
        upstream: The way to it.
        at: When its connection broke, on the clock of `time.monotonic`.
        sure: It has said itself that it ends.
    """

    upstream: Upstream
    at: float
    sure: bool


class Relay:
    """Brings a request to its end, whichever side ends it: everything ends in `close`, exactly once.

    Attributes:
        asked: What is asked by whom.
        attempts: Those under way: one, but for a hedge (two), and while it waits for another replica (none).
        answer: Has what has come of the reply that the client gets.
        begun: The client has got something of it.
        terms: How its stream could be continued; None if it could not.
        reading: Reads the stream that has begun.
        hedge: The attempt that was made beside a silent one, while nobody knows which of them is faster.
        tries: Attempts since the last one that brought a token.
        tried: The endpoints that they went to.
        spent: Those of them that are not worth another try.
        losses: Those at which engines may have ended, since it got much further.
        continued: An attempt has gone on where its stream broke off.
        may_stop: Its stream may end at a stop string that its engine does not see.
        over: `close` has been called.
        used: The tokens that it took; known once it is over.
        made: Attempts that were made.
        first_token_s: When the first event of its stream came, after the request.
        pool: Of the replica that it was sent to last, or that has answered.
    """

    over = False
    begun = False
    terms: Terms | None = None
    reading: Reading | None = None
    hedge: Attempt | None = None
    tries = 0
    losses: tuple[Loss, ...] = ()
    continued = False
    may_stop = False
    tried: frozenset[str] = frozenset()
    spent: frozenset[str] = frozenset()
    used: Usage | None = None
    pool = ""
    answer: StreamAnswer | WholeAnswer | LongAnswer | None = None
    made = 0
    first_token_s: float | None = None
    _prompt_bytes = 0
    _reached = 0
    _told = 0
    _told_at = 0.0

    def __init__(self, ledger: Ledger, asked: Asked, host: Host) -> None:
        self.asked = asked
        self.exchange = asked.exchange
        self.ledger = ledger
        self.attempts: list[Attempt] = []
        self._host = host
        self._since_s = time.monotonic()

    def start(self, upstream: Upstream) -> None:
        """Make the first attempt; everything else happens by callbacks.

        Raises:
            BadRequest: One of the fields is wrong; nothing was sent.
        """
        fields = self.asked.fields
        self._prompt_bytes = sum(len(fields[name]) for name in _PROMPTS if name in fields)
        if self.asked.stream and self._host.migrates and self._prompt_bytes <= _LARGEST_PROMPT:
            self.terms = continuable(self.asked.route, fields)
        if self.asked.why is not None:
            self.asked.why.relay = self
        self.attempt(upstream)
        self.exchange.body = b""  # the fields keep it, as long as it may be sent again
        self.ledger.relays.add(self)
        self.exchange.listener = self

    def attempt(self, upstream: Upstream) -> Attempt:
        """Send it to this replica.

        Raises:
            BadRequest: One of the fields is wrong; nothing was sent.
        """
        attempt = Attempt(self, upstream, self._host.settings.timeouts)
        attempt.start(self.asked.fields)
        if self.asked.why is not None:
            beside = self.ledger.outstanding[upstream.replica.name] - 1
            self.asked.why.began(attempt, beside, goes_on=self.begun)
        self.attempts.append(attempt)
        self.pool = upstream.replica.pool
        self.tries += 1
        return attempt

    def resume(self, seam: Seam) -> None:
        """The next attempt goes on where the stream has come to."""
        if self.journal is not None:
            self.asked.fields = self.journal.resume(seam)
            self.asked.route = Route.COMPLETIONS
            self.continued = True
            self.may_stop = self.terms is not None and bool(self.terms.stop)

    @property
    def journal(self) -> Journal | None:
        """What has been sent of its stream, if that can be continued."""
        return None if self.reading is None else self.reading.journal

    # --- what its attempts tell

    def answered(self, attempt: Attempt, answer: StreamAnswer | WholeAnswer) -> None:
        """The first part of an answer has come: the client gets that one, and other attempts are not needed."""
        for other in self.attempts:
            if other is not attempt:
                self._end(other)
        self.attempts = [attempt]
        self.pool = attempt.upstream.replica.pool
        self.answer = answer
        attempt.answers = True
        self._host.answers(attempt)

    def streams(self, attempt: Attempt, answer: StreamAnswer, reading: Reading) -> None:
        """The same, and it is a stream."""
        self.answered(attempt, answer)
        self.asked.fields = _NO_FIELDS  # its prompt may be large, and is not sent again
        if self.reading is None:
            self.reading = reading
            self.begun = True
            self.first_token_s = self.elapsed_s()
            self.asked.tally.first_token_s.observe(self.first_token_s)
            if self.asked.why is not None:
                self.asked.why.first_token()

    def failed(self, attempt: Attempt, error: ApiError) -> None:
        """One of them will not get any further."""
        self._end(attempt)
        self.attempts = [one for one in self.attempts if one is not attempt]
        if self.over:
            return
        if not self._closes() and not self._host.failed(attempt, error):
            self.give_up_after(attempt.ended, error)

    def _end(self, attempt: Attempt) -> None:
        attempt.end()
        if self.asked.why is not None:
            self.asked.why.ended(attempt)

    def _closes(self) -> bool:
        """Whether all of the reply has come, and so it has been brought to its end."""
        closes = self.answer is not None and self.answer.closes()
        if closes:
            self.close(Outcome.COMPLETE)
        return closes

    def lost(self, attempt: Attempt) -> None:
        """Remember what has become of an attempt, for the next one."""
        tokens = 0 if self.journal is None else self.journal.tokens
        if tokens > self._reached + _UNREAD:
            self.losses = ()
        if tokens > self._reached:
            self._reached, self.tries = tokens, 1
            self.tried = self.spent = frozenset()
        if not self.attempts:
            self.hedge = None
        endpoint = attempt.upstream.replica.endpoint
        self.tried |= {endpoint}
        if not attempt.verdict.same:
            self.spent |= {endpoint}
        if attempt.verdict.died:
            self.losses += (Loss(attempt.upstream, time.monotonic(), attempt.ended is End.DEAD),)

    def give_up(self, error: ApiError, outcome: Outcome) -> None:
        """Tell the client in the way that is still open, and end."""
        if self._closes():
            return
        try:
            if self.answer is not None and self.exchange.spoken:
                self.answer.fail(error)  # it knows what the last event was
            else:
                tell(self.exchange, self.asked.route, error)
        finally:
            self.close(outcome)

    def give_up_after(self, end: End, error: ApiError) -> None:
        """The same, when no attempt is made any more after one that has ended like this.

        Not every refusal is the client's mistake: it may be the gateway's own key that is wrong, or the engine that
        cannot do it, and what one engine has taken another one refuses only for reasons of its own.
        """
        ours = end is End.REFUSED and (self.continued or error.status >= _SERVER_ERRORS)
        self.give_up(error, Outcome.ENGINE_ERROR if ours else _OUTCOMES[end])

    def elapsed_s(self) -> float:
        """Since the request came."""
        return time.monotonic() - self.exchange.started_s

    # --- what the client does

    def client_gone(self) -> None:
        """Stop the engine at once."""
        self.close(Outcome.CLIENT_GONE)

    def client_paused(self) -> None:
        """Let the engine wait."""
        for attempt in self.attempts:
            attempt.pause()

    def client_resumed(self) -> None:
        """Go on."""
        for attempt in self.attempts:
            attempt.resume()

    # --- time

    def tick(self, now: float) -> None:
        """Look after all that may take too long; called several times a second."""
        if self.reading is not None:
            self._progress(self.reading.gaps, now)
        if now >= self.asked.deadline:
            words = "The reply was not complete before the request's deadline."
            self.give_up(DeadlineExceeded(words, code=PASSED), Outcome.DEADLINE)
            return
        settings = self._host.settings
        total_s, hedge_s = settings.timeouts.total_s, settings.retries.hedge_after_s
        if now - self._since_s >= total_s:
            words = f"The reply was not complete within {total_s:g} seconds."
            self.give_up(UpstreamTimeout(words, code="reply_too_long"), Outcome.TIMEOUT)
            return
        for attempt in tuple(self.attempts):
            attempt.tick(now)
        if hedge_s is not None and self._may_be_hedged:
            only = self.attempts[0]
            if not only.chunks and now - only.since_s >= hedge_s:
                self._host.silent(self)

    def _progress(self, gaps: Gaps, now: float) -> None:
        """Write down how far its stream has come, if that is worth it."""
        pieces = gaps.pieces
        if pieces - self._told >= PROGRESS_TOKENS or (pieces > self._told and now - self._told_at >= PROGRESS_S):
            self._told, self._told_at = pieces, now
            self.ledger.scribe.progress(self)
        gaps.trim()

    @property
    def _may_be_hedged(self) -> bool:
        """Only a stream that says nothing is known to be late: other replies come when they are complete."""
        return self.asked.stream and self.hedge is None and not self.begun and len(self.attempts) == 1

    # --- the end

    def close(self, outcome: Outcome) -> None:
        """Release what it has and account for it: the one place for it."""
        if self.over:
            return
        self.over = True
        self.used = self._used(outcome)
        for attempt in self.attempts:
            attempt.end()
        self.attempts = []
        self.answer = None
        self.exchange.listener = None
        self.exchange.why = self.asked.why = None  # it knows of all of these, and would keep them in a circle
        self._host.forget(self)
        self.ledger.closed(self, outcome)

    def _used(self, outcome: Outcome) -> Usage:
        """What the engine has told, or else what is known: it has got the prompt, whatever became of that."""
        used = Usage(0, 0, exact=False) if self.answer is None else self.answer.used()
        if used.exact or used.prompt:
            return used
        if outcome in _NOT_BEGUN and not used.completion:
            return _NOTHING
        return self.with_prompt(used)

    def so_far(self) -> Usage | None:
        """What is known already of the tokens of its reply; None if nothing is."""
        return None if self.answer is None else self.with_prompt(self.answer.used())

    def with_prompt(self, used: Usage) -> Usage:
        """With an estimate of the prompt, where the engine has not told it."""
        if used.prompt:
            return used
        return msgspec.structs.replace(used, prompt=self.prompt_tokens())

    def prompt_tokens(self) -> int:
        """About how many tokens its prompt has."""
        needed = self.asked.needed
        estimated = needed.prompt if needed is not None else 0
        return estimated or estimated_tokens(self._prompt_bytes)
