"""`Idempotency-Key`: a request that is sent again hears the reply to the first one, and is charged once.

The first one is answered as always, on an exchange that records (`recorder`). Who comes again hears the recording, in
this process or through another one (`elsewhere`), or gets the reply from the store (`replies`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from tuneplex.errors import ApiError, Conflict, Unavailable, Unprocessable
from tuneplex.gateway.body import read_body
from tuneplex.gateway.choosing import known_model
from tuneplex.gateway.counters import Counters
from tuneplex.gateway.elsewhere import Hop, listening
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.heads import error_lines
from tuneplex.gateway.keyed import KEY, fingerprint, name_of, read_key
from tuneplex.gateway.recorder import Recorder, is_proper
from tuneplex.gateway.recording import Reader, Recording
from tuneplex.gateway.replies import (
    ENTRY,
    ROOM,
    Elsewhere,
    Found,
    Full,
    Kept,
    Mine,
    Missed,
    Other,
    Replies,
    RepliesError,
    is_alive,
)
from tuneplex.gateway.routes import Target
from tuneplex.identity import Principal
from tuneplex.log import get_logger
from tuneplex.types import FleetView, Route
from tuneplex.types import Idempotency as Limits

__all__ = ["Host", "Idempotency"]

_log = get_logger(__name__)

T = TypeVar("T")

_ALONE_S = 60.0  # how long a reply goes on that nobody reads
_SWEEP_S = 30.0
_LARGE = 256 * 1024  # bytes of a body
_TRIES = 4  # each finds the process gone that the one before has found


class Host(Protocol):
    """Whose requests they are.

    Attributes:
        view: The fleet.
    """

    view: FleetView

    def handle(self, exchange: Exchange) -> None:
        """Answer a request without a key."""

    def refuse(self, exchange: Exchange, error: ApiError) -> None:
        """Answer with an error."""

    def failed(self, exchange: Exchange) -> None:
        """Answer a request at which we have failed ourselves."""

    def count(self, exchange: Exchange, status: int) -> None:
        """Count a reply that no engine was asked for."""


class _Keyed:
    """A request with a key."""

    __slots__ = ("deployment", "exchange", "fingerprint", "name", "route")

    def __init__(self, exchange: Exchange, target: Target, route: Route, principal: Principal) -> None:
        self.exchange = exchange
        self.route = route
        self.deployment = target.deployment
        self.name = name_of(principal.tenant, read_key(exchange.headers))
        self.fingerprint = b""

    def sign(self) -> None:
        """Find its fingerprint."""
        self.fingerprint = fingerprint(self.route.value, self.deployment, self.exchange.body)


class _Work:
    """The first request with a key, while it is being answered or its reply is being put away."""

    __slots__ = ("name", "recorder", "recording", "route", "turn")

    def __init__(self, keyed: _Keyed, turn: int, recording: Recording) -> None:
        self.name = keyed.name
        self.route = keyed.route
        self.turn = turn
        self.recording = recording
        self.recorder = Recorder(keyed.exchange, recording)


class Idempotency:
    """Requests with a key, in one gateway process.

    Args:
        host: Answers them.
        counters: Count them.
        replies: Where what is kept is kept.
        wall: Unix time.
    """

    def __init__(self, host: Host, counters: Counters, replies: Replies, wall: Callable[[], float]) -> None:
        self._host = host
        self._counters = counters
        self._replies = replies
        self._wall = wall
        self._works: dict[bytes, _Work] = {}
        self._shown: WeakValueDictionary[int, Recording] = WeakValueDictionary()  # from the store, by their turns
        self._unreleased: set[tuple[bytes, int]] = set()
        self._thread = ThreadPoolExecutor(1, "replies")  # one, so that what is asked first is done first
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep_at = 0.0

    @property
    def _limits(self) -> Limits:
        return self._host.view.settings.idempotency

    # --- a request

    def handle(self, exchange: Exchange, target: Target, route: Route, principal: Principal) -> None:
        """Answer a request that has a key, now or later.

        Raises:
            ApiError: It is wrong, or not for this caller.
        """
        keyed = _Keyed(exchange, target, route, principal)
        body = read_body(exchange.body)
        name = target.deployment or body.model
        if name:
            known_model(self._host.view, principal.grant, name)
        if len(exchange.body) > _LARGE:
            self._start(exchange, partial(self._sign, keyed))
            return
        keyed.sign()
        self._begin(keyed)

    async def _sign(self, keyed: _Keyed) -> None:
        """In the thread, as for a large body that takes milliseconds."""
        await self._in_thread(keyed.sign)
        if not keyed.exchange.gone:
            self._begin(keyed)

    def _begin(self, keyed: _Keyed) -> None:
        if not self._attach_here(keyed):
            self._start(keyed.exchange, partial(self._find, keyed))

    def _attach_here(self, keyed: _Keyed) -> bool:
        """Let it hear what this process is recording; False if that is not so."""
        work = self._works.get(keyed.name)
        if work is None:
            return False
        if work.recording.fingerprint != keyed.fingerprint:
            raise _reused()
        self._counters.replayed("running")
        self._hear(keyed.exchange, work.recording, self._heard)
        return True

    async def _find(self, keyed: _Keyed, stale: int | None = None, tries: int = _TRIES) -> None:
        """Find out what there is, and answer with it."""
        exchange = keyed.exchange
        try:
            found = await self._look(keyed, stale)
        except RepliesError as error:
            request_id = exchange.request_id.decode()
            _log.warning("a request has a key, but the store fails", request_id=request_id, error=error)
            self._counters.unkept("failed")
            if not exchange.gone:
                del exchange.headers[KEY]
                self._host.handle(exchange)
            return
        if exchange.gone:
            self._forgo(keyed, found)
        elif isinstance(found, Elsewhere) and found.owner == self._replies.owner and self._attach_here(keyed):
            return
        elif isinstance(found, Elsewhere) and tries:
            await self._ask(keyed, found, tries)
        else:
            self._answer(keyed, found)

    async def _look(self, keyed: _Keyed, stale: int | None) -> Found:
        claim = self._replies.claim
        return await self._in_thread(claim, keyed.name, keyed.fingerprint, self._wall(), self._limits, stale)

    def _forgo(self, keyed: _Keyed, found: Found) -> None:
        """Its client has left meanwhile."""
        if isinstance(found, Mine):
            self._release(keyed.name, found.turn)

    async def _ask(self, keyed: _Keyed, found: Elsewhere, tries: int) -> None:
        """Ask the process that works on it. Ours does not, or it would be in `_works`."""
        again = partial(self._find, keyed, found.turn, tries - 1)
        if found.owner == self._replies.owner:
            await again()
            return

        async def missing(*, told: bool) -> None:
            """Take it over, but never from a process that only has too much to do."""
            if not told and await self._in_thread(is_alive, found.owner):
                raise _unknown()
            await again()

        hop = Hop(
            keyed.exchange,
            lambda told: self._start(keyed.exchange, partial(missing, told=told)),
            self._heard_elsewhere,
        )
        hop.ask(found.owner, keyed.name)

    def _answer(self, keyed: _Keyed, found: Found) -> None:
        match found:
            case Mine(turn):
                self._work(keyed, turn)
            case Kept():
                self._show(keyed, found)
            case Other():
                raise _reused()
            case Missed():
                raise _not_kept()
            case Full(retry_s):
                words = "No more replies can be kept for requests with an Idempotency-Key at the moment."
                raise Unavailable(words, code="idempotency_store_full", retry_after_s=retry_s)
            case Elsewhere():
                raise _unknown()

    def _show(self, keyed: _Keyed, kept: Kept) -> None:
        recording = self._shown.get(kept.turn)
        if recording is None:
            recording = Recording.of(kept.request_id, kept.content_type, kept.body)
            self._shown[kept.turn] = recording  # so that many readers need it only once
        self._counters.replayed("stored")
        self._hear(keyed.exchange, recording, self._heard)

    def _hear(self, exchange: Exchange, recording: Recording, done: Callable[[Exchange], None]) -> None:
        if not recording.kept:
            raise _not_kept()
        exchange.body = b""
        lines = b"idempotent-replayed: true\r\nx-tuneplex-original-request-id: %b\r\n" % recording.request_id
        recording.attach(Reader(recording, exchange, lines, done))

    def _heard(self, exchange: Exchange) -> None:
        self._host.count(exchange, exchange.status)

    def _heard_elsewhere(self, exchange: Exchange) -> None:
        self._counters.replayed("elsewhere")
        self._heard(exchange)

    # --- the first of its kind

    def _work(self, keyed: _Keyed, turn: int) -> None:
        exchange = keyed.exchange
        recording = Recording(
            keyed.fingerprint,
            exchange.request_id,
            readers_gone=lambda one: None if one.kept else work.recorder.leave(),
            grown=lambda _: self._start(None, partial(self._grow, work)),
            ended=lambda _: self._ended(work),
        )
        recording.room = ROOM - ENTRY
        work = self._works[keyed.name] = _Work(keyed, turn, recording)
        exchange.body = b""  # the recorder has it
        recording.attach(Reader(recording, exchange))
        self._host.handle(work.recorder)

    async def _grow(self, work: _Work) -> None:
        recording = work.recording
        room = 2 * recording.size
        try:
            fits = await self._in_thread(self._replies.grow, work.name, work.turn, room + ENTRY, self._limits)
        except RepliesError:
            fits = False
        if recording.over:
            return
        if fits:
            recording.room = room
            return
        recording.outgrow()
        if recording.alone_since is not None:
            work.recorder.leave()

    def _ended(self, work: _Work) -> None:
        """Put the reply away, or forget it."""
        if not is_proper(work.route, work.recording):
            self._works.pop(work.name, None)
            self._release(work.name, work.turn)
            return
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._keep, work, self._wall(), self._limits)
        future.add_done_callback(lambda done: self._put_away(work, done))

    def _keep(self, work: _Work, now: float, limits: Limits) -> bool:
        """In the thread."""
        recording = work.recording
        reply = None
        if recording.kept:
            reply = Kept(work.turn, recording.request_id, recording.content_type, b"".join(recording.body()))
        return self._replies.keep(work.name, work.turn, now, limits, reply)

    def _put_away(self, work: _Work, done: asyncio.Future[bool]) -> None:
        self._works.pop(work.name, None)
        if done.cancelled():
            return
        error = done.exception()
        if error is None and not done.result():
            self._counters.unkept("full")
        elif error is not None:
            request_id = work.recording.request_id.decode()
            _log.warning("a reply could not be kept", request_id=request_id, error=error)
            self._counters.unkept("failed")
            self._release(work.name, work.turn)

    def _release(self, name: bytes, turn: int) -> None:
        """Let the next request with this key begin anew; what fails now is tried again later."""
        self._unreleased.add((name, turn))
        with contextlib.suppress(RuntimeError):  # it is closed: other processes see that its owner is gone
            self._thread.submit(self._let_go)

    def _let_go(self) -> None:
        """In the thread."""
        for name, turn in tuple(self._unreleased):
            try:
                self._replies.release(name, turn)
            except RepliesError:
                return
            self._unreleased.discard((name, turn))

    # --- other processes

    def listening(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Show other gateway processes what is recorded here, for as long as the block runs."""
        return listening(self, Path(self._replies.owner))

    def show(self, exchange: Exchange, name: bytes) -> bool:
        """See `elsewhere.Shows`."""
        work = self._works.get(name)
        if work is None:
            return False
        try:
            self._hear(exchange, work.recording, lambda _: None)
        except Conflict as error:
            exchange.reply(error.status, error.body(), headers=error_lines(error))
        return True

    # --- time, and the end

    def tick(self, now: float) -> None:
        """Stop what nobody has read for long, and sweep the store from time to time; `now` is of `time.monotonic`."""
        for work in tuple(self._works.values()):
            since = work.recording.alone_since
            if since is not None and now - since >= _ALONE_S and not work.recording.over:
                work.recorder.leave()
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_S
            if self._replies.exists():
                self._start(None, self._sweep)

    async def _sweep(self) -> None:
        try:
            await self._in_thread(self._let_go)
            while await self._in_thread(self._replies.sweep, self._wall(), self._limits):
                pass
        except RepliesError as error:
            _log.warning("the store of replies fails", error=error)

    def close(self) -> None:
        """Stop everything; what is complete is still put away."""
        for work in tuple(self._works.values()):
            if not work.recording.over:
                work.recorder.leave()
        for task in tuple(self._tasks):
            task.cancel()
        self._thread.shutdown(wait=True)
        self._replies.close()

    # --- how things are done

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _start(self, exchange: Exchange | None, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.ensure_future(self._guarded(exchange, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, exchange: Exchange | None, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except ApiError as error:
            if exchange is not None:
                self._host.refuse(exchange, error)
        except Exception:
            if exchange is None:
                raise
            self._host.failed(exchange)


def _reused() -> Unprocessable:
    words = "This Idempotency-Key was used for another request. Use a new key for each request."
    return Unprocessable(words, code="idempotency_key_reused")


def _unknown() -> Unavailable:
    words = "The request with this Idempotency-Key is under way in a process that does not answer."
    return Unavailable(words, code="idempotency_unknown", retry_after_s=1)


def _not_kept() -> Conflict:
    words = "The request with this Idempotency-Key was taken, but its reply is too large to be kept. Use a new key."
    return Conflict(words, code="idempotency_reply_too_large")
