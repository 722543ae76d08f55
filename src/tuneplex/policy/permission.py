"""Whether somebody may call a model at all."""

from __future__ import annotations

from fnmatch import fnmatchcase

from tuneplex.identity import ANY, Grant
from tuneplex.types import Model

__all__ = ["permits"]


def permits(grant: Grant, model: Model) -> bool:
    """Whether a grant covers a model: the base by its flag, an adapter by its name in every set of patterns."""
    if model.parent is None:
        return grant.base
    return all(patterns == ANY or _matches(model.name, patterns) for patterns in grant.adapters)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
