"""From the entries of a journal to requests that are over, each with all that is known of it: no files, no clock.

What a process left open when it ended was still under way: it is closed as `gateway_crashed`, by what had been written
of it last.
"""

from __future__ import annotations

import msgspec

from tuneplex.journal.entries import Closed, Entered, Entry, Opened, Progress, Refused

__all__ = ["CRASHED", "Finished", "Replay", "Tried"]

CRASHED = "gateway_crashed"
LEFT = "client_gone"
_LEFT_STATUS = 499
_OPEN = ""


class Tried(msgspec.Struct, omit_defaults=True):
    """One attempt at a request.

    Attributes:
        replica: Where it went.
        engine: Which start of that replica.
        pool: The replica's pool.
        at: When, Unix time.
        outcome: How it has ended.
        took_s: How long it took.
        prompt: Tokens that the engine had to read: of the prompt, once for each choice, and of what others had
            written of the reply.
        completion: Tokens that it has written.
    """

    replica: str
    engine: str
    pool: str
    at: float
    outcome: str = _OPEN
    took_s: float = 0.0
    prompt: int = 0
    completion: int = 0


class Finished(msgspec.Struct, kw_only=True):
    """A request that is over.

    Attributes:
        id: Unique for ever: the journal's name and the request's number in it.
        request_id: As its client knows it.
        arrived: When it came, Unix time.
        closed: When it was over.
        tenant: Who pays.
        key_id: The public id of the key.
        model: Which model.
        version: Which version of it.
        route: By which route.
        stream: Whether events were wanted.
        pool: Of the replica that it was at last; empty if it was at none.
        replica: Where it was last.
        outcome: How it has ended.
        status: Of the reply.
        code: Of the error, where it was refused.
        prompt: Tokens of the prompt.
        cached: Those of them that an engine had already.
        completion: Tokens of the reply.
        estimated: The tokens are not by an engine's word.
        waited_s: How long it has waited in the gateway.
        first_token_s: From the request to the first event of its stream.
        session: What it has in common with others of the same conversation, as a keyed hash.
        trace: The `traceparent` that it came with.
        count: How many requests this stands for.
        attempts: At replicas.
    """

    id: str
    request_id: str
    arrived: float
    closed: float
    tenant: str
    key_id: str
    model: str
    version: str
    route: str
    outcome: str
    stream: bool = False
    pool: str = ""
    replica: str = ""
    status: int = 0
    code: str = ""
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    estimated: bool = False
    waited_s: float = 0.0
    first_token_s: float | None = None
    session: str = ""
    trace: str = ""
    count: int = 1
    attempts: list[Tried] = []


class _Request:
    """A request under way."""

    def __init__(self) -> None:
        self.opened: Opened | None = None
        self.entered: Entered | None = None
        self.progress: Progress | None = None
        self.tried: dict[int, Tried] = {}
        self.told = 0  # tokens of the reply that attempts which have ended have written


class Replay:
    """Takes the entries of one journal, in their order.

    Args:
        journal: Its name.
    """

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._requests: dict[int, _Request] = {}

    @property
    def under_way(self) -> int:
        """How many requests are not over."""
        return len(self._requests)

    def take(self, number: int, entry: Entry) -> Finished | None:
        """Take the next entry; what it ends, if it ends a request.

        Args:
            number: Of the entry.
            entry: What it says.
        """
        match entry:
            case Opened():
                self._open(entry)
            case Progress():
                self._request(entry.number).progress = entry
            case Entered():
                self._request(entry.number).entered = entry
            case Closed(attempt=0):
                return self._close(entry)
            case Closed():
                self._end(entry)
            case Refused():
                return self._refuse(number, entry)
            case _:
                pass
        return None

    def abandon(self) -> list[Finished]:
        """The process has ended: what was under way then."""
        lost = [self._crashed(number, request) for number, request in self._requests.items()]
        self._requests.clear()
        return [one for one in lost if one is not None]

    def _request(self, number: int) -> _Request:
        return self._requests.setdefault(number, _Request())

    def _open(self, entry: Opened) -> None:
        request = self._request(entry.number)
        request.opened = entry
        told = request.progress.completion if request.progress is not None else request.told
        read = (entry.prompt + told) * entry.choices
        request.tried.setdefault(entry.attempt, Tried(entry.replica, entry.engine, entry.pool, entry.at, prompt=read))

    def _end(self, entry: Closed) -> None:
        request = self._requests.get(entry.number)
        if request is not None:
            _end(request, entry, entry.attempt)

    def _close(self, entry: Closed) -> Finished | None:
        request = self._requests.pop(entry.number, None)
        if request is None or request.opened is None:
            return None  # it was closed before
        for attempt, tried in request.tried.items():
            if tried.outcome == _OPEN:
                _end(request, entry, attempt)
        return self._finished(request.opened, entry, request)

    def _finished(self, opened: Opened, closed: Closed, request: _Request) -> Finished:
        return Finished(
            id=f"{self._journal}/{opened.number}",
            request_id=opened.request_id,
            arrived=opened.arrived,
            closed=closed.at,
            tenant=opened.tenant,
            key_id=opened.key_id,
            model=opened.model,
            version=opened.version,
            route=opened.route,
            outcome=closed.outcome,
            stream=opened.stream,
            pool=opened.pool,
            replica=opened.replica,
            status=closed.status,
            prompt=closed.prompt,
            cached=closed.cached,
            completion=closed.completion,
            estimated=not closed.exact,
            waited_s=opened.waited_s,
            first_token_s=closed.first_token_s,
            session=opened.session,
            trace=opened.trace,
            attempts=list(request.tried.values()),
        )

    def _crashed(self, number: int, request: _Request) -> Finished | None:
        opened, progress = request.opened, request.progress
        if opened is None:
            entered = request.entered
            return None if entered is None else self._never_sent(entered)
        prompt, completion = (opened.prompt, 0) if progress is None else (progress.prompt, progress.completion)
        at = opened.at if progress is None else progress.at
        closed = Closed(number, 0, at, CRASHED, prompt=prompt, completion=completion)
        for attempt, tried in request.tried.items():
            if tried.outcome == _OPEN:
                _end(request, closed, attempt)
        return self._finished(opened, closed, request)

    def _never_sent(self, entered: Entered) -> Finished:
        """It had entered, and no engine had got it."""
        return Finished(
            id=f"{self._journal}/{entered.number}",
            request_id=entered.request_id,
            arrived=entered.at,
            closed=entered.at,
            tenant=entered.tenant,
            key_id=entered.key_id,
            model=entered.model,
            version=entered.version,
            route=entered.route,
            outcome=CRASHED,
            estimated=True,
        )

    def _refuse(self, number: int, entry: Refused) -> Finished:
        self._requests.pop(entry.number, None)
        return Finished(
            id=f"{self._journal}/{entry.number or f'e{number}'}",
            request_id=entry.request_id,
            arrived=entry.arrived,
            closed=entry.at,
            tenant=entry.tenant,
            key_id=entry.key_id,
            model=entry.model,
            version=entry.version,
            route=entry.route,
            outcome=LEFT if entry.status == _LEFT_STATUS else "rejected",
            status=entry.status,
            code=entry.code,
            count=entry.count,
            stream=entry.stream,
            waited_s=entry.waited_s,
        )


def _end(request: _Request, closed: Closed, attempt: int) -> None:
    """What an attempt has taken is what the request has taken, without what others had before."""
    tried = request.tried.get(attempt)
    if tried is None or tried.outcome != _OPEN:
        return
    tried.outcome = closed.outcome
    tried.took_s = max(0.0, closed.at - tried.at)
    tried.completion = max(0, closed.completion - request.told)
    if closed.prompt:
        choices = request.opened.choices if request.opened is not None else 1
        tried.prompt = (closed.prompt + request.told) * choices
    request.told = max(request.told, closed.completion)
