"""What the gate has to say of an adapter: findings, facts, and what must be renamed before an engine can read it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = ["MERGE", "Facts", "Finding", "Report", "Verdict"]

MERGE = "merge it into the base, and serve that as a base of its own"


class Verdict(StrEnum):
    """What becomes of what was found; the last one that applies is the report's."""

    ACCEPTED = "accepted"
    CONVERTED = "converted"
    WARNED = "warned"
    REFUSED = "refused"


_SEVERITY = tuple(Verdict)


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Attributes:
        check: What was looked at, in a word or two.
        verdict: What becomes of it.
        detail: What was found.
        way_out: What can be done about it; empty where there is nothing to do.
    """

    check: str
    verdict: Verdict
    detail: str
    way_out: str = ""


class Facts(msgspec.Struct, frozen=True):
    """What an adapter is, as far as it could be read.

    Attributes:
        rank: The largest rank that the configuration names.
        max_lora_rank: The least that a pool must allow to serve it; None when vLLM serves no such rank.
        alpha: LoRA alpha, where no pattern says otherwise.
        scaling: The least and the largest factor that B·A is multiplied by.
        rslora: Whether alpha is divided by the square root of the rank.
        dtypes: The types of its tensors.
        size: Bytes of weights.
        modules: What it changes: the last part of each module's name.
        layers: How many layers it changes.
        base_name: The base that it was trained on, as its configuration says.
        effective_rank: The rank that holds 99 % of each module's change; None if that was not computed.
    """

    rank: int = 0
    max_lora_rank: int | None = None
    alpha: float = 0.0
    scaling: tuple[float, float] = (0.0, 0.0)
    rslora: bool = False
    dtypes: tuple[str, ...] = ()
    size: int = 0
    modules: tuple[str, ...] = ()
    layers: int = 0
    base_name: str = ""
    effective_rank: int | None = None


class Report(msgspec.Struct, frozen=True):
    """What the gate found.

    Attributes:
        path: The adapter's directory.
        findings: In the order in which they were made; after a refusal that hides the rest there are no more.
        facts: What could be read.
        renames: Names of tensors that engines do not understand, and what the same tensors must be called.
    """

    path: str
    findings: tuple[Finding, ...]
    facts: Facts
    renames: dict[str, str] = {}

    @property
    def verdict(self) -> Verdict:
        """The most serious one of all findings."""
        return max((finding.verdict for finding in self.findings), key=_SEVERITY.index, default=Verdict.ACCEPTED)

    @property
    def refusal(self) -> Finding | None:
        """The first reason to refuse it, if there is one."""
        return next((finding for finding in self.findings if finding.verdict is Verdict.REFUSED), None)
