"""How the gateways share each limit: by demand, and never so that all of them together could let in more.

A gateway goes by its share alone. What it has let in cannot be taken back before it is over or its minute has passed,
and what it was told counts until it says that it goes by something newer. So a share grows only by what the others
have really given up.

Half of a limit is spread evenly and never moves: that much every gateway may always let in, also one that has just
started and was not told anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["Want", "ceiling", "floor", "shares"]


class Want(msgspec.Struct, frozen=True):
    """One gateway's part in one limit.

    Attributes:
        held: The largest share that it may go by now.
        used: What it has let in that still counts.
        wanted: What it would let in if it could.
    """

    held: int = 0
    used: int = 0
    wanted: int = 0


def floor(limit: int, gateways: int) -> int:
    """What each gateway may always let in: its part of the half that never moves, and at least one if that is possible.

    A single gateway may always let in all of it.
    """
    if gateways == 1:
        return limit
    return max(1, limit // 2 // gateways) if limit >= gateways else 0


def ceiling(limit: int, gateways: int) -> int:
    """The most that one gateway can ever hold."""
    return limit - (gateways - 1) * floor(limit, gateways)


def shares(limit: int, gateways: Mapping[int, Want]) -> dict[int, int]:
    """The next share of each gateway.

    They sum to at most the limit. So does the larger of new and old share, summed over all gateways, and the larger of
    both and use, unless that was over the limit before. Demand beyond the floor decides who gets the rest; without any,
    it is spread evenly.
    """
    if not gateways:
        return {}
    least = floor(limit, len(gateways))
    aims = _aims(limit, least, gateways)
    bound = {index: max(want.held, want.used) for index, want in gateways.items()}
    # What is in use already lets in nothing new, but it ends, and then all that is held has to fit.
    covered = {index: max(0, min(aims[index], bound[index]) - want.held) for index, want in gateways.items()}
    unheld = max(0, limit - sum(want.held for want in gateways.values()))
    back = _split(min(unheld, sum(covered.values())), covered)
    missing = {index: max(0, aims[index] - bound[index]) for index in gateways}
    free = max(0, limit - sum(bound.values()))
    grown = _split(min(free, sum(missing.values())), missing)
    return {index: min(aims[index], want.held + back[index] + grown[index]) for index, want in gateways.items()}


def _aims(limit: int, least: int, gateways: Mapping[int, Want]) -> dict[int, int]:
    """Where shares should go; they sum to the limit."""
    lacking = {index: max(0, min(limit, want.wanted) - least) for index, want in gateways.items()}
    if not any(lacking.values()):
        lacking = dict.fromkeys(gateways, 1)
    rest = _split(limit - least * len(gateways), lacking)
    return {index: least + rest[index] for index in gateways}


def _split(amount: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Divide by weight, exactly; what is left by rounding down goes to the heaviest, of equal ones to the lowest."""
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 0)
    parts = {index: amount * weight // total for index, weight in weights.items()}
    left = amount - sum(parts.values())
    for index in sorted(weights, key=lambda index: (-weights[index], index))[:left]:
        parts[index] += 1
    return parts
