"""From an adapter's directory to one immutable version of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tuneplex.adapters.digest import digest, files_that_matter
from tuneplex.adapters.gate import Finding, Verdict, inspect, listed, renames
from tuneplex.adapters.locks import exclusive
from tuneplex.adapters.renaming import rename_tensors
from tuneplex.adapters.room import touch
from tuneplex.errors import SourceError
from tuneplex.shapes import ADAPTER_WEIGHTS, BaseShape, read_adapter
from tuneplex.types import AdapterVersion

__all__ = ["make_version"]


def make_version(
    name: str,
    source: str,
    directory: Path,
    *,
    base: BaseShape | None = None,
    cache: Path | None = None,
    judged: bool = True,
) -> AdapterVersion:
    """Let an adapter through the gate, and name its content by its digest.

    Args:
        name: What clients call it.
        source: Where it came from, as the fleet file says it.
        directory: From `fetch_adapter`.
        base: Refuse the adapter if it cannot belong to this model; None does not look.
        cache: Where a copy is kept, so that somebody who trains into `directory` again does not change what a
            running fleet serves, and with names that the engine understands; None serves from `directory` itself.
        judged: False only sees that it is an adapter: engines that are not vLLM know themselves what they serve.

    Returns:
        The version, in no pool yet; `fleetfile.resolve` chooses one.

    Raises:
        SourceError: The adapter cannot be served, or not be copied.
    """
    if not judged:
        rank = read_adapter(directory).rank
        return AdapterVersion(name, digest(directory), path=str(directory), rank=rank, pool="", source=source)
    for finding in listed(directory):
        _check(name, finding)
    found = digest(directory)
    if cache is not None:
        directory, found = _kept(directory, found, cache / "adapters", base)
        touch(directory)
    report = inspect(directory, base)
    for finding in report.findings:
        _check(name, finding)
    if report.renames:
        old, new = next(iter(report.renames.items()))
        hint = "save it with save_pretrained of PEFT; only engines that run here get a copy with other names"
        raise SourceError(f"adapter {name}: {old} should be called {new}", hint=hint)
    return AdapterVersion(name=name, digest=found, path=str(directory), rank=report.facts.rank, pool="", source=source)


def _check(name: str, finding: Finding) -> None:
    if finding.verdict is Verdict.REFUSED:
        raise SourceError(f"adapter {name}: {finding.detail}", hint=finding.way_out)


def _kept(directory: Path, expected: str, store: Path, base: BaseShape | None) -> tuple[Path, str]:
    """The copy with this content; a new one appears by a rename, so nobody ever sees half of it."""
    target = store / expected
    if target.is_dir() and not renames(target, base):
        return target, expected
    try:
        store.mkdir(parents=True, exist_ok=True)
        with exclusive(store / ".lock", lambda: None):
            there = target.is_dir() and not renames(target, base)
            return (target, expected) if there else _copied(directory, store, base)
    except OSError as error:
        hint = f"copies are kept in {store}; make room there"
        raise SourceError(f"{directory}: cannot be copied: {error.strerror}", hint=hint) from None


def _copied(directory: Path, store: Path, base: BaseShape | None) -> tuple[Path, str]:
    """Copy first and take the copy's digest: whatever changes in the meantime, name and content belong together."""
    part = store / ".part"  # whoever left one behind was killed: we hold the lock
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        for file in files_that_matter(directory):
            _copy(file, part / file.name)
        if wanted := renames(part, base):
            rename_tensors(part / ADAPTER_WEIGHTS, wanted)
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
