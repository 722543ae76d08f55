"""Models and adapters from the Hugging Face hub.

A revision is first pinned to its commit; each commit has its own directory in the cache, which appears by a rename
when every file is complete and checked. What was fetched once stays usable without the hub.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import httpx2
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors
from huggingface_hub.hf_api import RepoFile

from tuneplex.adapters.filesets import FileSet
from tuneplex.adapters.hub_progress import bar_class
from tuneplex.adapters.locks import exclusive
from tuneplex.adapters.progress import Progress
from tuneplex.adapters.room import Room
from tuneplex.errors import SourceError
from tuneplex.units import format_bytes

__all__ = ["Hub"]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAIN = "main"
_SERVER_ERROR = 500
_TOO_MANY = 429
_FAILURES = (OSError, httpx2.HTTPError, ValueError, LookupError, RuntimeError, hub_errors.XetDownloadError)


class Hub:
    """A hub and the cache in front of it. Any number of processes may use one cache at once.

    Args:
        cache: The cache directory.
        progress: Told about each step; its numbers are bytes.
        endpoint: The hub's URL; None leaves it to huggingface_hub, which reads `HF_ENDPOINT`.
        room: How much the cache may hold.
    """

    def __init__(self, cache: Path, progress: Progress, endpoint: str | None = None, room: Room | None = None) -> None:
        # Nothing about this machine or its use is reported, and failures are told by our errors alone.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        self._cache = cache
        self._room = room or Room(cache)
        self._progress = progress
        self._endpoint = endpoint
        self._api = huggingface_hub.HfApi(endpoint=endpoint)

    def fetch(self, repository: str, revision: str | None, files: FileSet) -> Path:
        """The directory with the repository's files at this revision.

        Raises:
            SourceError: It does not exist, cannot be reached and is not in the cache, or is not what it should be.
        """
        name = f"hf:{repository}" + (f"@{revision}" if revision else "")
        store = self._cache / "hub" / files.kind / repository.replace("/", "--")
        try:
            store.mkdir(parents=True, exist_ok=True)
            return self._fetch(name, repository, revision or _MAIN, files, store)
        except _FAILURES as error:
            raise _failure(name, error, self._cache) from error

    def _fetch(self, name: str, repository: str, revision: str, files: FileSet, store: Path) -> Path:
        ref = store / "refs" / urllib.parse.quote(revision, safe="")
        commit = self._commit(name, repository, revision, ref)
        target = store / commit
        if not target.is_dir():
            waiting = f"waiting for another process that fetches {name}"
            with exclusive(store / f".{commit}.lock", lambda: self._progress.step(waiting)):
                if not target.is_dir():
                    self._download(name, repository, files, target)
        _write(ref, commit)
        return target

    def _commit(self, name: str, repository: str, revision: str, ref: Path) -> str:
        """The commit that the revision stands for now, or, without the hub, stood for at the last fetch."""
        if _COMMIT.fullmatch(revision):
            return revision
        try:
            commit = self._api.model_info(repository, revision=revision).sha
        except (httpx2.TransportError, OSError) as error:
            commit = _known(ref) if _is_unreachable(error) else None
            if commit is None:
                raise
            self._progress.step(f"the hub is out of reach; {name} is commit {commit[:12]} from the cache")
            return commit
        if commit is None or not _COMMIT.fullmatch(commit):
            raise SourceError(f"{name}: the hub did not say which commit this is")
        self._progress.step(f"{name} is commit {commit[:12]}")
        return commit

    def _download(self, name: str, repository: str, files: FileSet, target: Path) -> None:
        """Fill `target`; the caller holds its lock. Files that are complete survive a failure for the next try."""
        wanted = self._wanted(name, repository, target.name, files)
        total = sum(file.size for file in wanted)
        part = target.with_name(f".{target.name}.part")
        part.mkdir(exist_ok=True)
        self._room.make(name, total - sum(_size(part / file.path) for file in wanted))
        self._progress.step(f"downloading {name} ({format_bytes(total)})")
        huggingface_hub.snapshot_download(
            repository,
            revision=target.name,
            local_dir=part,
            allow_patterns=[file.path for file in wanted],
            endpoint=self._endpoint,
            tqdm_class=bar_class(self._progress, total),
        )
        self._progress.advance(total, total)
        for file in wanted:
            _check_file(name, part, file)
        shutil.rmtree(part / ".cache", ignore_errors=True)
        part.rename(target)

    def _wanted(self, name: str, repository: str, commit: str, files: FileSet) -> list[RepoFile]:
        tree = self._api.list_repo_tree(repository, revision=commit)
        there = {entry.path: entry for entry in tree if isinstance(entry, RepoFile) and "/" not in entry.path}
        return [there[path] for path in files.chosen(name, tuple(there))]


def _is_unreachable(error: Exception) -> bool:
    """Whether the hub itself failed, rather than refused."""
    if isinstance(error, hub_errors.HfHubHTTPError):
        return error.response.status_code >= _SERVER_ERROR or error.response.status_code == _TOO_MANY
    return isinstance(error, httpx2.TransportError | hub_errors.OfflineModeIsEnabled)


def _known(ref: Path) -> str | None:
    """The commit noted at the last fetch, if its files are still there."""
    try:
        commit = ref.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) and (ref.parent.parent / commit).is_dir() else None


def _write(file: Path, text: str) -> None:
    """Write in one step, so that no reader ever sees half of it."""
    file.parent.mkdir(exist_ok=True)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    temporary.write_text(text, "ascii")
    temporary.replace(file)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _check_file(name: str, directory: Path, expected: RepoFile) -> None:
    """Size, and the checksum where the hub tells one, which it does for all large files."""
    file = directory / expected.path
    if not file.is_file() or file.stat().st_size != expected.size:
        raise SourceError(f"{name}: {expected.path} did not arrive completely", hint="try again")
    with file.open("rb") as handle:
        os.fsync(handle.fileno())  # a power cut after the rename must not leave an empty file
        found = hashlib.file_digest(handle, "sha256").hexdigest() if expected.lfs else ""
    if expected.lfs and found != expected.lfs.sha256:
        file.unlink()
        raise SourceError(f"{name}: {expected.path} arrived damaged: its checksum is wrong", hint="try again")


# From the most to the least particular error: what it means, what to do.
_REFUSALS: Sequence[tuple[type[Exception], str, str]] = (
    (
        hub_errors.GatedRepoError,
        "is gated; the hub wants to know who fetches it",
        "ask for access on the repository's page, then 'hf auth login' or set HF_TOKEN",
    ),
    (
        hub_errors.RepositoryNotFoundError,
        "the hub has no such repository, or hides it",
        "check the name; for a private repository 'hf auth login' or set HF_TOKEN",
    ),
    (hub_errors.RevisionNotFoundError, "the repository has no such revision", "name a branch, tag or commit"),
    (hub_errors.OfflineModeIsEnabled, "is not in the cache, and HF_HUB_OFFLINE forbids to fetch it", "unset it"),
)


def _failure(name: str, error: Exception, cache: Path) -> SourceError:
    """What went wrong, in the words of whoever wrote the source into the fleet file."""
    for kind, message, hint in _REFUSALS:
        if isinstance(error, kind):
            return SourceError(f"{name}: {message}", hint=hint)
    if isinstance(error, hub_errors.HfHubHTTPError):
        return SourceError(f"{name}: the hub answered {error.response.status_code}", hint="try again later")
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        hint = f"the cache is {cache}; complete files are kept for the next try"
        return SourceError(f"{name}: cannot be stored: {error.strerror}", hint=hint)
    hint = "check the network and try again; complete files are kept"
    return SourceError(f"{name}: could not be fetched: {_first_line(error)}", hint=hint)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
