"""The SHA-256 of an adapter: the same for the same content, wherever it lies and however it got there."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path

from tuneplex.errors import SourceError

__all__ = ["digest", "digest_of", "files_that_matter", "matters", "plain"]

# The files an engine reads of an adapter. Cards, training states and the like do not change what it answers.
_NAMES = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "new_embeddings.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def digest(directory: Path) -> str:
    """SHA-256 over the names and contents of the files that matter, 64 hex digits.

    Raises:
        SourceError: As `files_that_matter`, or a file cannot be read.
    """
    found = {}
    try:
        for file in files_that_matter(directory):
            with file.open("rb") as handle:
                found[file.name] = hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise SourceError(f"{error.filename or directory}: cannot be read: {error.strerror}") from None
    return digest_of(found)


def digest_of(files: Mapping[str, str]) -> str:
    """The same from names and the SHA-256 of each content, in hex digits."""
    total = hashlib.sha256()
    for name in sorted(files):
        # Two fixed lengths for each file: the end of one can never look like the beginning of the next.
        total.update(hashlib.sha256(name.encode()).digest())
        total.update(bytes.fromhex(files[name]))
    return total.hexdigest()


def matters(name: str) -> bool:
    """Whether an engine reads the file of an adapter that is called so."""
    return name in _NAMES


def files_that_matter(directory: Path) -> tuple[Path, ...]:
    """The files of an adapter that an engine reads, in a fixed order.

    Raises:
        SourceError: There are none, or one is not a plain file within the directory.
    """
    files = tuple(file for file in (directory / name for name in _NAMES) if file.is_symlink() or file.exists())
    if not files:
        raise SourceError(f"{directory}: is not an adapter: none of its files is there")
    for file in files:
        plain(directory, file)
    return files


def plain(directory: Path, file: Path) -> Path:
    """The file, if it is a plain one within the directory.

    A link out of it could change its target unseen, or show a file that nobody meant to share.

    Raises:
        SourceError: It is not.
    """
    if file.is_symlink() and not file.resolve().is_relative_to(directory.resolve()):
        raise SourceError(f"{file}: is a link out of its directory", hint="put the file itself there")
    if not file.exists() or not stat.S_ISREG(file.stat().st_mode):
        raise SourceError(f"{file}: is not a plain file")
    return file
