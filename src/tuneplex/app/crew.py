"""Control and the gateways of a fleet, and how each is replaced while the fleet runs.

A gateway's successor opens the same listening socket and begins to serve before the old one stops to; the old one ends
when all that it has is finished. Two controls never act at the same time: the next one gets ready, and waits for a lock
that the last one holds as long as it lives. If a successor does not come up, nothing has changed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine

from tuneplex.app.services import Service
from tuneplex.errors import EngineStartError, StateError
from tuneplex.launchers.spawner import Restart
from tuneplex.log import get_logger
from tuneplex.types import Part

__all__ = ["Crew"]

_GATEWAY_PATIENCE_S = 20.0
_CONTROL_PATIENCE_S = 5.0

Tell = Callable[[str], None]


class Crew:
    """The processes that the supervisor starts again whenever they end.

    Args:
        make_control: Makes the service, not started.
        make_gateway: The same, by its index, which no other gateway ever has, and its name, which its successors share.
        gateways: How many there are.

    Attributes:
        on_change: Called after every change of `gateways`.
    """

    def __init__(
        self, make_control: Callable[[], Service], make_gateway: Callable[[int, str], Service], *, gateways: int
    ) -> None:
        self._make_control = make_control
        self._make_gateway = make_gateway
        self.on_change: Callable[[], None] = _nobody
        self._indexes = itertools.count()
        self._living: dict[Service, int] = {}
        self._control = make_control()
        self._gateways = [self._new_gateway(f"gateway-{number}") for number in range(gateways)]
        self._leaving: dict[asyncio.Task[None], Service] = {}
        self._restarting: asyncio.Task[None] | None = None

    @property
    def gateways(self) -> tuple[int, ...]:
        """The indexes of those that live, or should: while one is replaced, of both."""
        return tuple(self._living.values())

    def start(self) -> None:
        """Start all of them."""
        for service in (self._control, *self._gateways):
            service.start()

    async def end(self) -> None:
        """End all of them, gateways first: streams need control no more, but what they have counted does."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait((self._restarting,))
        for task in self._leaving:
            task.cancel()
        gateways = (*self._gateways, *self._leaving.values())
        await asyncio.gather(*(gateway.stop(_GATEWAY_PATIENCE_S) for gateway in gateways))
        await self._control.stop(_CONTROL_PATIENCE_S)

    async def restart(self, wish: Restart, tell: Tell) -> None:
        """Replace what is wished, control first; cancelled, it leaves each of them the old one or the new one.

        Args:
            wish: What, and how patiently.
            tell: Called with each step, in words.

        Raises:
            StateError: Another restart is under way.
            EngineStartError: A successor did not come up.
        """
        if self._restarting is not None:
            raise StateError("another restart is under way", hint="try again when it is done")
        self._restarting = asyncio.current_task()
        try:
            if wish.part in {Part.CONTROL, Part.ALL}:
                await self._replace_control(wish, tell)
            if wish.part in {Part.GATEWAYS, Part.ALL}:
                for at in range(len(self._gateways)):
                    await self._replace_gateway(at, wish, tell)
        finally:
            self._restarting = None

    async def _replace_control(self, wish: Restart, tell: Tell) -> None:
        old, new = self._control, self._make_control()
        tell("control: starts anew")
        await _try(new, "prepared", wish.patience_s)
        self._control = new
        new.keep()
        self._see_off(old, old.stop(_CONTROL_PATIENCE_S))
        tell("control: takes over")
        await new.hear("serving", wish.patience_s)

    async def _replace_gateway(self, at: int, wish: Restart, tell: Tell) -> None:
        old = self._gateways[at]
        new = self._new_gateway(old.name)
        tell(f"{old.name}: starts anew")
        try:
            await _try(new, "ready", wish.patience_s)
        except BaseException:
            self._forget(new)
            raise
        self._gateways[at] = new
        new.keep()
        old.retire()
        self._see_off(old, self._drain(old, wish.drain_s))
        tell(f"{old.name}: serves; the old one finishes what it has")

    def _new_gateway(self, name: str) -> Service:
        index = next(self._indexes)
        gateway = self._make_gateway(index, name)
        self._living[gateway] = index
        self.on_change()
        return gateway

    def _forget(self, gateway: Service) -> None:
        del self._living[gateway]
        self.on_change()

    async def _drain(self, old: Service, drain_s: float) -> None:
        try:
            async with asyncio.timeout(drain_s):
                await old.gone()
        except TimeoutError:
            get_logger(__name__).warning("has not finished in time and is ended", service=old.name, drain_s=drain_s)
            await old.stop(_GATEWAY_PATIENCE_S)
        self._forget(old)

    def _see_off(self, old: Service, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._leaving[task] = old
        task.add_done_callback(self._leaving.pop)


async def _try(new: Service, word: str, patience_s: float) -> None:
    """Start a successor until it says how far it is; one that does not leaves nothing behind."""
    try:
        await new.try_start()
        await new.hear(word, patience_s)
    except OSError as error:
        raise EngineStartError(f"the new {new.name} cannot be started: {error}") from error
    except BaseException:
        await new.stop(0)
        raise


def _nobody() -> None:
    """What is told of a change as long as nobody listens."""
