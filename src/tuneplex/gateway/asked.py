"""A request for a model on its way to a replica."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tuneplex.gateway.admission import Ticket
from tuneplex.gateway.counters import Tally
from tuneplex.gateway.estimate import Estimate
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.urgency import Priority
from tuneplex.identity import Principal
from tuneplex.policy import Place
from tuneplex.types import Model, Replica, Route

if TYPE_CHECKING:
    from tuneplex.gateway.why import Why

__all__ = ["Asked", "Charge", "Group"]


Flow = tuple[str, Priority, Route, bool]
"""Model, priority, route, and whether it is large: in each it is first come, first served."""


class Charge(msgspec.Struct, frozen=True):
    """What a turn costs whom, as `policy.FairQueue` wants it; `counted` says whether the queue has heard of it."""

    tenant: str
    weight: float
    flow: Flow
    share: float
    work: float
    counted: bool = True


class Group:
    """The requests that can go to the same replicas, as long as the fleet stays as it is.

    Attributes:
        model: What for.
        replicas: Which may take them.
        coming: Where there are none: which of them will.
        blocked: The round in which no place was found for them.
    """

    __slots__ = ("blocked", "coming", "model", "replicas")

    def __init__(self, model: Model, replicas: tuple[Replica, ...], coming: tuple[Replica, ...]) -> None:
        self.model = model
        self.replicas = replicas
        self.coming = coming
        self.blocked = -1


class Asked:
    """What is asked by whom, and how it stands while it waits; then it is its exchange's listener.

    Attributes:
        exchange: Answers.
        principal: Who asks.
        model: What for.
        route: By which route.
        shown: The name that the client shall see in the reply.
        stream: Whether events are wanted.
        fields: Of the body.
        tally: Where it is counted.
        large: Not every replica can hold it.
        needed: Tokens that it may need, as far as they have been counted.
        ticket: What it was let in with, if there are limits.
        priority: Among the requests of its tenant.
        deadline: When its reply has to be complete, on the clock of `time.monotonic`.
        since: When it began to wait.
        until: How long it may wait.
        comment_at: When its client is told next that it waits.
        place: Where it waits.
        charge: What its turn costs.
        group: What it waits for, as of `epoch`.
        epoch: The state of fleet and keys that `group` was found in.
        kept: Its entry in the journal is on the disk, where that is required.
        pinned: Its client has named the version.
        waited_s: How long it has waited.
        gone: Called when its client has left.
        why: Notes what becomes of it, if its client wants to know.
    """

    __slots__ = (
        "charge",
        "comment_at",
        "deadline",
        "epoch",
        "exchange",
        "fields",
        "gone",
        "group",
        "kept",
        "large",
        "model",
        "needed",
        "pinned",
        "place",
        "principal",
        "priority",
        "route",
        "shown",
        "since",
        "stream",
        "tally",
        "ticket",
        "until",
        "waited_s",
        "why",
    )

    charge: Charge
    group: Group
    place: Place[Asked]
    gone: Callable[[Asked], None]

    def __init__(
        self,
        exchange: Exchange,
        principal: Principal,
        model: Model,
        route: Route,
        *,
        shown: str,
        stream: bool,
        fields: dict[str, msgspec.Raw],
        tally: Tally,
        priority: Priority = Priority.NORMAL,
        deadline: float = math.inf,
    ) -> None:
        self.exchange = exchange
        self.principal = principal
        self.model = model
        self.route = route
        self.shown = shown
        self.stream = stream
        self.fields = fields
        self.tally = tally
        self.priority = priority
        self.deadline = deadline
        self.large = self.kept = self.pinned = False
        self.needed: Estimate | None = None
        self.ticket: Ticket | None = None
        self.since = self.waited_s = 0.0
        self.until = math.inf
        self.comment_at = math.inf
        self.epoch = -1
        self.why: Why | None = None

    @property
    def may_be_cut(self) -> bool:
        """Whether a limit may end its stream."""
        return self.stream and self.ticket is not None and self.ticket.cuts

    def client_gone(self) -> None:
        """It need not be answered any more."""
        self.gone(self)

    def client_paused(self) -> None:
        """Nothing is written but comments, and those look by themselves."""

    def client_resumed(self) -> None:
        """The same."""
