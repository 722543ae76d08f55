"""Counts the tokens of prompts with the base's own tokenizer, in a thread of its own: never on the event loop.

A prompt is counted piece by piece. Between two pieces the thread looks at what else has come: small requests go first,
large ones take turns, and one whose client has left is dropped. While the library counts it lets go of the interpreter,
so the event loop goes on; a piece is short, so even what holds the interpreter is over in a fraction of a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import TypeVar

import msgspec
from tokenizers import Tokenizer

from tuneplex.gateway.estimate import Estimate, Tally
from tuneplex.gateway.prompts import Part, parts, size_of
from tuneplex.log import get_logger
from tuneplex.types import Route

__all__ = ["Pending", "TokenCounter"]

_log = get_logger(__name__)

T = TypeVar("T")

_STEP = 8 * 1024  # bytes of prompts that are counted before looking up
_PART = 32  # what a part costs besides its text, in such bytes
_MOMENT_S = 0.002  # for requests that are new, before a large one goes on


class Pending:
    """A request that is being counted.

    Attributes:
        cancelled: Nobody waits for the number any more.
    """

    def __init__(
        self,
        route: Route,
        fields: Mapping[str, msgspec.Raw],
        then: Callable[[Estimate], None],
        most: int | None,
    ) -> None:
        self.cancelled = False
        self._route = route
        self._fields = fields
        self._then = then
        self._most = most
        self._tally: Tally | None = None
        self._parts: Iterator[Part] = iter(())
        self._found: Estimate | None = None

    def cancel(self) -> None:
        """Nobody waits for the number any more: nothing more is counted, and `then` is not called."""
        self.cancelled = True

    def deliver(self) -> None:
        """Tell the number; on the event loop."""
        if not self.cancelled and self._found is not None:
            self._then(self._found)

    def step(self, tokenizer: Tokenizer | None) -> bool:
        """Count a little more; in the counting thread. Returns whether that was all."""
        if self.cancelled:
            return True
        if self._tally is None:
            self._tally = Tally(self._route, self._fields)
            self._parts = parts(self._route, self._fields)
        some, done = _some(self._parts)
        _add(self._tally, some, tokenizer)
        enough = self._most is not None and self._tally.least > self._most
        if done or enough:
            of = 0 if done else size_of(self._route, self._fields)
            self._found = self._tally.result(counted=tokenizer is not None, of=of)
        return done or enough

    def give_up(self) -> bool:
        """Estimate roughly, by the bytes of the body's fields."""
        self._found = Tally(self._route, self._fields).result(of=size_of(self._route, self._fields))
        return True


class _Work:
    """Something else to be done with the tokenizer.

    Args:
        what: Gets the tokenizer, in the thread.
        then: Gets its result, on the event loop; None if there is no tokenizer, or it failed.
    """

    def __init__(self, what: Callable[[Tokenizer], T | None], then: Callable[[T | None], None]) -> None:
        self._found: T | None = None
        self._what = what
        self._then = then

    def deliver(self) -> None:
        """Tell the result; on the event loop."""
        self._then(self._found)

    def step(self, tokenizer: Tokenizer | None) -> bool:
        """Do it; in the thread."""
        if tokenizer is not None:
            self._found = self._what(tokenizer)
        return True

    def give_up(self) -> bool:
        """It has failed."""
        return True


class TokenCounter:
    """Counts for one event loop. The thread starts with the first call and ends with `close`, or with the process.

    Args:
        path: See `use`.
    """

    def __init__(self, path: str = "") -> None:
        self._path = ""
        self._tokenizer: Tokenizer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[Pending | _Work | str | asyncio.Future[None] | None] = queue.SimpleQueue()
        self._small: deque[Pending | _Work] = deque()
        self._large: deque[Pending | _Work] = deque()
        self.use(path)

    def use(self, path: str) -> None:
        """Count by this `tokenizer.json` from now on.

        Without one (empty), or if it cannot be read, tokens are estimated by the bytes of texts; a warning says so.
        """
        if path != self._path:
            self._path = path
            self._put(path)

    async def loaded(self) -> None:
        """Wait until what `use` was told is loaded. Loading holds the interpreter, so nobody should be served yet."""
        if self._thread is None:
            return
        self._loop = asyncio.get_running_loop()
        reached: asyncio.Future[None] = self._loop.create_future()
        self._put(reached)
        await reached

    def count(
        self,
        route: Route,
        fields: Mapping[str, msgspec.Raw],
        then: Callable[[Estimate], None],
        *,
        most: int | None = None,
    ) -> Pending:
        """Count a request's tokens; call it on the event loop.

        Args:
            route: By which it came.
            fields: Of its body.
            then: Called on the event loop, later, unless the request is cancelled.
            most: Counting stops when it has surely more tokens than this; see `Estimate.exact`.
        """
        self._loop = asyncio.get_running_loop()
        pending = Pending(route, fields, then, most)
        self._put(pending)
        return pending

    def work(self, what: Callable[[Tokenizer], T | None], then: Callable[[T | None], None]) -> None:
        """Do something else in the thread; call it on the event loop.

        Args:
            what: Gets the tokenizer. It should be short, for others have to wait.
            then: Called on the event loop, later, with its result; None if there is no tokenizer, or it failed.
        """
        self._loop = asyncio.get_running_loop()
        self._put(_Work(what, then))

    def close(self) -> None:
        """End the thread after the piece that it is at. Whoever waits for a number hears nothing more."""
        self._queue.put(None)

    def _put(self, what: Pending | _Work | str | asyncio.Future[None]) -> None:
        self._queue.put(what)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="token-counter", daemon=True)
            self._thread.start()

    # --- in the thread

    def _run(self) -> None:
        with contextlib.suppress(_Closed):
            while True:
                self._listen()
                self._work()

    def _listen(self) -> None:
        """Take all that has come; wait for something if there is nothing to do."""
        waits = not self._small and not self._large
        with contextlib.suppress(queue.Empty):
            while True:
                what = self._queue.get(block=waits)
                waits = False
                if what is None:
                    raise _Closed
                if isinstance(what, Pending | _Work):
                    self._small.append(what)
                elif isinstance(what, str):
                    self._tokenizer = _load(what)
                else:
                    self._tell(_reach, what)

    def _work(self) -> None:
        """Begin with those that are new, for a moment; then one step of one that is large."""
        done: list[Pending | _Work] = []
        until = time.monotonic() + _MOMENT_S
        while self._small and time.monotonic() < until:
            self._step(self._small.popleft(), done)
        if done:
            self._tell(_deliver, done)
        if self._large:
            done = []
            self._step(self._large.popleft(), done)
            if done:
                self._tell(_deliver, done)

    def _step(self, pending: Pending | _Work, done: list[Pending | _Work]) -> None:
        try:
            finished = pending.step(self._tokenizer)
        except Exception:  # noqa: BLE001 - a defect of ours, or of the library, must not keep anybody waiting
            _log.exception("a prompt could not be counted")
            finished = pending.give_up()
        (done if finished else self._large).append(pending)

    def _tell(self, what: Callable[[T], None], argument: T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(what, argument)


class _Closed(Exception):
    """The counter was closed."""


def _deliver(done: list[Pending | _Work]) -> None:
    for pending in done:
        try:
            pending.deliver()
        except Exception:  # noqa: BLE001 - the others wait, too
            _log.exception("nothing was made of what was counted")


def _reach(reached: asyncio.Future[None]) -> None:
    if not reached.done():
        reached.set_result(None)


def _load(path: str) -> Tokenizer | None:
    if not path:
        return None
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 - the library raises nothing more precise
        _log.warning("tokens of prompts are estimated by their bytes", path=path, error=error)
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _some(found: Iterator[Part]) -> tuple[list[Part], bool]:
    """The next parts, as many as are counted in one step, and whether they were the last."""
    some: list[Part] = []
    size = 0
    for part in found:
        some.append(part)
        size += _PART + len(part.text)
        if size >= _STEP:
            return some, False
    return some, True


def _add(tally: Tally, some: list[Part], tokenizer: Tokenizer | None) -> None:
    texts = [part.text for part in some if part.text]
    counts: Iterator[int | None] = repeat(None)
    if tokenizer is not None and texts:
        # The ids themselves are never asked for: lists of them are what holds the interpreter for long.
        counts = iter([len(one) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)])
    for part in some:
        tally.add(part, next(counts) if part.text else 0)
