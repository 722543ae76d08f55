"""Passes the bytes that huggingface_hub's progress bars count on to a `Progress`."""

from __future__ import annotations

import threading
from typing import Any

from huggingface_hub.utils.tqdm import tqdm

from tuneplex.adapters.progress import Progress

__all__ = ["bar_class"]

# The bar that counts bytes written, of all files together.
_COUNTING = "huggingface_hub.snapshot_download"


def bar_class(progress: Progress, total: int) -> type[tqdm]:
    """A bar for `snapshot_download` that draws nothing and reports how many of `total` bytes have arrived."""
    lock = threading.Lock()
    done = 0

    def report(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress.advance(max(0, min(done, total)), total)

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed through
            self._counting = kwargs.get("name") == _COUNTING
            super().__init__(*args, **(kwargs | {"disable": True}))  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if self._counting:
                report(int(n or 0))

    return Bar
