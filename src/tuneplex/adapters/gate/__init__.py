"""The gate: what an adapter is, and whether an engine would serve all of it, before any engine sees it."""

from __future__ import annotations

from tuneplex.adapters.gate.inspection import inspect, listed, renames
from tuneplex.adapters.gate.report import Facts, Finding, Report, Verdict

__all__ = ["Facts", "Finding", "Report", "Verdict", "inspect", "listed", "renames"]
