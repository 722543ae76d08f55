"""What should run, from the fleet's description: pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from tuneplex.control.seen import Seen
from tuneplex.types import Base, FleetSpec, PoolSpec

__all__ = ["Match", "Wanted", "local_peers", "match", "wanted"]


class Wanted(msgspec.Struct, frozen=True):
    """One replica that should run.

    Attributes:
        pool: Its pool.
        settings: A digest of all that makes it different from another one.
        url: Of an engine that already runs, or empty.
    """

    pool: PoolSpec
    settings: str
    url: str = ""


class Match(msgspec.Struct, frozen=True):
    """Which replicas of a pool stand for which wanted ones.

    Attributes:
        kept: Wanted ones and the replicas that are them, living or ended.
        missing: Wanted ones that nothing stands for.
        spare: Replicas that nobody wants, or not like this.
    """

    kept: tuple[tuple[Wanted, Seen], ...]
    missing: tuple[Wanted, ...]
    spare: tuple[Seen, ...]


def wanted(pool: PoolSpec, base: Base) -> tuple[Wanted, ...]:
    """The replicas that a pool should have."""
    if pool.launcher == "external":
        return tuple(Wanted(pool, _settings(pool, base, url), url) for url in pool.urls)
    return (Wanted(pool, _settings(pool, base, "")),) * pool.replicas


def match(wishes: Sequence[Wanted], seen: Sequence[Seen]) -> Match:
    """Let as many replicas as possible stay: those that serve come first, then those that live, then the oldest.

    One that somebody has told to take no requests is the first to go.
    """
    left = sorted(seen, key=_merits)
    kept, missing = [], []
    for wish in wishes:
        found = next((replica for replica in left if replica.launched.settings == wish.settings), None)
        if found is None:
            missing.append(wish)
        else:
            left.remove(found)
            kept.append((wish, found))
    return Match(tuple(kept), tuple(missing), tuple(left))


def _merits(replica: Seen) -> tuple[bool, bool, bool, float]:
    """The smaller, the better."""
    return replica.hold is not None, not replica.answered, not replica.alive, replica.launched.started


def local_peers(spec: FleetSpec) -> int:
    """How many replicas should share this machine's cores."""
    return sum(pool.replicas for pool in spec.pools if pool.launcher == "local" and not pool.gpus)


def _settings(pool: PoolSpec, base: Base, url: str) -> str:
    """A digest; how many replicas a pool has, for whom, and how they drain makes no difference to each of them.

    Nor does how many requests an external engine gets at a time: that one keeps its own settings.
    """
    one = msgspec.structs.replace(pool, replicas=1, urls=(), tenants=(), drain_s=0.0)
    if url:
        one = msgspec.structs.replace(one, concurrent=0)
    return hashlib.sha256(msgspec.json.encode((one, base.name, base.path, url))).hexdigest()[:16]
