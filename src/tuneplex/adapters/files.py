"""The cache's files by their SHA-256, and the versions that are made of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tuneplex.adapters.digest import digest_of, matters
from tuneplex.adapters.room import touch
from tuneplex.files import sync_directory

__all__ = ["Files", "sha256_of"]


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's content, 64 hex digits."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class Files:
    """Each content once, at `files/SHA256`; versions are directories of further names for them.

    A name in `files` appears when its content is complete, checked and on the disk, and such a content never changes.

    Args:
        cache: The cache directory.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._files = cache / "files"

    def take(self, file: Path, sha256: str, work: Path) -> None:
        """Move a file with this content in; `work` holds it fast until a version does."""
        self._files.mkdir(parents=True, exist_ok=True)
        if self.hold(sha256, work):
            file.unlink()
            return
        file.chmod(0o444)
        file.replace(work / sha256)
        with contextlib.suppress(FileExistsError):
            os.link(work / sha256, self._files / sha256)

    def hold(self, sha256: str, work: Path) -> bool:
        """Whether this content is here; `work` then holds it fast."""
        held = work / sha256
        if held.is_file():
            return True
        try:
            os.link(self._files / sha256, held)
        except FileNotFoundError:
            return False
        return True

    def version(self, kind: str, files: Mapping[str, str], work: Path) -> Path:
        """The directory with these files, by name and SHA-256, all of which `work` holds."""
        wanted = {name: sha256 for name, sha256 in files.items() if kind != "adapters" or matters(name)}
        target = self._cache / kind / digest_of(wanted)
        if not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = work / "version"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            for name, sha256 in wanted.items():
                os.link(work / sha256, part / name)
            sync_directory(part)
            with contextlib.suppress(OSError):  # another process made the same one just now
                part.rename(target)
        touch(target)
        return target
