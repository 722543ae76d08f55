"""What is asked: which adapter, when, and with which prompt; the same for every target, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

__all__ = ["Ask", "Kind", "names", "traffic"]

_IDS = range(64, 256)  # in every vocabulary, and not special


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of traffic.

    Attributes:
        name: As in tables and files.
        rate: Requests a second, at random times, whatever becomes of earlier ones; 0: clients ask side by side.
        clients: How many then, each with its next request as soon as it has the answer to the last.
    """

    name: str
    rate: float = 0.0
    clients: int = 0

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.rate:g} a second" if self.rate else f"{self.clients} clients side by side"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: when, in seconds from the beginning (0 where clients ask side by side), of whom, and what."""

    at: float
    adapter: str
    prompt: tuple[int, ...]


def names(count: int) -> list[str]:
    """The adapters, the most popular one first."""
    return [f"tune-{number:02}" for number in range(count)]


def traffic(kind: Kind, adapters: Sequence[str], requests: int, exponent: float, seed: int) -> list[Ask]:
    """A round's requests. The adapter in place k is asked for in proportion to 1 / k^exponent (Zipf)."""
    draw = Random(seed)  # noqa: S311 - nothing here is secret
    weights = [1 / place**exponent for place in range(1, len(adapters) + 1)]
    asked = draw.choices(adapters, weights, k=requests)
    gaps = (draw.expovariate(kind.rate) if kind.rate else 0.0 for _ in asked)
    return [
        Ask(at, adapter, tuple(draw.choices(_IDS, k=draw.randint(8, 48))))
        for at, adapter in zip(accumulate(gaps), asked, strict=True)
    ]
