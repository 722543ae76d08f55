"""Models and adapters from an object store that speaks S3.

What is listed at the top of a prefix, with sizes and ETags, is its revision. Every object is fetched under the
condition that it is still the one that was listed, and becomes a file of the cache under its SHA-256; the version is a
directory of names for such files, which appears when all of them are there. What was fetched once stays usable without
the store.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tuneplex.adapters.files import Files, sha256_of
from tuneplex.adapters.filesets import FileSet
from tuneplex.adapters.locks import exclusive
from tuneplex.adapters.manifest import MANIFEST, Manifest, decoded
from tuneplex.adapters.progress import Progress
from tuneplex.adapters.ranges import Ranges, Target
from tuneplex.adapters.room import Room, touch
from tuneplex.errors import ObjectStoreError, SourceError
from tuneplex.files import write_whole
from tuneplex.objects import Place
from tuneplex.objects.client import Found, Objects
from tuneplex.types import ObjectStore
from tuneplex.units import format_bytes

__all__ = ["Prefix"]

_LONGEST_NAME = 200
_LONG = 1 << 30  # bytes whose checksum takes a moment
_LARGEST_MANIFEST = 16 * 1024 * 1024


class _Known(msgspec.Struct, frozen=True):
    """What the cache remembers of a place.

    Attributes:
        contents: `NAME SIZE ETAG` of an object -> the SHA-256 of its content.
        place: Where it is.
        version: The directory that the last fetch gave, below the cache; empty before the first.
        files: Of that version: the objects that it was made of.
    """

    contents: dict[str, str] = {}
    place: str = ""
    version: str = ""
    files: tuple[str, ...] = ()


class Prefix:
    """One place in a store, and the cache in front of it. Any number of processes may use one cache at once.

    Args:
        place: Where the files lie.
        room: The cache and its bounds.
        progress: Told about each step; its numbers are bytes.
        store: Which store; see `Objects`.
        length: Of the ranges that are fetched at once, bytes.
    """

    def __init__(
        self,
        place: Place,
        room: Room,
        progress: Progress,
        store: ObjectStore | None = None,
        *,
        length: int | None = None,
    ) -> None:
        self._place = place
        self._name = str(place)
        self._room = room
        self._cache = room.cache
        self._progress = progress
        self._store = store or ObjectStore()
        self._length = length
        self._files = Files(room.cache)

    def fetch(self, files: FileSet) -> Path:
        """The directory with the files that lie there now.

        Raises:
            SourceError: They are not there, cannot be reached and are not in the cache, or are not what they should be.
        """
        key = hashlib.sha256(f"{files.kind} {self._store.endpoint} {self._name}".encode()).hexdigest()[:32]
        work, record = self._cache / "fetching" / key, self._cache / "sources" / f"{key}.json"
        try:
            for directory in (work.parent, record.parent):
                directory.mkdir(parents=True, exist_ok=True)
            waiting = f"waiting for another process that fetches {self._name}"
            with exclusive(work.with_suffix(".lock"), lambda: self._progress.step(waiting)):
                return self._fetch(files, work, record)
        except ObjectStoreError as error:
            raise SourceError(str(error), hint=error.hint) from error
        except OSError as error:
            hint = f"the cache is {self._cache}; what has arrived is kept for the next try"
            raise SourceError(f"{self._name}: cannot be stored: {error.strerror or error}", hint=hint) from error

    def _fetch(self, files: FileSet, work: Path, record: Path) -> Path:
        """The caller holds the lock of this place."""
        known = _read(record)
        try:
            objects = Objects(self._place, self._store)
            listed = {one.name: one for one in objects.listed()}
        except ObjectStoreError as error:
            return self._from_cache(known, error)
        wanted, expected = self._wanted(objects, listed, files)
        seen = tuple(map(_id, wanted))
        target = self._cache / known.version
        if known.files == seen and _agree(known, wanted, expected) and target.is_dir():
            touch(target)
            return target
        contents = dict(known.contents)
        self._contents(objects, wanted, expected, contents, (work, record))
        version = self._files.version(files.kind, {one.name: contents[_id(one)] for one in wanted}, work)
        kept = {one: contents[one] for one in seen}
        _write(record, _Known(kept, self._name, str(version.relative_to(self._cache)), seen))
        shutil.rmtree(work, ignore_errors=True)
        return version

    def _from_cache(self, known: _Known, error: ObjectStoreError) -> Path:
        """What the last fetch gave, if it is the store itself that does not answer."""
        target = self._cache / known.version
        if not error.again or not known.version or not target.is_dir():
            raise error
        self._progress.step(f"the object store is out of reach; {self._name} is {target.name[:12]} from the cache")
        touch(target)
        return target

    # --- what there is

    def _wanted(
        self, objects: Objects, listed: Mapping[str, Found], files: FileSet
    ) -> tuple[list[Found], dict[str, str]]:
        """The objects that are fetched, and the SHA-256 that a push has written down of each, if one has."""
        if not listed:
            hint = "check the place, and which store is asked (storage.s3.endpoint, AWS_ENDPOINT_URL_S3)"
            raise SourceError(f"{self._name}: nothing is there", hint=hint)
        manifest = self._manifest(objects, listed)
        there = [name for name in listed if name != MANIFEST and (manifest is None or name in manifest.files)]
        wanted = [listed[name] for name in files.chosen(self._name, there)]
        for one in wanted:
            self._check_name(one.name)
        if manifest is None:
            return wanted, {}
        self._check_whole(manifest, listed)
        return wanted, {one.name: manifest.files[one.name].sha256 for one in wanted}

    def _manifest(self, objects: Objects, listed: Mapping[str, Found]) -> Manifest | None:
        found = listed.get(MANIFEST)
        if found is None:
            return None
        if found.size > _LARGEST_MANIFEST:
            raise SourceError(f"{self._name}: {MANIFEST} is not one of tuneplex's: it has {format_bytes(found.size)}")
        try:
            manifest = decoded(objects.get(found))
        except ValueError as error:
            raise SourceError(f"{self._name}: {error}", hint="`tuneplex push` writes it anew") from None
        if not manifest.complete:
            hint = f"go on with it: tuneplex push PATH {self._name}"
            raise SourceError(f"{self._name}: a push there is under way, or was cut off", hint=hint)
        return manifest

    def _check_whole(self, manifest: Manifest, listed: Mapping[str, Found]) -> None:
        for name, item in manifest.files.items():
            if name not in listed or listed[name].size != item.size:
                problem = "is not there" if name not in listed else "has another size than what was pushed"
                raise SourceError(f"{self._name}: {name} {problem}", hint="push it again")

    def _check_name(self, name: str) -> None:
        """A name comes from whoever may write there, and becomes that of a file here."""
        plain = name.isprintable() and not set(name) & set("/\\") and not name.startswith(".")
        if not plain or len(name.encode()) > _LONGEST_NAME:
            shown = ascii(name)
            raise SourceError(f"{self._name}: {shown} cannot be the name of a file", hint="remove that object")

    # --- their contents

    def _contents(
        self,
        objects: Objects,
        wanted: Sequence[Found],
        expected: Mapping[str, str],
        contents: dict[str, str],
        places: tuple[Path, Path],
    ) -> None:
        """Have all contents in the cache, and add to `contents` which one is whose."""
        work, record = places
        work.mkdir(exist_ok=True)
        missing = []
        for one in wanted:
            sha256 = expected.get(one.name) or contents.get(_id(one), "")
            if sha256 and self._files.hold(sha256, work):
                contents[_id(one)] = sha256
            else:
                missing.append(Target(one, work / hashlib.sha256(_id(one).encode()).hexdigest()[:32]))
        self._download(objects, missing)
        for target in missing:
            contents[_id(target.found)] = self._accept(target, expected.get(target.found.name, ""), work)
            _write(record, msgspec.structs.replace(_read(record), contents=contents))

    def _download(self, objects: Objects, targets: Sequence[Target]) -> None:
        total = sum(one.found.size for one in targets)
        ranges = Ranges(objects, self._progress, **({} if self._length is None else {"length": self._length}))
        self._room.make(self._name, ranges.lacking(targets))
        if targets:
            self._progress.step(f"downloading {self._name} ({format_bytes(total)})")
            ranges.fetch(targets, total)

    def _accept(self, target: Target, expected: str, work: Path) -> str:
        """Take a file that is complete, if its content is what was pushed."""
        if target.found.size >= _LONG:
            self._progress.step(f"checking {target.found.name}")
        sha256 = sha256_of(target.file)
        target.arrived_file.unlink()
        if expected and sha256 != expected:
            target.file.unlink()
            message = f"{self._name}: {target.found.name} is damaged: its SHA-256 is not that of what was pushed"
            raise SourceError(message, hint="push it again")
        self._files.take(target.file, sha256, work)
        return sha256


def _id(found: Found) -> str:
    return f"{found.name} {found.size} {found.etag}"


def _agree(known: _Known, wanted: Sequence[Found], expected: Mapping[str, str]) -> bool:
    """Whether what was fetched has the checksums that are written down now."""
    return all(known.contents.get(_id(one)) == expected.get(one.name, known.contents.get(_id(one))) for one in wanted)


def _read(record: Path) -> _Known:
    try:
        return msgspec.json.decode(record.read_bytes(), type=_Known)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return _Known()


def _write(record: Path, known: _Known) -> None:
    write_whole(record, msgspec.json.encode(known))
