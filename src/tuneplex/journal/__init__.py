"""The journal of requests: what each process writes down of them, and how that is read again, also after a crash."""

from tuneplex.journal.entries import Began, Closed, Entered, Entry, Lost, Opened, Progress, Refused
from tuneplex.journal.follower import Follower, Numbered
from tuneplex.journal.frames import DamagedError, read_frames
from tuneplex.journal.replay import CRASHED, Finished, Replay, Tried
from tuneplex.journal.writer import Journal, JournalLimits

__all__ = [
    "CRASHED",
    "Began",
    "Closed",
    "DamagedError",
    "Entered",
    "Entry",
    "Finished",
    "Follower",
    "Journal",
    "JournalLimits",
    "Lost",
    "Numbered",
    "Opened",
    "Progress",
    "Refused",
    "Replay",
    "Tried",
    "read_frames",
]
