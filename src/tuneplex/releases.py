"""An adapter's versions, and what has become of them: frozen values."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tuneplex.policy.sequential import Moments
from tuneplex.types import AdapterVersion

__all__ = [
    "AdapterChange",
    "AdapterEvent",
    "AdapterRecord",
    "KnownVersion",
    "Probing",
    "Rollout",
    "Scorer",
]


class KnownVersion(msgspec.Struct, frozen=True):
    """A version that can be promoted.

    Attributes:
        version: What it is.
        added: When, Unix time in seconds.
        by: Who has added it: a key's id, `local` or `fleet file`.
    """

    version: AdapterVersion
    added: int
    by: str


class Probing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that a new version has to read before anybody gets it.

    Attributes:
        prompt: As it is; or
        messages: A conversation, in OpenAI's form, which the base's template is applied to.
        logprobs: Of its tokens but the first, as somebody recorded them of this very version.
    """

    prompt: str = ""
    messages: tuple[dict[str, str], ...] = ()
    logprobs: tuple[float, ...] | None = None


class Scorer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who tells how good an answer is.

    Attributes:
        url: It is posted to; or
        command: reads its standard input.
        tokens: That an answer has at most.
    """

    url: str = ""
    command: tuple[str, ...] = ()
    tokens: int = 64


class Rollout(msgspec.Struct, frozen=True):
    """How far a new version has come that nobody has promoted yet.

    Attributes:
        digest: Of the version.
        since: When it was added, Unix time in seconds.
        by: Who has added it.
        share: Of the requests that it gets while it is tried; 1: it is promoted as soon as its probes are right.
        divided_by: `user`, `key` or `request`, see `Trial`.
        within_s: How long it is tried at most, seconds.
        probes: What it has to read first.
        scorer: Compares its answers with the other version's.
        tried_since: When its trial began, Unix time; None before.
        score: What `scorer` has said so far: differences, new less old.
    """

    digest: str
    since: int
    by: str
    share: float = 0.1
    divided_by: str = "user"
    within_s: float = 3600.0
    probes: tuple[Probing, ...] = ()
    scorer: Scorer | None = None
    tried_since: float | None = None
    score: Moments | None = None


class AdapterRecord(msgspec.Struct, frozen=True):
    """All that is known of an adapter.

    Attributes:
        name: Its name.
        filed: The digest of the version in the fleet file when that was applied last; empty if it was not in it.
        promoted: The digest of the version that requests get; empty while there is none.
        before: The digests of those that were promoted before it, the last one first.
        versions: All that can be promoted, the newest last.
        rollout: Of the version that is on its way.
    """

    name: str
    filed: str = ""
    promoted: str = ""
    before: tuple[str, ...] = ()
    versions: tuple[KnownVersion, ...] = ()
    rollout: Rollout | None = None

    def version(self, digest: str) -> AdapterVersion | None:
        """The one with this digest, if it is known."""
        return next((known.version for known in self.versions if known.version.digest == digest), None)


class AdapterEvent(msgspec.Struct, frozen=True):
    """Something was done with an adapter.

    Attributes:
        at: When, Unix time in seconds.
        adapter: Its name.
        who: A key's id, `local`, `fleet file` or `tuneplex`.
        action: `added`, `trial`, `promoted`, `rolled back`, `refused`, `removed` or `unloaded`.
        version: The id of the version.
        why: In words for people.
    """

    at: int
    adapter: str
    who: str
    action: str
    version: str
    why: str = ""


AdapterChange = tuple[AdapterRecord | None, Sequence[AdapterEvent]]
"""What an adapter's record becomes, None when it is removed, and what was done."""
