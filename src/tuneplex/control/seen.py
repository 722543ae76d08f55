"""What control knows of each replica at one moment, and the limits it decides by: values only."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from tuneplex.engines.server import EngineMetrics, EngineModel
from tuneplex.launchers.launcher import Launched
from tuneplex.types import ReplicaState, Residency, Route

__all__ = ["Hold", "Limits", "LoadFailure", "Seen", "adapter_of"]

_VERSION_NAME = re.compile(r"(?P<adapter>.+)@[0-9a-f]{12}")


class Limits(msgspec.Struct, frozen=True):
    """How patient control is, in seconds unless said.

    Attributes:
        first_restart_s: Before a replica that ended is started again; doubled with each failure.
        longest_restart_s: At most.
        give_up_after: Failures within `give_up_window_s` after which a replica is left alone.
        give_up_window_s: See there.
        silent_s: How long a replica that was ready may leave health checks without an answer before it is restarted.
        unreachable_s: How long an external one may be out of reach, before it gets no more requests. One that is only
            slow to answer is as busy as any other.
        slow_s: An answer to a health check that takes longer is worth telling.
        first_load_s: Before loading an adapter is tried again; doubled with each failure.
        longest_load_s: At most.
        hopeless_loads: Failures in a row to load an adapter, after which no request waits for it any more.
        unload_s: How long an adapter that no view mentions stays loaded, for requests that are on their way to it.
    """

    first_restart_s: float = 1.0
    longest_restart_s: float = 60.0
    give_up_after: int = 5
    give_up_window_s: float = 900.0
    silent_s: float = 60.0
    unreachable_s: float = 6.0
    slow_s: float = 5.0
    first_load_s: float = 2.0
    longest_load_s: float = 60.0
    hopeless_loads: int = 3
    unload_s: float = 5.0


class Hold(msgspec.Struct, frozen=True):
    """Somebody has told a replica to take no requests, until it is told otherwise.

    Attributes:
        since: When, Unix time.
        moves: What it works on should go elsewhere at once, and not only when its time to drain is over.
        restarts: Once it is drained it is started again, and takes requests again.
    """

    since: float
    moves: bool = False
    restarts: bool = False


class LoadFailure(msgspec.Struct, frozen=True):
    """An adapter that a replica did not load.

    Attributes:
        count: How often in a row.
        at: The last time, Unix time.
        words: What the engine said.
    """

    count: int
    at: float
    words: str


class Seen(msgspec.Struct, frozen=True):
    """One replica, as the last look found it. Times are Unix times, names of adapters are the engine's own.

    Attributes:
        launched: Its record.
        answered: It has answered a health check since it was launched.
        silent_since: Since when it has not answered one, None if it answered the last.
        slow: It was reached then, and has only not answered yet.
        models: What it lists.
        draining_since: Since when it takes no new requests, because it is going away.
        hold: Why it takes none although it stays.
        drain_s: How long it may then finish those that it has.
        drained: No gateway will send it anything, or waits for anything from it.
        stopping: It was told to end.
        changing: Adapters that are being loaded or unloaded.
        failures: Adapters that it did not load.
        unlisted: Adapters that it has and that no view mentions, with the time since when.
        loads_adapters: Whether its kind of engine can load adapters while it runs.
        routes: What its kind of engine offers.
        phase: What it is doing while it starts.
        words: The last lines of its log, if it ended; or what its last health check said.
        metrics: Its figures; None if it has told none.
        residency: Where it has its adapters; None if it does not tell.
        notice: What a person should know of it although nothing fails.
    """

    launched: Launched
    answered: bool = False
    silent_since: float | None = None
    slow: bool = False
    models: tuple[EngineModel, ...] = ()
    draining_since: float | None = None
    hold: Hold | None = None
    drain_s: float = 300.0
    drained: bool = False
    stopping: bool = False
    changing: frozenset[str] = frozenset()
    failures: dict[str, LoadFailure] = {}
    unlisted: dict[str, float] = {}
    loads_adapters: bool = True
    routes: frozenset[Route] = frozenset(Route)
    phase: str = ""
    words: str = ""
    metrics: EngineMetrics | None = None
    residency: Residency | None = None
    notice: str = ""

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.launched.replica

    @property
    def alive(self) -> bool:
        """It has not ended, as far as we know."""
        return self.launched.ended is None

    @property
    def listed(self) -> frozenset[str]:
        """The engine's names for all it serves."""
        return frozenset(model.id for model in self.models)

    def is_busy(self, name: str) -> bool:
        """Whether requests use an adapter, as far as the engine tells."""
        known = self.residency.adapters if self.residency else ()
        return any(one.name == name and (one.running or one.waiting) for one in known)

    def is_unreachable(self, now: float, limits: Limits) -> bool:
        """An external engine that does not answer; a local one is alive or has ended, and is restarted if it hangs."""
        if self.launched.launcher != "external" or self.silent_since is None:
            return False
        return now - self.silent_since > (limits.silent_s if self.slow else limits.unreachable_s)

    @property
    def drains(self) -> bool:
        """It takes no new requests: it goes away, or somebody said so."""
        return self.draining_since is not None or self.hold is not None

    @property
    def leave_at(self) -> float | None:
        """When what it still works on should go elsewhere, Unix time; None if it does not drain."""
        times = [] if self.draining_since is None else [self.draining_since + self.drain_s]
        if self.hold is not None:
            times.append(self.hold.since + (0.0 if self.hold.moves else self.drain_s))
        return min(times, default=None)

    def state(self, now: float, limits: Limits) -> ReplicaState:
        """Where it is in its life."""
        if not self.alive or (self.answered and self.is_unreachable(now, limits)):
            return ReplicaState.DEAD
        if self.draining_since is not None or (self.hold is not None and self.answered):
            return ReplicaState.DRAINING
        return ReplicaState.READY if self.answered else ReplicaState.STARTING

    def context(self, names: Iterable[str]) -> int | None:
        """Tokens that a request can have for one of these names of its; None if it tells nothing about them."""
        asked = set(names)
        told = [model.context for model in self.models if model.id in asked and model.parent is None]
        largest = max((context for context in told if context is not None), default=None)
        kv_tokens = None if self.metrics is None else self.metrics.kv_tokens
        limits = (None if None in told else largest, kv_tokens)
        return min((limit for limit in limits if limit is not None), default=None)

    def base_name(self, name: str) -> str | None:
        """The engine's own name for the base: `name` if it lists that, else the first that is not an adapter."""
        bases = [model.id for model in self.models if model.parent is None and not adapter_of(model.id)]
        return name if name in bases else next(iter(bases), None)


def adapter_of(name: str) -> str | None:
    """The adapter's name, if an engine's name has the form of an `AdapterVersion.id`."""
    match = _VERSION_NAME.fullmatch(name)
    return match["adapter"] if match else None
