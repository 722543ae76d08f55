"""What ends a benchmark."""

from __future__ import annotations

__all__ = ["BenchmarkError"]


class BenchmarkError(Exception):
    """Something is not as it must be, so that a figure would mean nothing."""
