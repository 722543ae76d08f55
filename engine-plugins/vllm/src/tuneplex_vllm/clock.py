"""How long it takes to fill a slot: by the device's own events where there are any, so that nothing has to wait."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["Clock"]


class Clock:
    """Times copies to the device.

    On the CPU a copy has ended when its call returns. Elsewhere it has only been queued, so two events are queued
    around it and read later, by `settle`.

    Args:
        device: Where the slots are.
        report: Is told the adapter and how many seconds its copy took.
    """

    def __init__(self, device: torch.device, report: Callable[[int, float], None]) -> None:
        self._on_cpu = device.type == "cpu"
        self._device = device
        self._report = report
        self._pending: list[tuple[int, Any, Any]] = []

    @contextlib.contextmanager
    def taken(self, adapter: int) -> Iterator[None]:
        """Time what is done inside; a failure is not reported."""
        if self._on_cpu:
            start = time.perf_counter()
            yield
            self._report(adapter, time.perf_counter() - start)
            return
        begin = self._event()
        yield
        self._pending.append((adapter, begin, self._event()))

    def settle(self) -> None:
        """Report the copies that have ended by now."""
        while self._pending and self._pending[0][2].query():
            adapter, begin, end = self._pending.pop(0)
            self._report(adapter, begin.elapsed_time(end) / 1000)

    def _event(self) -> Any:  # noqa: ANN401 - each device has a type of its own
        event = torch.Event(self._device.type, enable_timing=True)
        event.record()
        return event
