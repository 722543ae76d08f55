"""What becomes of an adapter's versions, and what a fleet with them should be: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tuneplex.errors import StoreConflict, StoreMissing
from tuneplex.log import get_logger
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord, KnownVersion, Rollout
from tuneplex.types import AdapterVersion, Candidate, FleetSpec, PoolSpec, Trial

__all__ = [
    "FILE",
    "ITSELF",
    "added",
    "as_filed",
    "ended",
    "fleet_with",
    "named",
    "pool_for",
    "promoted",
    "removed",
    "rolled_back",
    "tried",
]

FILE = "fleet file"
ITSELF = "tuneplex"
_MOST_VERSIONS = 50
_MOST_BEFORE = 20


# --- what a fleet with them should be


def fleet_with(spec: FleetSpec, records: Mapping[str, AdapterRecord]) -> FleetSpec:
    """The fleet with the versions that its adapters have now.

    Args:
        spec: As the fleet file says it.
        records: What is known of adapters, by name; one of the file that is missing here stays as the file says.
    """
    own = [version for version in spec.adapters if version.name not in records]
    known = [(record, version) for record in records.values() if (version := record.version(record.promoted))]
    placed = (_placed(spec, version) for _record, version in known)
    adapters = [*own, *filter(None, placed)]
    order = {version.name: at for at, version in enumerate(spec.adapters)}
    adapters.sort(key=lambda version: (order.get(version.name, len(order)), version.name))
    candidates = tuple(_candidates(spec, records.values()))
    return msgspec.structs.replace(spec, adapters=tuple(adapters), candidates=candidates)


def pool_for(pools: Sequence[PoolSpec], rank: int, pool: str = "") -> str | None:
    """The pool for an adapter of this rank: the one that it names, else the shared one with the smallest that fits."""
    fitting = [one for one in pools if one.engine != "openai" and one.max_lora_rank >= rank]
    if pool:
        return next((one.name for one in fitting if one.name == pool), None)
    shared = [one for one in fitting if not one.tenants] or fitting
    return min(shared, key=lambda one: one.max_lora_rank).name if shared else None


def _candidates(spec: FleetSpec, records: Iterable[AdapterRecord]) -> Iterator[Candidate]:
    for record in records:
        rollout = record.rollout
        version = record.version(rollout.digest) if rollout is not None else None
        placed = _placed(spec, version) if version is not None else None
        if rollout is not None and placed is not None:
            yield Candidate(placed, _trial(rollout, placed))


def _trial(rollout: Rollout, version: AdapterVersion) -> Trial | None:
    if rollout.tried_since is None:
        return None
    return Trial(version.id, rollout.share, f"{version.id} {rollout.tried_since:.3f}", rollout.divided_by)


def _placed(spec: FleetSpec, version: AdapterVersion) -> AdapterVersion | None:
    """In the pool of the file's version of it, if that fits; the pools may be others than when it was added."""
    filed = next((one.pool for one in spec.adapters if one.name == version.name), "")
    for wished in (*filter(None, (filed, version.pool)), ""):
        pool = pool_for(spec.pools, version.rank, wished)
        if pool is not None:
            return msgspec.structs.replace(version, pool=pool)
    get_logger(__name__).warning("an adapter fits in no pool", adapter=version.id, rank=version.rank)
    return None


# --- what becomes of one of them


def as_filed(record: AdapterRecord | None, version: AdapterVersion | None, at: int) -> AdapterChange:
    """After a fleet file was applied that says this version; None if it is not in the file.

    What the file says is promoted when the file says something else than before, so what was promoted by hand stays.
    An adapter that the file has never named stays, too.
    """
    if version is None:
        if record is None or not record.filed:
            return record, ()
        return removed(record, at, FILE)
    if record is not None and record.filed == version.digest:
        return _with_version(record, version, at, FILE), ()
    before = record or AdapterRecord(version.name)
    known = msgspec.structs.replace(_with_version(before, version, at, FILE), filed=version.digest)
    if known.promoted == version.digest:
        return known, ()
    return promoted(known, version.digest, at, FILE, "the fleet file says so")


def added(record: AdapterRecord | None, version: AdapterVersion, rollout: Rollout) -> AdapterChange:
    """A new version is to be rolled out.

    Raises:
        StoreConflict: It is in use already, or another one is being rolled out.
    """
    before = record or AdapterRecord(version.name)
    if before.promoted == version.digest:
        raise StoreConflict(f"{version.id} is what requests for {version.name} get already")
    if before.rollout is not None:
        other = named(before, before.rollout.digest)
        if before.rollout.digest == version.digest:
            raise StoreConflict(f"{other} is being rolled out already")
        words = "promote it or roll it back first"
        raise StoreConflict(f"another version of {version.name}, {other}, is being rolled out: {words}")
    known = _with_version(before, version, rollout.since, rollout.by)
    event = AdapterEvent(rollout.since, version.name, rollout.by, "added", version.id, version.source)
    return msgspec.structs.replace(known, rollout=rollout), (event,)


def tried(record: AdapterRecord, now: float, why: str) -> AdapterChange:
    """The trial of the version that is being rolled out begins."""
    rollout = record.rollout
    if rollout is None:
        return record, ()
    begun = msgspec.structs.replace(rollout, tried_since=now)
    return msgspec.structs.replace(record, rollout=begun), (
        _event(record, now, ITSELF, ("trial", why), rollout.digest),
    )


def promoted(record: AdapterRecord, digest: str, at: float, who: str, why: str) -> AdapterChange:
    """From now on requests get this version.

    Raises:
        StoreMissing: There is none.
        StoreConflict: They get it already.
    """
    if record.version(digest) is None:
        raise StoreMissing(f"{record.name} has no version {digest[:12]}")
    if record.promoted == digest:
        raise StoreConflict(f"{named(record, digest)} is what requests for {record.name} get already")
    before = (record.promoted, *(other for other in record.before if other not in {record.promoted, digest}))
    rollout = record.rollout if record.rollout is not None and record.rollout.digest != digest else None
    kept = msgspec.structs.replace(
        record, promoted=digest, before=tuple(filter(None, before))[:_MOST_BEFORE], rollout=rollout
    )
    return kept, (_event(record, at, who, ("promoted", why), digest),)


def ended(record: AdapterRecord, at: float, who: str, action: str, why: str) -> AdapterChange:
    """The version that is being rolled out is not promoted, and forgotten; its history is kept."""
    rollout = record.rollout
    if rollout is None:
        return record, ()
    usable = {record.promoted, *record.before}
    left = (one for one in record.versions if one.version.digest != rollout.digest or rollout.digest in usable)
    kept: AdapterRecord | None = msgspec.structs.replace(record, rollout=None, versions=tuple(left))
    if not record.promoted and not record.before:
        kept = None  # nothing is left of an adapter whose first version was refused
    return kept, (_event(record, at, who, (action, why), rollout.digest),)


def rolled_back(record: AdapterRecord, at: float, who: str) -> AdapterChange:
    """Give up the version that is being rolled out; without one, promote the version that was promoted before.

    Raises:
        StoreConflict: There is none.
    """
    if record.rollout is not None:
        return ended(record, at, who, "rolled back", "somebody wished so")
    earlier = next((digest for digest in record.before if record.version(digest) is not None), None)
    if earlier is None:
        raise StoreConflict(f"{record.name} has no earlier version")
    why = f"back from {named(record, record.promoted)}"
    kept, events = promoted(record, earlier, at, who, why)
    if kept is None:
        return kept, events
    left = tuple(digest for digest in kept.before if digest != record.promoted)  # the next one goes further back
    return msgspec.structs.replace(kept, before=left), events


def removed(record: AdapterRecord, at: float, who: str) -> AdapterChange:
    """Nobody gets it any more."""
    return None, (_event(record, at, who, ("removed", ""), record.promoted),)


def named(record: AdapterRecord, digest: str) -> str:
    """A version's id."""
    return f"{record.name}@{digest[:12]}" if digest else record.name


def _event(record: AdapterRecord, at: float, who: str, what: tuple[str, str], digest: str) -> AdapterEvent:
    """What was done, and why."""
    action, why = what
    return AdapterEvent(int(at), record.name, who, action, named(record, digest), why)


def _with_version(record: AdapterRecord, version: AdapterVersion, at: int, by: str) -> AdapterRecord:
    """With this version among those that are known; those in use, and the last ones, are kept."""
    if any(one.version == version for one in record.versions):
        return record
    others = tuple(known for known in record.versions if known.version.digest != version.digest)
    needed = {record.promoted, record.rollout.digest if record.rollout is not None else "", *record.before[:1]}
    spare = len(others) + 1 - _MOST_VERSIONS
    droppable = [one for one in others if one.version.digest not in needed][: max(0, spare)]
    kept = tuple(one for one in others if one not in droppable)
    return msgspec.structs.replace(record, versions=(*kept, KnownVersion(version, at, by)))
