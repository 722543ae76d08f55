"""How an engine is started: what a launcher gives to a driver, and what it gets back."""

from __future__ import annotations

import msgspec

__all__ = ["Command", "Place"]


class Place(msgspec.Struct, frozen=True):
    """What one replica gets of this machine.

    Attributes:
        cores: The processor cores it may compute on; empty leaves it to the engine.
        gpus: The GPUs it may use, as `CUDA_VISIBLE_DEVICES` names them.
        socket: The path of a Unix socket that does not exist yet, under 100 bytes.
        secret: A random key, made for this start only.
    """

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    socket: str = ""
    secret: str = ""


class Command(msgspec.Struct, frozen=True):
    """A process to start: its command line, and what it needs in its environment."""

    arguments: tuple[str, ...]
    env: dict[str, str]
