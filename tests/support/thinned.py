"""Cases that are many: some of them always, all of them with `make test-full`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["thinned"]


def thinned(cases: Sequence[Any], every: int) -> list[Any]:
    """The first of each so many cases as it is, and the others marked `full`."""
    return [case if at % every == 0 else _full(case) for at, case in enumerate(cases)]


def _full(case: Any) -> Any:  # noqa: ANN401 - whatever a test takes
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.full)
