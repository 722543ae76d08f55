"""What the admin API's routes for adapters take and give."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tuneplex.policy.rollout import Figures
from tuneplex.policy.sequential import Moments
from tuneplex.releases import Probing, Scorer
from tuneplex.types import AdapterVersion

__all__ = ["AdapterInfo", "ProbeWish", "RolloutInfo", "RolloutWish", "VersionInfo", "VersionWish"]

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=30 * 86400)]


class RolloutWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version that is on this machine, and how it shall be rolled out; see `releases.Rollout`."""

    version: AdapterVersion
    share: Share = 0.1
    divided_by: str = "user"
    within_s: Seconds = 3600.0
    probes: tuple[Probing, ...] = ()
    scorer: Scorer | None = None


class VersionWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version of the adapter: its id, its digest, or the beginning of that."""

    version: str


class ProbeWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts that a version shall read; see `VersionWish`."""

    version: str
    probes: tuple[Probing, ...]


class VersionInfo(msgspec.Struct, frozen=True):
    """One version as people see it.

    Attributes:
        id: `NAME@DIGEST`, the digest cut to 12 digits.
        version: What it is.
        added: When, Unix time in seconds.
        by: Who has added it.
        state: `promoted`, `tried` (some requests get it), `probed` (nobody does yet), or `known`.
        replicas: That have it loaded.
    """

    id: str
    version: AdapterVersion
    added: int
    by: str
    state: str
    replicas: tuple[str, ...] = ()


class RolloutInfo(msgspec.Struct, frozen=True):
    """How far the rollout of a version is.

    Attributes:
        version: Its id.
        since: When it was added, Unix time in seconds.
        share: Of the requests that it gets while it is tried.
        divided_by: `user`, `key` or `request`.
        within_s: How long it is tried at most, seconds.
        tried_since: When its trial began, Unix time; None before.
        words: Where it stands, for people.
        old: What is known of the version that is there.
        new: What is known of this one.
        score: Differences of scores, new less old; None without a scorer.
    """

    version: str
    since: int
    share: float
    divided_by: str
    within_s: float
    tried_since: float | None
    words: str
    old: Figures | None = None
    new: Figures | None = None
    score: Moments | None = None


class AdapterInfo(msgspec.Struct, frozen=True):
    """An adapter as people see it.

    Attributes:
        name: Its name.
        promoted: The id of the version that requests get; None while there is none.
        filed: It is in the fleet file.
        versions: All that can be promoted, the newest last.
        rollout: Of the version that is on its way.
    """

    name: str
    promoted: str | None
    filed: bool
    versions: tuple[VersionInfo, ...]
    rollout: RolloutInfo | None = None
