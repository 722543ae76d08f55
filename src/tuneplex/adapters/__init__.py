"""Where base models and adapters come from, and the immutable versions that adapters become."""

from __future__ import annotations

from tuneplex.adapters.digest import digest
from tuneplex.adapters.gate import Finding, Report, Verdict, inspect
from tuneplex.adapters.progress import Progress, SilentProgress
from tuneplex.adapters.room import Kept, Room, held, kept, prune
from tuneplex.adapters.sources import fetch_adapter, fetch_base
from tuneplex.adapters.versions import make_version

__all__ = [
    "Finding",
    "Kept",
    "Progress",
    "Report",
    "Room",
    "SilentProgress",
    "Verdict",
    "digest",
    "fetch_adapter",
    "fetch_base",
    "held",
    "inspect",
    "kept",
    "make_version",
    "prune",
]
