"""Whether an adapter's new version does anything at all, and what it did elsewhere: by log-probabilities of probes.

An adapter that is silently not applied answers every request, quickly and without an error, with the base's words. No
comparison of traffic finds that when the version before was not applied either. So before a new version gets traffic,
the base and it tell the log-probabilities of the same tokens, those of the adapter's own probes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

__all__ = ["Probe", "Probed", "Tolerance", "judge_probes"]

_IMPOSSIBLE = -9999.0  # what OpenAI's API, and so vLLM, writes for minus infinity


class Probe(msgspec.Struct, frozen=True):
    """What was told of one probe: natural logarithms of the probabilities of the same tokens in the same order.

    Attributes:
        name: Of the probe, as messages name it.
        base: By the base.
        base_again: By the base, asked a second time: what differs is noise.
        new: By the new version.
        reference: By the same version where it was recorded; None where it was not.
    """

    name: str
    base: tuple[float, ...]
    base_again: tuple[float, ...]
    new: tuple[float, ...]
    reference: tuple[float, ...] | None = None


class Tolerance(msgspec.Struct, frozen=True):
    """How much log-probabilities differ without a reason, in nats. The defaults suit bfloat16.

    Logits near 20 are multiples of 1/8 in bfloat16, so single tokens move by several times that when kernels change.
    Between bfloat16 and float32, SmolLM2-135M moves by 0.03 to 0.06 in the mean of a prompt and by 0.5 in a single
    token; two kinds of bfloat16 kernels may differ by more. Fine-tunes of it move prompts by 0.4 to 0.8 in the mean.

    Attributes:
        noise: A probe whose mean distance from the base's is no more than this has not changed, even where the base
            says twice exactly the same.
        mean: The mean distance from a reference, over the tokens of a probe.
        most: The largest distance from a reference of any token.

    Raises:
        ValueError: One of them is below 0, or no number.
    """

    noise: float = 0.1
    mean: float = 0.15
    most: float = 1.5

    def __post_init__(self) -> None:
        for name in ("noise", "mean", "most"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a number from 0 on")


class Probed(msgspec.Struct, frozen=True):
    """What the probes say.

    Attributes:
        passed: Whether the version may get traffic.
        why: One sentence for people, with the figures that decided.
    """

    passed: bool
    why: str


def judge_probes(probes: Sequence[Probe], tolerance: Tolerance | None = None) -> Probed:
    """Whether the new version passes. The first trouble that is found is told.

    It differs from the base if the mean distance in at least one probe is above the tolerated noise and above whatever
    any single token of any probe has moved between the base's two answers: a mean of several tokens cannot get there
    by noise alone. One probe is enough, as a fine-tune need not change what it says to each.
    """
    tolerance = tolerance or Tolerance()
    if not probes:
        return Probed(passed=False, why="There are no probes, so nothing shows that the adapter is applied.")
    trouble = next(filter(None, map(_unusable, probes)), None) or _unchanged(probes, tolerance)
    trouble = trouble or next(filter(None, (_off(probe, tolerance) for probe in probes)), None)
    return Probed(passed=False, why=trouble) if trouble else Probed(passed=True, why=_well(probes))


def _unusable(probe: Probe) -> str | None:
    """Answers that cannot be compared."""
    answers = {"the base": probe.base, "the base asked again": probe.base_again, "the new version": probe.new}
    if probe.reference is not None:
        answers["the reference"] = probe.reference
    for who, values in answers.items():
        if not values:
            return f"Probe {probe.name}: {who} has told no log-probabilities."
        if len(values) != len(probe.base):
            return f"Probe {probe.name}: {who} has told {len(values)} log-probabilities and the base {len(probe.base)}."
        for place, value in enumerate(values, start=1):
            if not _IMPOSSIBLE < value < math.inf:
                return f"Probe {probe.name}: {who} has told {value} for token {place}, which is no log-probability."
    return None


def _unchanged(probes: Sequence[Probe], tolerance: Tolerance) -> str | None:
    """The adapter does nothing that could not be noise."""
    noise = max(max(_distances(probe.base, probe.base_again)) for probe in probes)
    best = _furthest(probes)
    change = _mean(_distances(best.new, best.base))
    if change > max(noise, tolerance.noise):
        return None
    which = "the base itself differs by as much when asked twice" if noise >= tolerance.noise else "that may be noise"
    return (
        f"The adapter seems not to be applied: probe {best.name}, which changes most, differs from the base by"
        f" {change:.3g} nats a token, and {which} ({max(noise, tolerance.noise):.3g})."
    )


def _off(probe: Probe, tolerance: Tolerance) -> str | None:
    """It does something else than it did where the reference was recorded."""
    if probe.reference is None:
        return None
    distances = _distances(probe.new, probe.reference)
    mean, most = _mean(distances), max(distances)
    if mean > tolerance.mean:
        return (
            f"Probe {probe.name} differs from its reference by {mean:.3g} nats a token;"
            f" at most {tolerance.mean:g} is noise."
        )
    if most > tolerance.most:
        place = distances.index(most) + 1
        return (
            f"Probe {probe.name} differs from its reference by {most:.3g} nats at token {place};"
            f" at most {tolerance.most:g} is noise."
        )
    return None


def _well(probes: Sequence[Probe]) -> str:
    best = _furthest(probes)
    changed = f"probe {best.name} differs from the base by {_mean(_distances(best.new, best.base)):.3g} nats a token"
    recorded = [_mean(_distances(probe.new, probe.reference)) for probe in probes if probe.reference is not None]
    if not recorded:
        return f"The adapter is applied: {changed}; no reference was recorded."
    met = f"{len(recorded)} of {len(probes)} probes have references and are within {max(recorded):.2g} of them"
    return f"The adapter is applied: {changed}; {met}."


def _furthest(probes: Sequence[Probe]) -> Probe:
    """The probe that differs most from the base."""
    return max(probes, key=lambda probe: _mean(_distances(probe.new, probe.base)))


def _distances(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [abs(one - other) for one, other in zip(ones, others, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return min(max(values), math.fsum(values) / len(values))  # a rounding must not lift it above all of them
