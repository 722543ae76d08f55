"""Stores an adapter or a base in an object store, so that what was cut off can be gone on with.

The manifest says first that a push is under way, and of what. So a later one knows which uploads that were begun are of
the contents that it has, and sends only their missing parts; whoever fetches meanwhile is told to wait.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from tuneplex.adapters.digest import digest_of, files_that_matter, matters, plain
from tuneplex.adapters.files import sha256_of
from tuneplex.adapters.filesets import ADAPTER_FILES, BASE_FILES
from tuneplex.adapters.manifest import MANIFEST, Item, Manifest, decoded
from tuneplex.adapters.progress import Progress
from tuneplex.adapters.workers import each
from tuneplex.errors import ObjectStoreError, SourceError
from tuneplex.objects import Place
from tuneplex.objects.client import Found, Objects, Part
from tuneplex.shapes import read_adapter, read_base
from tuneplex.types import ObjectStore
from tuneplex.units import format_bytes

__all__ = ["Push", "Pushed"]

_PART = 16 * 1024 * 1024
_MOST_PARTS = 9000  # stores take ten thousand
_WORKERS = 4


class Pushed(msgspec.Struct, frozen=True):
    """What lies in the store now.

    Attributes:
        place: Where.
        kind: `adapter` or `base`.
        digest: SHA-256 over all names and contents, by which the version is known to those who fetch it.
        files: By name.
        sent: Bytes that had to be sent; the others were there.
        others: Objects there that do not belong to it, and that nobody fetches.
    """

    place: str
    kind: str
    digest: str
    files: dict[str, Item]
    sent: int
    others: tuple[str, ...]


class Push:
    """One directory on its way to one place.

    Args:
        directory: An adapter's or a base's.
        place: Where to.
        progress: Told about each step; its numbers are bytes.
        store: Which store; see `Objects`.
        part: The size of the parts that large files are sent in, bytes; stores want 5 MiB at least.

    Raises:
        SourceError: The directory is neither an adapter nor a base, or not a whole one.
    """

    def __init__(
        self,
        directory: Path,
        place: Place,
        progress: Progress,
        store: ObjectStore | None = None,
        *,
        part: int = _PART,
    ) -> None:
        self._directory = directory
        self._place = place
        self._progress = progress
        self._store = store
        self._least_part = part
        self._kind, self._names = _contents(directory)
        self._lock = threading.Lock()
        self._done = self._total = self._sent = 0

    def run(self) -> Pushed:
        """Store what is not there yet.

        Raises:
            SourceError: A file cannot be read, or was changed meanwhile, or the store refuses or is not reached; what
                has arrived is gone on with next time.
        """
        try:
            return self._run()
        except ObjectStoreError as error:
            raise SourceError(str(error), hint=error.hint) from error
        except OSError as error:
            raise SourceError(f"{error.filename or self._directory}: cannot be read: {error.strerror}") from error

    def _run(self) -> Pushed:
        objects = Objects(self._place, self._store)
        there = {one.name: one for one in objects.listed()}
        before = _before(objects, there)
        files, stamps = self._items(), self._stamps()
        stored = [name for name, item in files.items() if name in there and _is(objects.stat(name), item)]
        if before != Manifest(complete=True, files=files) or len(stored) < len(files):
            objects.put(MANIFEST, Manifest(complete=False, files=files).encoded())
            self._send(objects, files, stored, before)
            if self._stamps() != stamps:
                raise SourceError(f"{self._directory}: was changed while it was pushed", hint="push it again")
            objects.put(MANIFEST, Manifest(complete=True, files=files).encoded())
        others = tuple(name for name in there if name not in files and name != MANIFEST)
        sums = {name: item.sha256 for name, item in files.items() if self._kind == "base" or matters(name)}
        return Pushed(str(self._place), self._kind, digest_of(sums), files, self._sent, others)

    # --- what there is

    def _items(self) -> dict[str, Item]:
        total = sum((self._directory / name).stat().st_size for name in self._names)
        self._progress.step(f"reading {self._directory} ({format_bytes(total)})")
        items, done = {}, 0
        for name in self._names:
            file = self._directory / name
            items[name] = Item(file.stat().st_size, sha256_of(file))
            done += items[name].size
            self._progress.advance(done, total)
        return items

    def _stamps(self) -> list[tuple[int, int]]:
        """What changes when somebody writes to a file."""
        found = [(self._directory / name).stat() for name in self._names]
        return [(one.st_size, one.st_mtime_ns) for one in found]

    # --- sending

    def _send(
        self, objects: Objects, files: Mapping[str, Item], stored: Sequence[str], before: Manifest | None
    ) -> None:
        self._total = sum(item.size for item in files.values())
        self._progress.step(f"pushing to {self._place} ({format_bytes(self._total)})")
        self._count(sum(files[name].size for name in stored), sent=False)
        for name, item in files.items():
            if name in stored:
                continue
            if item.size <= self._least_part:
                objects.put(name, (self._directory / name).read_bytes(), sha256=item.sha256)
                self._count(item.size)
            else:
                self._send_parts(objects, name, item, before)

    def _send_parts(self, objects: Objects, name: str, item: Item, before: Manifest | None) -> None:
        upload = self._upload(objects, name, item, before)
        size = max(self._least_part, -(-item.size // _MOST_PARTS))
        begins = enumerate(range(0, item.size, size), start=1)
        each((partial(self._part, upload, number, begin, size) for number, begin in begins), _WORKERS)
        objects.complete(name, upload.id, upload.parts)

    def _upload(self, objects: Objects, name: str, item: Item, before: Manifest | None) -> _Upload:
        """An upload of this content, gone on with if one was begun; those of another content are given up."""
        known = before.files.get(name) if before is not None else None
        begun = objects.uploads(name) if known is not None else []
        if begun and known == item:
            return _Upload(objects, name, begun[0], objects.parts(name, begun[0]))
        for upload in begun:
            objects.abandon(name, upload)
        return _Upload(objects, name, objects.begin(name, sha256=item.sha256), {})

    def _part(self, upload: _Upload, number: int, begin: int, size: int, stop: threading.Event) -> None:
        """Send one part, unless it is there with the same content."""
        content = _read(self._directory / upload.name, begin, size)
        there = upload.arrived.get(number)
        if there is not None and there.etag != hashlib.md5(content, usedforsecurity=False).hexdigest():
            there = None
        if stop.is_set():
            return
        upload.parts[number] = there or upload.objects.put_part(upload.name, upload.id, number, content)
        self._count(len(content), sent=there is None)

    def _count(self, size: int, *, sent: bool = True) -> None:
        with self._lock:
            self._done += size
            self._sent += size if sent else 0
            self._progress.advance(self._done, self._total)


@dataclass(frozen=True)
class _Upload:
    """A large file on its way.

    Attributes:
        objects: Where to.
        name: Its name.
        id: Of the upload.
        arrived: The parts that an earlier push has sent.
        parts: Those that this one has sent or found.
    """

    objects: Objects
    name: str
    id: str
    arrived: Mapping[int, Part]
    parts: dict[int, Part] = field(default_factory=dict)


def _contents(directory: Path) -> tuple[str, tuple[str, ...]]:
    """What a directory holds, and which of its files belong to that."""
    if not directory.is_dir():
        raise SourceError(f"{directory}: is not a directory")
    if (directory / "adapter_config.json").exists():
        read_adapter(directory)
        return "adapter", ADAPTER_FILES.chosen(str(directory), [file.name for file in files_that_matter(directory)])
    if (directory / "config.json").exists():
        read_base(directory)
        return "base", BASE_FILES.chosen(str(directory), list(_plain_files(directory)))
    hint = "an adapter has an adapter_config.json, a base a config.json"
    raise SourceError(f"{directory}: is neither an adapter nor a base", hint=hint)


def _plain_files(directory: Path) -> Iterator[str]:
    for file in sorted(directory.iterdir()):
        if not file.is_dir() and not file.name.startswith(".") and file.name != MANIFEST:
            yield plain(directory, file).name


def _before(objects: Objects, there: Mapping[str, Found]) -> Manifest | None:
    """What the last push has written down, if it can be read."""
    try:
        return decoded(objects.get(there[MANIFEST])) if MANIFEST in there else None
    except ValueError:
        return None


def _is(found: Found | None, item: Item) -> bool:
    return found is not None and (found.size, found.sha256) == (item.size, item.sha256)


def _read(file: Path, begin: int, size: int) -> bytes:
    with file.open("rb") as handle:
        return os.pread(handle.fileno(), size, begin)
