"""Replicas whose connections have just broken: whether they still are there is found out before more is sent to them.

An engine that ends takes its requests with it, and their places get free; for the second or so until control has seen
that it ended, whatever waits would be sent to nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from tuneplex.gateway.upstreams import Upstream
from tuneplex.http import UpstreamFault
from tuneplex.types import Replica, ReplicaState

__all__ = ["Doubts"]

_AGAIN_S = 0.2
_ANSWER_S = 1.0
_LONGEST_S = 3.0  # by then control has seen it, or sees what we do not;
_SICK_S = 15.0  # a server whose engine has ended says so for up to 8 s before it ends, too
_SERVER_ERROR = 500
_SILENT = -1
_REMEMBERED = 1000  # endpoints,
_TIMES = 8  # and of each how often it was gone or there


class _Found(msgspec.Struct):
    """An engine was found to be gone, or there, up to a time."""

    gone: bool
    until: float


class Doubts:
    """Which replicas may be gone.

    Args:
        cleared: Called whenever one is no longer in doubt.
    """

    def __init__(self, cleared: Callable[[], None]) -> None:
        self._cleared = cleared
        self._probes: dict[str, tuple[Upstream, asyncio.Task[None]]] = {}
        self._found: dict[str, deque[_Found]] = {}  # by endpoint, the latest last
        self._ready: set[str] = set()  # endpoints, by control

    def __contains__(self, name: object) -> bool:
        """Whether the replica of this name may be gone."""
        return name in self._probes

    def doubt(self, upstream: Upstream) -> None:
        """A connection broke."""
        name = upstream.replica.name
        if name not in self._probes:
            self._probes[name] = upstream, asyncio.get_running_loop().create_task(self._probe(upstream))

    def answered(self, upstream: Upstream) -> None:
        """A request was answered: if the engine was gone, it is back."""
        if upstream.replica.endpoint in self._found and self.is_away(upstream):  # mostly nothing was found
            self._note(upstream.replica.endpoint, gone=False)

    def died(self, upstream: Upstream, since: float) -> bool | None:
        """Whether the engine was found to be gone after a connection to it broke; None while nobody knows.

        Args:
            upstream: The way to it.
            since: When the connection broke, on the clock of `time.monotonic`.
        """
        known = self._found.get(upstream.replica.endpoint, ())
        found = next((found for found in known if found.until >= since), None)  # what came later says nothing of it
        if found is not None:
            return found.gone
        return None if upstream.replica.name in self._probes else False

    def is_away(self, upstream: Upstream) -> bool:
        """Whether the engine was found to be gone, and has not been found to be back."""
        known = self._found.get(upstream.replica.endpoint)
        return known is not None and known[-1].gone

    def update(self, replicas: Iterable[Replica]) -> None:
        """Control has spoken: of those that it sees in another state, or elsewhere, there is no doubt any more."""
        replicas = tuple(replicas)
        ready = {replica.endpoint for replica in replicas if replica.state is ReplicaState.READY}
        for endpoint in ready - self._ready:
            self._note(endpoint, gone=False)
        self._ready = ready
        known = {replica.name: replica for replica in replicas}
        for name, (upstream, probe) in tuple(self._probes.items()):
            replica = known.get(name)
            same = replica is not None and replica.endpoint == upstream.replica.endpoint
            state = replica.state if replica is not None and same else ReplicaState.DEAD
            if state is not ReplicaState.READY:
                del self._probes[name]
                probe.cancel()
                if state is not ReplicaState.DRAINING:
                    self._note(upstream.replica.endpoint, gone=True)

    def close(self) -> None:
        """Find out nothing more."""
        self.update(())

    def _note(self, endpoint: str, *, gone: bool) -> None:
        known = self._found.pop(endpoint, None) or deque(maxlen=_TIMES)  # put behind, so that the oldest stand first
        self._found[endpoint] = known
        if not known or known[-1].gone is not gone:
            known.append(_Found(gone, 0.0))
        known[-1].until = time.monotonic()
        if len(self._found) > _REMEMBERED:
            del self._found[next(iter(self._found))]

    async def _probe(self, upstream: Upstream) -> None:
        began = time.monotonic()
        until = began + _LONGEST_S
        try:
            while time.monotonic() < until:
                status = await _status(upstream)
                if 0 < status < _SERVER_ERROR:
                    self._note(upstream.replica.endpoint, gone=False)
                    break
                if status != _SILENT:
                    self._note(upstream.replica.endpoint, gone=True)
                if status >= _SERVER_ERROR:
                    until = began + _SICK_S
                await asyncio.sleep(_AGAIN_S)
        finally:
            name = upstream.replica.name
            known = self._probes.get(name)
            if known is not None and known[1] is asyncio.current_task():  # else somebody has cleared it already
                del self._probes[name]
                self._cleared()


async def _status(upstream: Upstream) -> int:
    """How the engine answers; 0 if it does not, and another number where it may only be busy.

    That it can be connected to is not enough: what is left of a process that was killed may still hold its socket.
    """
    answer = _Answer()
    call = upstream.pool.send(upstream.question(), answer, connect_timeout_s=_ANSWER_S)
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await answer.status
    except TimeoutError:
        return _SILENT
    finally:
        call.abort()


class _Answer:
    """Waits for the status of a reply; 0 stands for none."""

    def __init__(self) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._status = 0

    def reply_started(self, status: int, headers: dict[bytes, bytes]) -> None:  # noqa: ARG002 - see `Receiver`
        """The head has come."""
        self._status = status

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: ARG002, FBT001 - see `Receiver`
        """More of it has come."""
        if done and not self.status.done():
            self.status.set_result(self._status)

    def reply_failed(self, fault: UpstreamFault) -> None:  # noqa: ARG002 - see `Receiver`
        """It will not be completed."""
        if not self.status.done():
            self.status.set_result(0)
