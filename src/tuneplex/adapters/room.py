"""How much the cache may hold, and what leaves it when more is needed: what was used least recently."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tuneplex.adapters.locks import exclusive, free
from tuneplex.errors import SourceError
from tuneplex.units import format_bytes

__all__ = ["Kept", "Room", "held", "kept", "prune", "touch"]

# Whoever starts a fleet needs what was fetched before its description says so.
_GRACE_S = 3600.0
_VERSIONS = ("adapters/*", "bases/*", "hub/*/*/*")
_GONE = ".gone-"


class Kept(msgspec.Struct, frozen=True):
    """Something that the cache holds as a whole: a version of an adapter or of a base, or a fetch that was cut off.

    Attributes:
        path: Its directory.
        size: Bytes on the disk; what several have in common counts for each.
        used: When a fleet was last started or changed with it, Unix time in seconds.
        source: The place in an object store that it was last fetched from, or empty.
    """

    path: str
    size: int
    used: float
    source: str = ""


@dataclass(frozen=True)
class Room:
    """The bounds of a cache.

    Attributes:
        cache: The cache directory.
        quota: How many bytes it may hold; None for as many as the disk has room for.
        in_use: Tells which directories must stay, because a fleet that runs serves from them.
    """

    cache: Path
    quota: int | None = None
    in_use: Callable[[], Iterable[Path]] = tuple

    def make(self, name: str, needed: int) -> None:
        """See that so many bytes more fit, and remove what was used least recently where they would not.

        Raises:
            SourceError: They do not.
        """
        if self.quota is not None and needed > 0:
            prune(self.cache, max(0, self.quota - needed), self.in_use())
            now = held(self.cache)
            if now + needed > self.quota:
                message = f"{name}: needs {format_bytes(needed)}, and the cache may hold {format_bytes(self.quota)}"
                rest = f"of which {format_bytes(now)} are in use or were used within the hour"
                raise SourceError(f"{message}, {rest}", hint="raise storage.cache in the fleet file")
        free_bytes = shutil.disk_usage(self.cache).free
        if free_bytes < needed:
            message = f"{name}: needs {format_bytes(needed)}, {self.cache} has {format_bytes(free_bytes)} free"
            raise SourceError(message, hint="make room there (`tuneplex cache prune` may); nothing was lost")


def touch(path: Path) -> None:
    """Note that something in the cache is used now."""
    with contextlib.suppress(OSError):  # a cache that is only read serves as well
        os.utime(path)


def kept(cache: Path) -> list[Kept]:
    """What the cache holds, the least recently used first."""
    found, places = [], _places(cache)
    for path in _versions(cache):
        with contextlib.suppress(FileNotFoundError):  # another process removes it just now
            size, used = sum(_sizes([path]).values()), path.stat().st_mtime
            found.append(Kept(str(path), size, used, places.get(str(path.relative_to(cache)), "")))
    return sorted(found, key=lambda one: one.used)


def prune(cache: Path, most: int, in_use: Iterable[Path]) -> list[Kept]:
    """Remove what was used least recently, until the cache holds at most so many bytes.

    What is in use, was used within the last hour or is being fetched stays, so it may hold more afterwards.

    Returns:
        What was removed.
    """
    if not cache.is_dir():
        return []
    with exclusive(cache / ".prune.lock", lambda: None):
        _sweep(cache)
        removed: list[Kept] = []
        stays = {path.resolve() for path in in_use}
        for one in kept(cache):
            if held(cache) <= most:
                break
            path = Path(one.path)
            if path.resolve() not in stays and time.time() - one.used >= _GRACE_S and _remove(path):
                removed.append(one)
                _sweep(cache)
        return removed


def _versions(cache: Path) -> Iterator[Path]:
    for pattern in (*_VERSIONS, "fetching/*"):
        for path in cache.glob(pattern):
            whole = path.parent.name == "fetching" or not path.name.startswith(".")
            if whole and path.name != "refs" and path.is_dir() and not path.is_symlink():
                yield path


class _Record(msgspec.Struct, frozen=True):
    """The part of what is known of a place that says where it led."""

    place: str = ""
    version: str = ""


def _places(cache: Path) -> dict[str, str]:
    """Version -> the place that it was fetched from."""
    found = {}
    for file in cache.glob("sources/*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            record = msgspec.json.decode(file.read_bytes(), type=_Record)
            found[record.version] = record.place
    return found


def _remove(path: Path) -> bool:
    """Take it away in one step, so that nobody ever finds half of it; not what somebody is fetching."""
    with contextlib.ExitStack() as stack:
        if path.parent.name == "fetching" and not stack.enter_context(free(path.with_suffix(".lock"))):
            return False
        gone = path.with_name(f"{_GONE}{secrets.token_hex(4)}")
        try:
            path.rename(gone)
        except OSError:
            return False
        shutil.rmtree(gone, ignore_errors=True)
    return True


def _sweep(cache: Path) -> None:
    """Remove files that no version has any more, and what an interrupted removal left; the lock is held."""
    for pattern in (*_VERSIONS, "fetching/*"):
        for left in cache.glob(pattern):
            if left.name.startswith(_GONE):
                shutil.rmtree(left, ignore_errors=True)
    for file in cache.glob("files/*"):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_nlink == 1:
                file.unlink()


def held(cache: Path) -> int:
    """How many bytes of the disk the cache takes."""
    return sum(_sizes([*_versions(cache), cache / "files"]).values())


def _sizes(directories: Iterable[Path]) -> dict[int, int]:
    """The size of each file below the directories, by its number in the file system: one with two names counts once."""
    sizes: dict[int, int] = {}
    for directory in directories:
        for file in directory.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                found = file.lstat()
                sizes[found.st_ino] = found.st_blocks * 512
    return sizes
