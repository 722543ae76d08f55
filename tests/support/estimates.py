"""Estimates as the gateway makes them where it has no tokenizer, all in one go."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tuneplex.gateway.estimate import Estimate, Tally
from tuneplex.gateway.prompts import parts
from tuneplex.types import Route

__all__ = ["estimate"]


def estimate(route: Route, fields: Mapping[str, msgspec.Raw]) -> Estimate:
    """Tokens of the prompt and to come, by the bytes of texts."""
    tally = Tally(route, fields)
    for part in parts(route, fields):
        tally.add(part, None)
    return tally.result()
