"""Which requests a FakeEngine works on: seats, adapter slots and KV blocks, with vLLM's order of admission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tuneplex.testing.tiers import Adapter

__all__ = ["Scheduler", "Seat"]

_BLOCK = 16


@dataclass(eq=False)
class Seat:
    """One request's place: its sequences, its adapter, the tokens it keeps in the KV cache."""

    sequences: int
    adapter: Adapter | None
    tokens: int
    admitted: asyncio.Future[None] = field(repr=False)

    @property
    def blocks(self) -> int:
        """KV blocks in use, each of 16 tokens."""
        return -(-self.tokens // _BLOCK)


class Scheduler:
    """Admits requests in the order they came, but passes over those whose adapter has no slot now.

    Args:
        max_num_seqs: Sequences that run at the same time.
        max_loras: Different adapters that run at the same time.
        kv_tokens: Size of the KV cache.
    """

    def __init__(self, *, max_num_seqs: int, max_loras: int, kv_tokens: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_loras = max_loras
        self.kv_tokens = kv_tokens
        self.kv_blocks = kv_tokens // _BLOCK
        self._running: list[Seat] = []
        self._waiting: list[Seat] = []
        self._left = asyncio.Event()
        self._held = False

    @property
    def running(self) -> int:
        """Sequences under way."""
        return sum(seat.sequences for seat in self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a seat."""
        return sum(seat.sequences for seat in self._waiting)

    @property
    def waiting_for_slot(self) -> int:
        """Sequences that wait because their adapter has no slot."""
        return sum(seat.sequences for seat in self._waiting if not self._has_slot(seat))

    @property
    def kv_use(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return min(1.0, self._blocks() / self.kv_blocks)

    @property
    def running_adapters(self) -> list[str]:
        """Names of the adapters that requests under way use."""
        return sorted({seat.adapter.name for seat in self._running if seat.adapter})

    @property
    def waiting_adapters(self) -> list[str]:
        """Names of the adapters that waiting requests ask for."""
        return sorted({seat.adapter.name for seat in self._waiting if seat.adapter})

    @property
    def batch(self) -> list[Adapter]:
        """The adapters that requests under way use."""
        return [seat.adapter for seat in self._running if seat.adapter]

    @property
    def asked_for(self) -> list[Adapter]:
        """The adapters of all requests."""
        return [*self.batch, *(seat.adapter for seat in self._waiting if seat.adapter)]

    def uses(self, adapter: Adapter) -> tuple[int, int]:
        """How many sequences of an adapter run, and how many wait."""
        running, waiting = (
            sum(seat.sequences for seat in seats if seat.adapter == adapter) for seats in (self._running, self._waiting)
        )
        return running, waiting

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds that can only change when a request ends."""
        while not condition():
            self._left.clear()
            await self._left.wait()

    def hold(self, *, held: bool) -> None:
        """Let no request begin, or let them begin again."""
        self._held = held
        self._admit()

    @asynccontextmanager
    async def seat(self, *, sequences: int, adapter: Adapter | None, prompt_tokens: int) -> AsyncIterator[Seat]:
        """A place for one request; waits for it, and gives it back however the block ends."""
        admitted = asyncio.get_running_loop().create_future()
        seat = Seat(min(sequences, self.max_num_seqs), adapter, prompt_tokens, admitted)
        self._waiting.append(seat)
        self._admit()
        try:
            await seat.admitted
            yield seat
        finally:
            (self._waiting if seat in self._waiting else self._running).remove(seat)
            self._admit()
            self._left.set()

    def _admit(self) -> None:
        for seat in () if self._held else tuple(self._waiting):
            if self.running + seat.sequences > self.max_num_seqs or not self._has_room(seat):
                return
            if self._has_slot(seat):
                self._waiting.remove(seat)
                self._running.append(seat)
                if not seat.admitted.done():
                    seat.admitted.set_result(None)

    def _blocks(self) -> int:
        return sum(seat.blocks for seat in self._running)

    def _has_room(self, seat: Seat) -> bool:
        return not self._running or self._blocks() + seat.blocks <= self.kv_blocks

    def _has_slot(self, seat: Seat) -> bool:
        used = {running.adapter.id for running in self._running if running.adapter}
        return seat.adapter is None or seat.adapter.id in used or len(used) < self.max_loras
