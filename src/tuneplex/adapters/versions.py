"""From an adapter's directory to one immutable version of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tuneplex.adapters.digest import digest, files_that_matter
from tuneplex.adapters.locks import exclusive
from tuneplex.adapters.room import touch
from tuneplex.errors import SourceError
from tuneplex.shapes import BaseShape, check_fit, read_adapter
from tuneplex.types import AdapterVersion

__all__ = ["make_version"]


def make_version(
    name: str, source: str, directory: Path, *, base: BaseShape | None = None, cache: Path | None = None
) -> AdapterVersion:
    """Check an adapter, and name its content by its digest.

    Args:
        name: What clients call it.
        source: Where it came from, as the fleet file says it.
        directory: From `fetch_adapter`.
        base: Refuse the adapter if it cannot belong to this model; None does not look.
        cache: Where a copy is kept, so that somebody who trains into `directory` again does not change what a
            running fleet serves; None serves from `directory` itself.

    Returns:
        The version, in no pool yet; `fleetfile.resolve` chooses one.

    Raises:
        SourceError: The adapter cannot be served, or not be copied.
    """
    found = digest(directory)
    if cache is not None:
        directory, found = _kept(directory, found, cache / "adapters")
        touch(directory)
    shape = read_adapter(directory)
    if base is not None:
        check_fit(name, shape, base)
    return AdapterVersion(name=name, digest=found, path=str(directory), rank=shape.rank, pool="", source=source)


def _kept(directory: Path, expected: str, store: Path) -> tuple[Path, str]:
    """The copy with this content; a new one appears by a rename, so nobody ever sees half of it."""
    target = store / expected
    if target.is_dir():
        return target, expected
    try:
        store.mkdir(parents=True, exist_ok=True)
        with exclusive(store / ".lock", lambda: None):
            return (target, expected) if target.is_dir() else _copied(directory, store)
    except OSError as error:
        hint = f"copies are kept in {store}; make room there"
        raise SourceError(f"{directory}: cannot be copied: {error.strerror}", hint=hint) from None


def _copied(directory: Path, store: Path) -> tuple[Path, str]:
    """Copy first and take the copy's digest: whatever changes in the meantime, name and content belong together."""
    part = store / ".part"  # whoever left one behind was killed: we hold the lock
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        for file in files_that_matter(directory):
            _copy(file, part / file.name)
        found = digest(part)
        target = store / found
        if not target.is_dir():
            part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target, found


def _copy(source: Path, target: Path) -> None:
    """Copy one file down to the disk, so that a power cut cannot leave the name without its content."""
    with source.open("rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())
