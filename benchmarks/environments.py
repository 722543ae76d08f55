"""Virtual environments of the peers, made once and kept in the user's cache directory."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from benchmarks.errors import BenchmarkError

__all__ = ["environment"]

_INSTALL_S = 600


def environment(requirements: Path) -> Path:
    """The environment that has what `requirements` pins, made now if it is not there; returns its `bin` directory.

    Its name holds the digest of the requirements, so that other pins get another environment.

    Raises:
        BenchmarkError: pip failed; the message holds the end of what it said.
    """
    pins = requirements.read_bytes()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(pins + version.encode()).hexdigest()[:8]
    root = platformdirs.user_cache_path("tuneplex") / "benchmarks"
    root.mkdir(parents=True, exist_ok=True)
    home = root / f"{requirements.stem}-{digest}"
    with _locked(root / f"{home.name}.lock"):
        if not (home / "complete").exists():
            _make(home, requirements)
    return home / "bin"


def _make(home: Path, requirements: Path) -> None:
    print(f"installing {requirements.stem} into {home}", file=sys.stderr)
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)]
    try:
        subprocess.run(command, check=True, timeout=_INSTALL_S, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"pip could not install {requirements.stem}: {error.stderr[-1000:]}") from error
    (home / "complete").touch()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two runs at the same time must not make one environment twice."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
