"""From a fleet file to a fleet that can start: everything is found, fetched and checked, nothing is started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import platformdirs

from tuneplex import fleetfile
from tuneplex.adapters import Progress, Room, fetch_adapter, fetch_base, make_version
from tuneplex.app import engine_env
from tuneplex.app.cache_users import in_use
from tuneplex.errors import SourceError
from tuneplex.fleetfile import FleetFile, parse_source
from tuneplex.shapes import BaseShape, read_adapter, read_base
from tuneplex.types import AdapterVersion, Base, FleetSpec, ObjectStore

__all__ = ["cache_dir", "check_telemetry", "engine_python", "object_store", "prepare", "preview"]

_TELEMETRY = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


def cache_dir() -> Path:
    """Where fetched and converted models are kept on this system."""
    return platformdirs.user_cache_path("tuneplex")


def prepare(path: Path, progress: Progress, *, running: FleetSpec | None = None) -> FleetSpec:
    """Bring all that a fleet file names to this machine.

    Args:
        path: The fleet file.
        progress: Told about each step.
        running: What runs now, if anything: settings that the file leaves open then stay as they are.

    Raises:
        UserError: The file or a source is wrong, or this machine lacks something; nothing was started.
    """
    file = fleetfile.load(path)
    check_telemetry(file)
    python = engine_python(file)
    base = _base(file, progress, python)
    with _placed(file, "base", "source"):
        shape = read_base(Path(base.path)) if base.path else None
    versions = [_version(file, name, shape, progress) for name in file.adapters]
    return fleetfile.resolve(file, base=base, adapters=versions, python=python, env=os.environ, running=running)


def preview(file: FleetFile) -> FleetSpec | None:
    """What the file comes to, as far as that can be told without fetching anything; None when it cannot.

    Raises:
        UserError: A source on this machine, or the file itself, cannot be served.
    """
    sources = {name: parse_source(section.source) for name, section in file.adapters.items()}
    if any(source.kind != "dir" for source in sources.values()):
        return None
    versions = []
    for name, source in sources.items():
        with _placed(file, "adapters", name, "source"):
            rank = read_adapter(Path(source.location)).rank
        versions.append(AdapterVersion(name, digest="", path=source.location, rank=rank, pool="", source=""))
    base = Base(name=file.base.name or "", path="")
    return fleetfile.resolve(file, base=base, adapters=versions, python=engine_env.find() or "", env=os.environ)


def check_telemetry(file: FleetFile) -> None:
    """See that what sends traces is there, if any are to be sent.

    Raises:
        UserError: It is not.
    """
    if file.telemetry.traces is not None and not all(map(_is_there, _TELEMETRY)):
        hint = 'pip install "tuneplex[otel]"'
        raise file.places.error(("telemetry", "traces"), "needs OpenTelemetry, which is not installed", hint=hint)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # not even its parent is
        return False


def engine_python(file: FleetFile) -> str:
    """The interpreter that engines of this fleet run with; empty when it starts none.

    Raises:
        UserError: There is no such interpreter.
    """
    if not file.runs_engines:
        return ""
    named = file.engine.python
    if named is None:
        return str(engine_env.require())
    if not os.access(named, os.X_OK):
        hint = "name the Python of an environment that has vLLM, or remove the key and run `tuneplex engine install`"
        raise file.places.error(("engine", "python"), f"{named} is not a program", hint=hint)
    return named


def _base(file: FleetFile, progress: Progress, python: str) -> Base:
    name, source = file.base.name or "", file.base.source
    if source is None or not file.runs_engines:
        return Base(name=name, path="", source=source or "")
    with _placed(file, "base", "source"):
        return fetch_base(
            name,
            source,
            cache_dir(),
            progress,
            python=Path(python),
            env=os.environ,
            store=object_store(file),
            room=_room(file),
        )


def _version(file: FleetFile, name: str, base: BaseShape | None, progress: Progress) -> AdapterVersion:
    source = file.adapters[name].source
    with _placed(file, "adapters", name, "source"):
        directory = fetch_adapter(name, source, cache_dir(), progress, store=object_store(file), room=_room(file))
        # An engine that runs elsewhere must find the files under the path that the fleet file gives.
        cache = cache_dir() if file.runs_engines else None
        pool = file.pools.get(file.adapters[name].pool or "")
        judged = pool is None or pool.engine == "vllm"
        return make_version(name, source, directory, base=base, cache=cache if judged else None, judged=judged)


def _room(file: FleetFile) -> Room:
    return Room(cache_dir(), file.storage.cache, lambda: in_use(cache_dir()))


def object_store(file: FleetFile) -> ObjectStore:
    """Which object store the file means by `s3://`."""
    return ObjectStore(file.storage.s3.endpoint or "", file.storage.s3.region or "")


@contextmanager
def _placed(file: FleetFile, *key: str) -> Iterator[None]:
    """Let an error about a source say in which line of the fleet file it stands."""
    try:
        yield
    except SourceError as error:
        placed = file.places.error(key, str(error), hint=error.hint)
        placed.tail = error.tail
        raise placed from error
