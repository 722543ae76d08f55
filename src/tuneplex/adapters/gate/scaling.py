"""Rank and alpha of each module, as PEFT and vLLM find them: by the first pattern that fits the module's name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import msgspec

from tuneplex.adapters.gate.config import Config
from tuneplex.adapters.gate.names import Pair
from tuneplex.adapters.gate.report import Finding, Verdict
from tuneplex.fleetfile.ranks import MAX_LORA_RANKS, smallest_max_rank

__all__ = ["Scaling", "scaling"]

_MOST_PATTERNS = 4096
# Patterns are expressions that somebody else wrote. These can be tried on any name in next to no time; others could
# take for ever, here and in the engine.
_SAFE = re.compile(r"[\w.^$\\|()\[\]*+?-]{1,300}")
_REPEATED_GROUP = re.compile(r"[)\]][*+?]|\\[1-9]")
_REPETITION = re.compile(r"[*+?]")
_MOST_REPETITIONS = 2
_TRUNCATE = "truncate it to a smaller rank by a singular value decomposition of B·A"
_TOGETHER = "the weights and the configuration belong to different adapters; export them together"

_Patterns = tuple[tuple[re.Pattern[str], float], ...]


class Scaling(msgspec.Struct, frozen=True):
    """What was found of ranks and factors.

    Attributes:
        rank: The largest rank.
        factors: The least and the largest factor.
        findings: What is to be said of them.
    """

    rank: int
    factors: tuple[float, float]
    findings: tuple[Finding, ...]


def scaling(config: Config, pairs: tuple[Pair, ...]) -> Scaling:
    """Hold ranks and alphas of the configuration against the weights."""
    if min(config.ranks) < 1:
        wrong = Finding("rank", Verdict.REFUSED, "the configuration has a rank below 1", _TOGETHER)
        return Scaling(0, (0.0, 0.0), (wrong,))
    rank = max(config.ranks)
    ranks, alphas = _compiled(config.rank_pattern), _compiled(config.alpha_pattern)
    if isinstance(ranks, Finding):
        return Scaling(rank, (0.0, 0.0), (ranks,))
    if isinstance(alphas, Finding):
        return Scaling(rank, (0.0, 0.0), (alphas,))
    factors = [_factor(config, pair.module, ranks, alphas) for pair in pairs] or [0.0]
    findings = (
        *_size(rank),
        *_equal(config, pairs, ranks),
        *_alphas(config, factors),
        *_patterns(config),
    )
    return Scaling(rank, (min(factors), max(factors)), findings)


def _compiled(patterns: Mapping[str, float] | None) -> _Patterns | Finding:
    found: list[tuple[re.Pattern[str], float]] = []
    for text, value in (patterns or {}).items():
        if len(found) >= _MOST_PATTERNS or not _is_safe(text):
            detail = f"the pattern {text[:60]!r} is not a module's name or a simple expression; it is not tried"
            return Finding("patterns", Verdict.REFUSED, detail, "write the modules' names instead")
        try:
            found.append((re.compile(rf"(.*\.)?({text})$"), value))
        except (re.error, RecursionError):
            detail = f"the pattern {text[:60]!r} is no regular expression"
            return Finding("patterns", Verdict.REFUSED, detail, "write the modules' names instead")
    return tuple(found)


def _is_safe(text: str) -> bool:
    repetitions = len(_REPETITION.findall(text))
    return bool(_SAFE.fullmatch(text)) and repetitions <= _MOST_REPETITIONS and not _REPEATED_GROUP.search(text)


def _first(patterns: _Patterns, module: str, otherwise: float) -> float:
    return next((value for pattern, value in patterns if pattern.match(module)), otherwise)


def _factor(config: Config, module: str, ranks: _Patterns, alphas: _Patterns) -> float:
    rank = _first(ranks, module, config.r)
    alpha = _first(alphas, module, config.lora_alpha or 0.0)
    return alpha / (math.sqrt(rank) if config.use_rslora else rank)


def _size(rank: int) -> Iterator[Finding]:
    needed = smallest_max_rank(rank)
    if needed is None:
        detail = f"rank {rank}; vLLM serves at most {MAX_LORA_RANKS[-1]}"
        yield Finding("rank", Verdict.REFUSED, detail, _TRUNCATE)
    else:
        yield Finding("rank", Verdict.ACCEPTED, f"{rank}; needs a pool with max_lora_rank {needed} or more")


def _equal(config: Config, pairs: tuple[Pair, ...], ranks: _Patterns) -> Iterator[Finding]:
    """The engine divides by the configuration's rank: where the weights have another, all would be scaled wrongly."""
    for pair in pairs:
        said = int(_first(ranks, pair.module, config.r))
        if pair.rank != said:
            detail = f"{pair.module} has rank {pair.rank}, the configuration says {said}"
            yield Finding("rank", Verdict.REFUSED, detail, _TOGETHER)
            return


def _alphas(config: Config, factors: list[float]) -> Iterator[Finding]:
    if not all(map(math.isfinite, factors)):
        yield Finding("alpha", Verdict.REFUSED, "alpha is not a finite number", "write what it was trained with")
    elif not any(factors):
        yield Finding("alpha", Verdict.WARNED, "alpha is 0: it changes nothing", "write what it was trained with")
    elif config.use_rslora:
        yield Finding("rsLoRA", Verdict.ACCEPTED, "alpha is divided by the square root of the rank")


def _patterns(config: Config) -> Iterator[Finding]:
    for what, patterns in (("rank_pattern", config.rank_pattern), ("alpha_pattern", config.alpha_pattern)):
        if patterns:
            detail = f"{len(patterns)} in {what}; vLLM 0.32 applies them, older ones may not"
            yield Finding("patterns", Verdict.ACCEPTED, detail)
