"""How long steps tell what they do: a protocol for whoever shows it, and one that shows nothing."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "SilentProgress"]


class Progress(Protocol):
    """Receives what a long step does. Calls come from one thread at a time and must return at once."""

    def step(self, text: str) -> None:
        """A new step has begun; `text` is for people and holds no trailing dots."""

    def advance(self, done: int, total: int) -> None:
        """The step has done `done` of `total`: bytes, tensors or packages, as the step's text says."""


class SilentProgress:
    """Shows nothing."""

    def step(self, text: str) -> None:
        """Ignore a step."""

    def advance(self, done: int, total: int) -> None:
        """Ignore an advance."""
