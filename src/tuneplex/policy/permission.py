"""Whether somebody may call a model at all."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

from tuneplex.identity import ANY, Grant
from tuneplex.types import Model

__all__ = ["permits"]


def permits(grant: Grant, model: Model) -> bool:
    """Whether a grant covers a model: the base by its flag, an adapter by its name in every set of patterns."""
    if model.parent is None:
        return grant.base
    if not grant.adapters:  # asked for every request, and most grants have no patterns to look at
        return True
    return all(patterns == ANY or _compiled(patterns).match(model.name) is not None for patterns in grant.adapters)


@lru_cache(maxsize=4096)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """What matches the names that match one of the patterns; without any, nothing does."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")
