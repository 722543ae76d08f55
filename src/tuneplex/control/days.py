"""The tokens of each day, counted from what the gateways report."""

from __future__ import annotations

from collections.abc import Mapping

from tuneplex.records import Counted, Day
from tuneplex.types import Used

__all__ = ["DAY_S", "Days"]

DAY_S = 86400


class Days:
    """How many tokens each gateway process has counted for each subject on each day.

    A process says how much it has counted since it started, so nothing is counted twice however often it says so, or
    however often that is written into the store. Processes that are gone are remembered until the day is over.
    """

    def __init__(self) -> None:
        self._days: dict[int, Day] = {}
        self._loaded: set[int] = set()
        self._unsaved: dict[Counted, int] = {}

    def heard(self, process: str, used: Mapping[str, Used]) -> None:
        """Take in what a process has counted by now.

        Args:
            process: Its name, which no other process ever has.
            used: As it reports it, by subject.
        """
        for subject, one in used.items():
            known = self._days.setdefault(one.day, {}).setdefault(subject, {})
            if known.get(process, 0) != one.day_tokens:
                known[process] = one.day_tokens
                self._unsaved[subject, one.day, process] = one.day_tokens

    def is_loaded(self, day: int) -> bool:
        """Whether the store was asked about a day."""
        return day in self._loaded

    def load(self, day: int, stored: Day) -> None:
        """Take in what the store holds of a day. Of a process that was heard, what it said is newer."""
        known = self._days.setdefault(day, {})
        for subject, counts in stored.items():
            known[subject] = {**counts, **known.get(subject, {})}
        self._loaded.add(day)

    def spent(self, day: int) -> dict[str, int]:
        """Tokens of a day, by subject."""
        return {subject: sum(counts.values()) for subject, counts in self._days.get(day, {}).items()}

    def unsaved(self) -> dict[Counted, int]:
        """What the store does not hold yet."""
        return dict(self._unsaved)

    def saved(self, counted: Mapping[Counted, int]) -> None:
        """The store holds this now. What has been counted since is not saved by it."""
        for key, tokens in counted.items():
            if self._unsaved.get(key) == tokens:
                del self._unsaved[key]

    def forget(self, today: int) -> None:
        """Let go of other days, as far as the store holds them."""
        wanted = {today, *(day for _subject, day, _process in self._unsaved)}
        self._days = {day: known for day, known in self._days.items() if day in wanted}
        self._loaded &= wanted
