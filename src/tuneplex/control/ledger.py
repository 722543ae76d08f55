"""The residency ledger: where each adapter version is on each replica, what was found otherwise, what should move.

It keeps nothing that a new control could not find out: where adapters are is told by the engines, what is asked for by
the gateways. Decisions are pure, here and in `policy.residency`; `Ledger` only remembers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tuneplex.control.actions import Move
from tuneplex.control.adapters import differs, engine_name, is_complete, should_have
from tuneplex.control.decide import Situation
from tuneplex.control.seen import Seen
from tuneplex.policy.residency import Demand, demanded, grown, last_used, modelled, pins, prefetched
from tuneplex.types import FleetSpec, GatewayReport, PoolSpec, ReplicaState, Residency, Resident, Tier

__all__ = ["DRIFTS", "Account", "Figures", "Ledger", "drifted", "guessed", "kept", "moves"]

DRIFTS = ("missing", "unwanted", "changed", "unpinned")
_AGAIN_S = 15.0


class Account(msgspec.Struct, frozen=True):
    """What is remembered of one start of a replica. Names are the engine's own.

    Attributes:
        started: Of the replica, which tells one start from the next.
        known: It has been looked at before.
        had: The adapters that it listed then.
        changing: Those that control was changing then.
        expected: Those that it should have had, with their paths.
        ours: Of what it lists, all that was ever expected of it or changed by control.
        stray: Of what it lists, what was not, and should go.
        wrong: Those of which it had something else.
        pinned: Those that had their slot for good.
        found: Those of them that had it when control began, and by nobody's wish: they were hot.
        since: In which tier each is, and since when.
        order: All that it lists by their last use, the latest last, as far as gateways tell.
        demand: How much each is asked for.
    """

    started: float = 0.0
    known: bool = False
    had: frozenset[str] = frozenset()
    changing: frozenset[str] = frozenset()
    expected: dict[str, str] = {}
    ours: frozenset[str] = frozenset()
    stray: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    found: frozenset[str] = frozenset()
    since: dict[str, tuple[Tier | None, float]] = {}
    order: tuple[str, ...] = ()
    demand: Demand = Demand()


class Figures(msgspec.Struct, frozen=True):
    """What the ledger adds to a replica's figures: where its adapters are, and what was counted since control began.

    Attributes:
        residency: As the engine tells, or a guess; None where nobody can say anything.
        drift: Kind -> how often.
        moved: Way -> how often.
    """

    residency: Residency | None = None
    drift: dict[str, int] = {}
    moved: dict[str, int] = {}


class Ledger:
    """Remembers between two looks of control."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._begun: dict[tuple[int, int], dict[str, dict[str, int]]] = {}
        self._waiting: tuple[str, ...] = ()
        self._asked: dict[Move, float] = {}
        self._drift: dict[str, Counter[str]] = {}
        self._moved: dict[str, Counter[str]] = {}

    def look(self, situation: Situation, reports: Iterable[GatewayReport]) -> list[tuple[str, str, str]]:
        """Take in what was seen.

        Returns:
            What has drifted since the last look: replica, kind (see `drifted`) and the engine's name of the adapter.
        """
        begun = self._heard(tuple(reports))
        known, self._accounts = self._accounts, {}
        found = []
        for replica in situation.seen:
            before = known.get(replica.name, Account())
            if before.started != replica.launched.started:
                before = Account(replica.launched.started)
            account = kept(before, situation, replica, begun.get(replica.name, {}))
            found += [(replica.name, *one) for one in drifted(before, account)]
            self._accounts[replica.name] = account
        for name, kind, _adapter in found:
            self._drift.setdefault(name, Counter())[kind] += 1
        return found

    def _heard(self, reports: Sequence[GatewayReport]) -> dict[str, dict[str, int]]:
        """By replica and version what has begun since the last reports; of a new gateway only the order is known."""
        found: dict[str, dict[str, int]] = {}
        for report in reports:
            before = self._begun.get((report.gateway, report.pid))
            for replica, counts in report.begun.items():
                new = dict.fromkeys(counts, 0) if before is None else grown(before.get(replica, {}), counts)
                known = found.setdefault(replica, {})
                for version, count in new.items():
                    known[version] = known.pop(version, 0) + count
        self._begun = {(report.gateway, report.pid): report.begun for report in reports}
        self._waiting = tuple(dict.fromkeys(version for report in reports for version in report.wanted))
        return found

    def moves(self, situation: Situation) -> list[Move]:
        """What should move now, one adapter for each replica; the same is not asked for again soon."""
        self._asked = {move: at for move, at in self._asked.items() if situation.now - at < _AGAIN_S}
        found = []
        for replica in situation.seen:
            account = self._accounts.get(replica.name, Account())
            wished = (move for move in moves(situation, replica, account, self._waiting) if move not in self._asked)
            if move := next(wished, None):
                found.append(move)
                self._asked[move] = situation.now
                self._moved.setdefault(replica.name, Counter())[move.way] += 1
        return found

    def figures(self, situation: Situation) -> dict[str, Figures]:
        """By replica, what is known of it."""
        return {replica.name: self._figures(situation.spec, replica) for replica in situation.seen}

    def _figures(self, spec: FleetSpec, replica: Seen) -> Figures:
        account = self._accounts.get(replica.name, Account())
        told = replica.residency or guessed(spec, replica, account)
        if told is not None:
            dated = (msgspec.structs.replace(one, since=_since(account, one)) for one in told.adapters)
            told = msgspec.structs.replace(told, adapters=tuple(dated))
        return Figures(told, dict(self._drift.get(replica.name, ())), dict(self._moved.get(replica.name, ())))


def kept(before: Account, situation: Situation, replica: Seen, begun: Mapping[str, int]) -> Account:
    """The account after a look.

    Args:
        before: It before that.
        situation: All that is known.
        replica: Whose.
        begun: By version, the requests that have begun there since; what began last is last.
    """
    if not replica.alive or not replica.answered or replica.silent_since is not None:
        return before  # what it has now is not known
    wanted = {engine_name(replica, version): version for version in should_have(situation.spec, replica)}
    names = {version.id: name for name, version in wanted.items()}
    listed = frozenset(model.id for model in replica.models if model.parent is not None or model.id in wanted)
    used = {names.get(version, version): count for version, count in begun.items()}
    used = {name: count for name, count in used.items() if name in listed}
    order = tuple(name for name in before.order if name in listed)
    ours = (before.ours | before.changing | replica.changing | wanted.keys()) & listed
    pinned = frozenset(one.name for one in _told(replica) if one.pinned)
    wishes = frozenset(name for name, version in wanted.items() if version.name in situation.spec.pins)
    account = Account(
        started=replica.launched.started,
        known=True,
        had=listed,
        changing=replica.changing,
        expected={name: version.path for name, version in wanted.items()},
        ours=ours,
        stray=frozenset(replica.unlisted) & listed - ours,
        wrong=frozenset(name for name, version in wanted.items() if differs(replica, version)),
        pinned=pinned,
        found=(before.found & pinned if before.known else pinned) - wishes,
        order=last_used(order, (*(name for name in sorted(listed) if name not in before.had), *used)),
        demand=demanded(before.demand, used, situation.now),
    )
    found = replica.residency or guessed(situation.spec, replica, account)
    return msgspec.structs.replace(account, since=_dated(before, found, situation.now))


def drifted(before: Account, now: Account) -> Iterator[tuple[str, str]]:
    """What a replica has otherwise than control had left it, each once, as kind and name.

    `missing`: it lacks what it had and should have. `unwanted`: it has what nobody here has loaded or wants. `changed`:
    what it has under a name was read from another place. `unpinned`: what had its slot for good has not any more.
    What control itself is changing, or has been told to since, is none of that.
    """
    if now is before:
        return
    changing = before.changing | now.changing
    if before.known:
        for name in sorted(before.had & now.expected.keys() - now.had - changing):
            yield "missing", name
        for name in sorted(before.pinned & now.had - now.pinned - changing):
            yield "unpinned", name
    for name in sorted(now.stray - before.stray):
        yield "unwanted", name
    for name in sorted(now.wrong - before.wrong - changing):
        if before.expected.get(name, now.expected[name]) == now.expected[name]:
            yield "changed", name


def guessed(spec: FleetSpec, replica: Seen, account: Account) -> Residency | None:
    """Where an engine that does not tell should have its adapters, by their last use and the sizes of its pool.

    vLLM was started with these sizes, if we have started it; of any other server they are guesses, too.
    """
    pool = _pool(spec, replica)
    if pool is None or not account.order or not replica.alive:
        return None
    slots, host = pool.max_loras, max(pool.max_loras, pool.max_cpu_loras)
    tiers = modelled(account.order, slots, host)
    return Residency(
        slots=slots,
        slots_used=min(slots, len(tiers)),
        host_capacity=host,
        host_used=min(host, len(tiers)),
        adapters=tuple(Resident(name, tier) for name, tier in sorted(tiers.items())),
        guess=True,
    )


def moves(situation: Situation, replica: Seen, account: Account, waiting: Iterable[str]) -> Iterator[Move]:
    """What should move on a replica with the plugin, the most urgent first.

    Args:
        situation: All that is known.
        replica: Which.
        account: What is remembered of it.
        waiting: Versions that requests wait for in the gateways, who has waited longest first.
    """
    told, spec = replica.residency, situation.spec
    ready = situation.state(replica) is ReplicaState.READY and is_complete(spec, replica)
    if not ready or told is None or not told.slots or replica.changing:
        return
    wanted = {version.id: version for version in should_have(spec, replica)}
    tiers = {one.name: one.tier for one in told.adapters if one.name in wanted}
    pinned = {one.name for one in told.adapters if one.pinned}
    always = [name for adapter in spec.pins for name, version in wanted.items() if version.name == adapter]
    wished = pins(always, account.demand, pinned, tiers, told.slots, found=account.found)
    ours = pinned & tiers.keys() if replica.launched.launcher == "external" else pinned
    for name in sorted(ours - wished):
        yield Move(replica.name, "unpin", name)
    for name in sorted(wished - pinned):
        yield Move(replica.name, "pin", name)
    for name in prefetched(waiting, tiers, (told.host_capacity or 0) - told.slots):
        yield Move(replica.name, "prefetch", name)


def _pool(spec: FleetSpec, replica: Seen) -> PoolSpec | None:
    return next((pool for pool in spec.pools if pool.name == replica.launched.pool), None)


def _told(replica: Seen) -> tuple[Resident, ...]:
    return replica.residency.adapters if replica.residency is not None else ()


def _since(account: Account, one: Resident) -> float | None:
    known = account.since.get(one.name)
    return known[1] if known is not None and known[0] is one.tier else None


def _dated(before: Account, found: Residency | None, now: float) -> dict[str, tuple[Tier | None, float]]:
    """Since when each adapter is where it is; what was used since the last look may have been elsewhere meanwhile."""
    dated = {}
    for one in found.adapters if found is not None else ():
        known = before.since.get(one.name)
        dated[one.name] = known if known is not None and known[0] is one.tier else (one.tier, now)
    return dated
