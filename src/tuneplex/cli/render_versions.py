"""What the commands show of adapters' versions: pure functions from values to sheets and lines."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tuneplex.cli.terminal import Cell, Sheet
from tuneplex.cli.times import distance, moment
from tuneplex.control.version_bodies import AdapterInfo, RolloutInfo, VersionInfo
from tuneplex.policy.rollout import Figures
from tuneplex.policy.sequential import Moments
from tuneplex.releases import AdapterEvent
from tuneplex.units import format_duration

__all__ = ["history", "rollout", "summary", "versions"]

_STYLES = {"promoted": "green", "tried": "yellow", "probed": "yellow"}
_BAD = frozenset({"refused", "rolled back", "removed"})


def summary(found: AdapterInfo) -> str:
    """One line about an adapter."""
    if found.rollout is not None:
        return f"{found.rollout.version} is being rolled out: {found.rollout.words}"
    return f"requests for {found.name} get {found.promoted}" if found.promoted else f"{found.name} is gone"


def versions(found: AdapterInfo, now: float) -> Sheet:
    """One row for each version, the newest last."""
    return Sheet(
        columns=("VERSION", "STATE", "RANK", "LOADED ON", "ADDED", "BY", "SOURCE"),
        rows=tuple(_row(one, now) for one in found.versions),
        empty="no versions",
        right=frozenset({"RANK"}),
        flexible=frozenset({"LOADED ON", "SOURCE"}),
    )


def _row(one: VersionInfo, now: float) -> tuple[Cell, ...]:
    return (
        Cell(one.id, "bold"),
        Cell(one.state, _STYLES.get(one.state, "dim")),
        Cell(str(one.version.rank)),
        Cell(", ".join(one.replicas)),
        Cell(distance(one.added, now)),
        Cell(one.by),
        Cell(one.version.source),
    )


def rollout(found: RolloutInfo, now: float) -> Sheet:
    """How far the rollout of a version is."""
    rows = [("rollout", f"{found.version}, since {distance(found.since, now)}"), ("now", found.words)]
    if found.tried_since is not None:
        left = max(0.0, found.tried_since + found.within_s - now)
        each = "each request" if found.divided_by == "request" else f"each {found.divided_by}"
        rows.append(("share", f"{100 * found.share:g} % of the requests, {each} always the same version"))
        rows.append(("decided by", f"the test, or in {format_duration(left)} by what is known then"))
    rows += [(name, _figures(side)) for name, side in (("old", found.old), ("new", found.new)) if side is not None]
    if found.score is not None:
        rows.append(("score", f"{found.score.mean:+.3g} on average in {found.score.count} pairs"))
    return Sheet(
        columns=("", ""),
        rows=tuple((Cell(name, "bold"), Cell(value)) for name, value in rows),
        flexible=frozenset({""}),
    )


def _figures(side: Figures) -> str:
    parts = [f"{side.requests} requests, {side.errors} with errors"]
    parts += [f"{name} {_seconds(one)}" for name, one in (("TTFT", side.ttft), ("TPOT", side.tpot)) if one.count]
    if side.length.count:
        parts.append(f"{math.expm1(side.length.mean):.3g} tokens")
    return ", ".join(parts)


def _seconds(values: Moments) -> str:
    return f"{1000 * math.exp(values.mean):.3g} ms"


def history(events: Iterable[AdapterEvent]) -> Sheet:
    """What was done with an adapter, oldest first."""
    return Sheet(
        columns=("WHEN", "WHAT", "VERSION", "WHO", "WHY"),
        rows=tuple(
            (
                Cell(moment(one.at)),
                Cell(one.action, "red" if one.action in _BAD else ""),
                Cell(one.version, "bold"),
                Cell(one.who),
                Cell(one.why),
            )
            for one in events
        ),
        empty="nothing was done with it",
        flexible=frozenset({"WHY"}),
    )
