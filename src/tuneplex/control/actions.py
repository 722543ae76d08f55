"""What control can decide to do: values, carried out elsewhere."""

from __future__ import annotations

from typing import Literal

import msgspec

from tuneplex.launchers.launcher import Order
from tuneplex.types import AdapterVersion

__all__ = ["Action", "Drain", "Forget", "Keep", "Launch", "Load", "Move", "Stop", "Unload", "Way"]

Way = Literal["pin", "unpin", "prefetch"]
"""How an adapter that is loaded can be moved: kept in a slot, let go of, or brought into host memory."""


class Launch(msgspec.Struct, frozen=True):
    """Start a replica, or start it again."""

    order: Order


class Drain(msgspec.Struct, frozen=True):
    """Send a replica no new requests, because it goes away."""

    replica: str
    why: str


class Keep(msgspec.Struct, frozen=True):
    """A replica that was draining is wanted after all."""

    replica: str


class Stop(msgspec.Struct, frozen=True):
    """End a replica."""

    replica: str
    why: str


class Forget(msgspec.Struct, frozen=True):
    """Drop the record of a replica that has ended and is not wanted any more."""

    replica: str


class Load(msgspec.Struct, frozen=True):
    """Load an adapter version on a replica."""

    replica: str
    version: AdapterVersion


class Unload(msgspec.Struct, frozen=True):
    """Unload what the replica's engine calls `name`."""

    replica: str
    name: str


class Move(msgspec.Struct, frozen=True):
    """Let a replica's engine move what it calls `name`; only with the plugin."""

    replica: str
    way: Way
    name: str


Action = Launch | Drain | Keep | Stop | Forget | Load | Unload | Move
