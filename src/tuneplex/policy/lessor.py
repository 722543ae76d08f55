"""Control's side of sharing limits: what gateways have said and were told, and what they are told next."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from tuneplex.identity import Limits
from tuneplex.policy.leases import Want, floor, shares
from tuneplex.policy.periods import BUDGETS
from tuneplex.types import GatewayReport, Leases, Stage, Used

__all__ = ["Lessor"]

_PATIENCE = 3
_REMEMBERED = 8
_NEVER_USED = Used()
_NEVER_TOLD = Limits()
_KINDS = tuple(kind for kind in Limits.__struct_fields__ if kind != "cut_streams")


class Lessor:
    """Hears reports, and decides what each gateway may let in.

    It may be new while the gateways are not: their reports say what they go by. Until all of them have been heard,
    nobody gets more than what those that were heard hold together.

    A gateway that takes another one's place makes one more for a while. It holds nothing at first, and is told its
    shares once all others divide by so many, too; when they have given up what they do not need, it is welcome. The
    other one goes on to be one of them until it ends.
    """

    def __init__(self) -> None:
        self._gateways: dict[int, _Gateway] = {}
        self._last = Leases()
        self._patience = _PATIENCE

    def heard(self, report: GatewayReport) -> None:
        """Take in a report."""
        self._gateways.setdefault(report.gateway, _Gateway()).heard(report)

    def decide(
        self,
        limits: Mapping[str, Limits],
        gateways: Collection[int],
        periods: Mapping[str, int],
        spent: Mapping[str, Mapping[str, int]],
    ) -> Leases | None:
        """What gateways should be told now; None if it is what they were told last, or too early to say.

        To be called about once a second.

        Args:
            limits: Of all subjects that have any, by name.
            gateways: Those that live, or should.
            periods: Which it is now of each of `BUDGETS`.
            spent: Of each of them by subject, of all gateways since the period began, as far as reports tell.
        """
        known = self._members(gateways)
        if self._patience and any(gateway.report is None for gateway in known.values()):
            self._patience -= 1
            return None
        asked = {name for gateway in known.values() for name in gateway.subjects()}
        asked.update(*spent.values())
        divided = {name: limits[name] for name in sorted(asked & limits.keys())}
        # Who was not heard is told nothing, and goes on by what it has.
        given: dict[int, dict[str, Limits]] = {index: {} for index, one in known.items() if one.report is not None}
        left: dict[str, dict[str, int]] = {}
        for name, limit in divided.items():
            rest = {
                budget: _left(name, budget, known.values(), spent.get(budget.kind, {}).get(name, 0))
                for budget in _budgets(limit, periods)
            }
            if rest:
                left[name] = {budget.kind: amount for budget, amount in rest.items()}
            for index, share in _divide(name, limit, rest, known).items():
                given[index][name] = share
        welcome = tuple(index for index in known if self._is_welcome(index, known))
        return self._tell(Leases(self._last.generation, given, divided, dict(periods), left, welcome))

    def _members(self, gateways: Collection[int]) -> dict[int, _Gateway]:
        """Those that share; whoever joins is one of them once all others know how many that makes."""
        self._gateways = {index: self._gateways.get(index) or _Gateway() for index in gateways}
        if all(one.shares_among(len(gateways)) for one in self._gateways.values()):
            return self._gateways
        for one in self._gateways.values():
            if one.joins:
                one.put_off()
        return {index: one for index, one in self._gateways.items() if not one.joins}

    def _is_welcome(self, index: int, known: Mapping[int, _Gateway]) -> bool:
        """Whether a gateway that joins was told its shares, and the others go by what it was told they would."""
        one = known[index]
        if one.joins and one.first:
            one.welcome = all(other.goes_by(one.first) for other in known.values() if other is not one)
        return one.welcome and one.report is not None and one.report.stage is Stage.JOINING

    def _tell(self, new: Leases) -> Leases | None:
        newest = max((known.report.leases for known in self._gateways.values() if known.report is not None), default=0)
        if new.generation and newest <= new.generation and new == self._last:
            return None
        self._last = msgspec.structs.replace(new, generation=max(newest, new.generation) + 1)
        for index, told in new.shares.items():
            self._gateways[index].told(self._last.generation, told)
        return self._last


class _Gateway:
    """What one gateway said last, and what it was told."""

    def __init__(self) -> None:
        self.report: GatewayReport | None = None
        self.welcome = False
        self.first = 0  # the leases in which it was told something first
        self._since = 0
        self._told: deque[tuple[int, dict[str, Limits]]] = deque()

    def heard(self, report: GatewayReport) -> None:
        """Believe a report, unless the same process has sent a newer one before."""
        last = self.report
        if last is not None and last.pid == report.pid and report.leases < last.leases:
            return
        self.report = report
        self._since = max(self._since, report.leases)
        # What it goes by still counts: a process that takes its place begins with that.
        while len(self._told) > 1 and self._told[0][0] < self._since:
            self._told.popleft()

    @property
    def joins(self) -> bool:
        """It serves nobody yet, and has not been told that it may."""
        return self.report is not None and self.report.stage is Stage.JOINING and not self.welcome

    def shares_among(self, gateways: int) -> bool:
        """Whether it goes by no more than what it may among so many, as far as it was heard."""
        return self.report is not None and self.report.sharing >= gateways

    def least(self, limit: int, gateways: int) -> int:
        """What it may let in of a limit of which it was told no share; it may not know yet how many there are."""
        if self.joins:
            return 0
        return floor(limit, self.report.sharing or gateways if self.report is not None else gateways)

    def put_off(self) -> None:
        """It is not told anything this time, and what it was told counts no more: it serves nobody yet."""
        self.first = 0
        self._told.clear()

    def goes_by(self, generation: int) -> bool:
        """Whether it goes by these leases, or newer ones, as far as it was heard."""
        return self.report is not None and self.report.leases >= generation

    def told(self, generation: int, known: dict[str, Limits]) -> None:
        """It may go by these from any moment on."""
        self.first = self.first or generation
        self._told.append((generation, known))
        if len(self._told) > _REMEMBERED:  # it does not say what it goes by: the larger of two counts for both
            first, second = self._told.popleft(), self._told.popleft()
            self._told.appendleft((second[0], _larger(first[1], second[1])))

    def subjects(self) -> Iterable[str]:
        """Those that it has had to do with."""
        return self.report.used if self.report is not None else ()

    def used(self, name: str) -> Used:
        """What it has let in of a subject."""
        return self.report.used.get(name, _NEVER_USED) if self.report is not None else _NEVER_USED

    def wanted(self, name: str, kind: str) -> int:
        """What it would let in if it could; who is leaving its place needs to let in no more than comes by chance."""
        leaves = self.report is not None and self.report.stage is Stage.DRAINING
        return 0 if leaves else getattr(self.used(name).wanted, kind) or 0

    def held(self, name: str, kind: str, least: int) -> int:
        """The largest share that it may go by; where it was told none it goes by the least."""
        found = (getattr(share, kind) for share in self._held(name))
        return max((least if share is None else share for share in found), default=least)

    def _held(self, name: str) -> Iterator[Limits]:
        report = self.report
        if report is not None and report.stage is Stage.JOINING:
            pass  # it goes by nothing before it is welcome, and then by no older leases than those that say so
        elif report is not None and name in report.held:
            yield report.held[name]
        elif report is None or not self._told or report.leases < self._told[0][0]:
            yield _NEVER_TOLD  # else what it goes by is among what it was told
        for _, known in self._told:
            yield known.get(name, _NEVER_TOLD)


def _larger(one: dict[str, Limits], other: dict[str, Limits]) -> dict[str, Limits]:
    """The larger share of each kind."""
    return {
        name: _shares({kind: _max(one.get(name), other.get(name), kind) for kind in _KINDS})
        for name in one.keys() | other.keys()
    }


def _max(one: Limits | None, other: Limits | None, kind: str) -> int | None:
    known = [value for share in (one, other) if (value := getattr(share, kind, None)) is not None]
    return max(known, default=None)


class _Budget(NamedTuple):
    """A limit for the period that it is now."""

    kind: str
    limit: int
    period: int


def _budgets(limits: Limits, periods: Mapping[str, int]) -> Iterator[_Budget]:
    for kind in BUDGETS:
        limit = getattr(limits, kind)
        if limit is not None:
            yield _Budget(kind, limit, periods[kind])


def _divide(
    name: str, limits: Limits, left: Mapping[_Budget, int], gateways: Mapping[int, _Gateway]
) -> dict[int, Limits]:
    """The shares of one subject."""
    found: dict[str, dict[int, int]] = {}
    for kind, use in (
        ("requests_per_minute", "requests"),
        ("tokens_per_minute", "tokens"),
        ("concurrent", "concurrent"),
    ):
        limit = getattr(limits, kind)
        if limit is not None:
            wants = {
                index: Want(
                    one.held(name, kind, one.least(limit, len(gateways))),
                    getattr(one.used(name), use),
                    one.wanted(name, kind),
                )
                for index, one in gateways.items()
            }
            found[kind] = shares(limit, _with_unheard(limit, wants, gateways))
    for budget, rest in left.items():
        found[budget.kind] = _divide_rest(name, budget, rest, gateways)
    heard = (index for index, one in gateways.items() if one.report is not None)
    return {index: _shares({kind: share[index] for kind, share in found.items()}) for index in heard}


def _shares(found: Mapping[str, int | None]) -> Limits:
    return msgspec.structs.replace(_NEVER_TOLD, **found)


def _divide_rest(name: str, budget: _Budget, left: int, gateways: Mapping[int, _Gateway]) -> dict[int, int]:
    """What is left of a period is divided, and added to what each has had of it."""
    kind, count = budget.kind, len(gateways)
    used = {index: _spent(one.used(name), budget) for index, one in gateways.items()}
    wants = {
        index: Want(
            max(0, one.held(name, kind, one.least(budget.limit, count)) - used[index]), 0, one.wanted(name, kind)
        )
        for index, one in gateways.items()
    }
    return {index: used[index] + part for index, part in shares(left, _with_unheard(left, wants, gateways)).items()}


def _with_unheard(limit: int, wants: dict[int, Want], gateways: Mapping[int, _Gateway]) -> dict[int, Want]:
    """Those that were not heard may hold all that the others do not."""
    unheard = [index for index, one in gateways.items() if one.report is None]
    taken = sum(want.held for index, want in wants.items() if index not in unheard)
    return wants | {index: msgspec.structs.replace(wants[index], held=max(0, limit - taken)) for index in unheard}


def _left(name: str, budget: _Budget, gateways: Iterable[_Gateway], spent: int) -> int:
    """What is left of a period for all gateways together."""
    return max(0, budget.limit - max(spent, sum(_spent(one.used(name), budget) for one in gateways)))


def _spent(used: Used, budget: _Budget) -> int:
    known = used.spent.get(budget.kind)
    return known.amount if known is not None and known.period >= budget.period else 0
