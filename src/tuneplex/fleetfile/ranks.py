"""The LoRA ranks that vLLM can be built for."""

from __future__ import annotations

__all__ = ["MAX_LORA_RANKS", "smallest_max_rank"]

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_LEAST = 8  # below it nothing is saved


def smallest_max_rank(rank: int) -> int | None:
    """The smallest `max_lora_rank`, at least 8, that serves an adapter of this rank; None if there is none."""
    return next((limit for limit in MAX_LORA_RANKS if limit >= max(rank, _LEAST)), None)
