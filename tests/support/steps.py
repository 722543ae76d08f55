"""A progress that remembers."""

from __future__ import annotations

from tuneplex.adapters.progress import SilentProgress

__all__ = ["Steps"]


class Steps(SilentProgress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.last = (0, 0)

    def step(self, text: str) -> None:
        """Remember a step."""
        self.steps.append(text)

    def advance(self, done: int, total: int) -> None:
        """Remember the last numbers."""
        self.last = (done, total)
