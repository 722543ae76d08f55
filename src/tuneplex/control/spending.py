"""The tokens of each day and the money of each month, counted from what the gateways report."""

from __future__ import annotations

from collections.abc import Mapping

from tuneplex.records import Counted, Spending
from tuneplex.types import Used

__all__ = ["Ledger"]

Period = tuple[str, int]
"""Field of `Limits`, and the day or month."""


class Ledger:
    """How much each gateway process has counted for each subject in each period.

    A process says how much it has counted since it started, so nothing is counted twice however often it says so, or
    however often that is written into the store. Processes that are gone are remembered until the period is over.
    """

    def __init__(self) -> None:
        self._periods: dict[Period, Spending] = {}
        self._loaded: set[Period] = set()
        self._unsaved: dict[Counted, int] = {}

    def heard(self, process: str, used: Mapping[str, Used]) -> None:
        """Take in what a process has counted by now.

        Args:
            process: Its name, which no other process ever has.
            used: As it reports it, by subject.
        """
        for subject, one in used.items():
            for kind, told in one.spent.items():
                known = self._periods.setdefault((kind, told.period), {}).setdefault(subject, {})
                if known.get(process, 0) != told.amount:
                    known[process] = told.amount
                    self._unsaved[kind, told.period, subject, process] = told.amount

    def is_loaded(self, kind: str, period: int) -> bool:
        """Whether the store was asked about a period."""
        return (kind, period) in self._loaded

    def load(self, kind: str, period: int, stored: Spending) -> None:
        """Take in what the store holds of a period. Of a process that was heard, what it said is newer."""
        known = self._periods.setdefault((kind, period), {})
        for subject, counts in stored.items():
            known[subject] = {**counts, **known.get(subject, {})}
        self._loaded.add((kind, period))

    def spent(self, periods: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """What was counted in these periods, by kind and by subject."""
        return {
            kind: {subject: sum(counts.values()) for subject, counts in self._periods.get((kind, period), {}).items()}
            for kind, period in periods.items()
        }

    def unsaved(self) -> dict[Counted, int]:
        """What the store does not hold yet."""
        return dict(self._unsaved)

    def saved(self, counted: Mapping[Counted, int]) -> None:
        """The store holds this now. What has been counted since is not saved by it."""
        for key, amount in counted.items():
            if self._unsaved.get(key) == amount:
                del self._unsaved[key]

    def forget(self, periods: Mapping[str, int]) -> None:
        """Let go of all but these periods, as far as the store holds the others."""
        wanted = {*periods.items(), *((kind, period) for kind, period, _subject, _process in self._unsaved)}
        self._periods = {period: known for period, known in self._periods.items() if period in wanted}
        self._loaded &= wanted
