"""Who must leave a full tier, and which pins can be granted: pure functions over adapter ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

__all__ = ["can_pin", "host_victims", "slot_victim", "who_returns"]


def slot_victim(
    oldest_first: Iterable[int], pinned: Collection[int], needed: Collection[int], *, pins_yield: bool
) -> int | None:
    """The adapter that gives its slot to another one; None when nobody can.

    Args:
        oldest_first: Who has a slot, the least recently used first.
        pinned: Who should keep its slot.
        needed: Who must keep it, because a batch computes with it.
        pins_yield: Whether a pinned adapter may go when there is nobody else: a batch cannot wait, a wish can.
    """
    free_to_go = [adapter for adapter in oldest_first if adapter not in needed]
    unpinned = [adapter for adapter in free_to_go if adapter not in pinned]
    candidates = unpinned or (free_to_go if pins_yield else [])
    return candidates[0] if candidates else None


def host_victims(
    oldest_first: Iterable[int],
    on_device: Collection[int],
    pinned: Collection[int],
    needed: Collection[int],
    excess: int,
) -> list[int]:
    """The adapters that leave host memory, at most `excess` of them: first those without a slot, by last use.

    Whoever leaves host memory leaves its slot as well, so pinned and needed adapters stay, even above the capacity.
    """
    if excess <= 0:
        return []
    free_to_go = [adapter for adapter in oldest_first if adapter not in needed and adapter not in pinned]
    return sorted(free_to_go, key=lambda adapter: adapter in on_device)[:excess]


def can_pin(adapter: int, pinned: Collection[int], slots: int) -> bool:
    """Whether an adapter can be pinned: one slot must stay for all others."""
    return adapter in pinned or len(pinned) + 1 < slots


def who_returns(pinned: Sequence[int], on_device: Collection[int]) -> int | None:
    """The pinned adapter that had to yield and waits for a slot, the first of them; None when all have theirs."""
    return next((adapter for adapter in pinned if adapter not in on_device), None)
