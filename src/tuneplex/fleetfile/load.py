"""From a path to a valid fleet file, with the defaults that follow from the file itself."""

from __future__ import annotations

import contextlib
import os.path
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from pydantic import ValidationError

from tuneplex.fleetfile.checks import check
from tuneplex.fleetfile.document import read_document
from tuneplex.fleetfile.longform import expand
from tuneplex.fleetfile.places import KeyPath, Places
from tuneplex.fleetfile.schema import BaseSection, FleetFile, Section, TlsSection
from tuneplex.fleetfile.sources import Source, parse_source
from tuneplex.fleetfile.words import first_error

__all__ = ["load"]

_S = TypeVar("_S", bound=Section)
_UNUSABLE = re.compile(r"[^A-Za-z0-9._-]+")


def load(path: Path) -> FleetFile:
    """Read and check a fleet file. Paths come back absolute, and the fleet's and the base's names are filled in.

    Raises:
        FleetFileError: The file is wrong; the message says where and why, the hint what to do.
    """
    values, places = expand(*read_document(path))
    try:
        file = FleetFile.model_validate(values)
    except ValidationError as error:
        raise first_error(error, places) from None
    file = _Completion(path.parent.absolute(), places).file(file)
    file.remember(path, places)
    check(file)
    return file


@dataclass(frozen=True)
class _Completion:
    """Fills in what follows from the file and its directory; `places` still tells what was given."""

    root: Path
    places: Places

    def file(self, file: FleetFile) -> FleetFile:
        names = file.adapters.items()
        return _with(
            file,
            name=file.name or _UNUSABLE.sub("-", self.root.name).strip("-._") or "fleet",
            base=self._base(file.base),
            adapters={name: _with(item, source=self._source(name, item.source)) for name, item in names},
            engine=_with(file.engine, python=file.engine.python and self._path(file.engine.python)),
            gateway=_with(file.gateway, tls=file.gateway.tls and self._tls(file.gateway.tls)),
        )

    def _base(self, base: BaseSection) -> BaseSection:
        if base.source is None:
            return base
        source = self._parsed(("base", "source"), base.source)
        name = base.name or _UNUSABLE.sub("-", source.model_name).strip("-._")
        if not name:
            raise self.places.error(("base", "name"), "is missing", hint="say what clients call the base")
        return _with(base, source=self._text(source), name=name)

    def _source(self, adapter: str, text: str) -> str:
        return self._text(self._parsed(("adapters", adapter, "source"), text))

    def _parsed(self, path: KeyPath, text: str) -> Source:
        try:
            source = parse_source(text)
        except ValueError as error:
            raise self.places.error(path, str(error)) from None
        return msgspec.structs.replace(source, location=self._path(text)) if source.kind == "dir" else source

    def _text(self, source: Source) -> str:
        revision = f"@{source.revision}" if source.revision else ""
        return source.location if source.kind == "dir" else f"{source.kind}:{source.location}{revision}"

    def _tls(self, tls: TlsSection) -> TlsSection:
        return _with(tls, cert=self._path(tls.cert), key=self._path(tls.key))

    def _path(self, text: str) -> str:
        """Absolute and without `..`, but with symbolic links as they are: an environment's Python is one."""
        path = Path(text)
        with contextlib.suppress(RuntimeError):  # there is no such user; then it is a name like any other
            path = path.expanduser()
        return os.path.normpath(self.root / path)


def _with(section: _S, **values: object) -> _S:
    return section.model_copy(update=values)
