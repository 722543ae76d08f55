"""pip in the engine's environment: run it, count packages as it goes, and explain its failures."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tuneplex.adapters import commands
from tuneplex.adapters.commands import Finished
from tuneplex.adapters.progress import Progress
from tuneplex.errors import UserError

__all__ = ["Pip", "clean_environment", "failure", "mend"]

_SEEN = re.compile(r"(?:Collecting|Processing|Requirement already satisfied:)\s+([\w.-]+)")
_TAIL_LINES = 12
_NETWORK = ("NewConnectionError", "ConnectTimeout", "ReadTimeout", "Read timed out", "name resolution", "SSLError")
_OF_OTHERS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


def clean_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would mix another Python's packages in."""
    return {key: value for key, value in env.items() if key not in _OF_OTHERS}


class Pip:
    """pip of one environment.

    Args:
        python: The environment's interpreter.
        env: The environment variables; pip's own settings in it (indexes, proxies) count.
        progress: Told about packages.
    """

    def __init__(self, python: Path, env: Mapping[str, str], progress: Progress) -> None:
        self._python = python
        self._env = clean_environment(env)
        self._progress = progress

    def install(self, arguments: Sequence[str | Path], *, packages: int, step: str) -> Finished:
        """Install without dependencies; what is there already is left as it is.

        Args:
            arguments: What to install, and further options.
            packages: How many packages these are.
            step: What people see meanwhile.
        """
        self._progress.step(step)
        count = _Count(packages)

        def on_line(line: str) -> None:
            if match := _SEEN.match(line.strip()):
                count.seen.add(match[1].lower())
            elif line.startswith("Installing collected packages") and packages > 1:
                count.unpack(line.count(",") + 1, already=self._installed())
                self._progress.step(f"unpacking {count.total} packages")

        def on_tick() -> None:
            self._progress.advance(count.done(self._installed), count.total)

        command: list[str | Path] = [self._python, "-m", "pip", "install", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--progress-bar=off", *arguments]
        return commands.run(command, env=self._env, on_line=on_line, on_tick=on_tick)

    def _installed(self) -> int:
        """How many packages the environment has."""
        return sum(1 for _ in self._python.parents[1].glob("lib/python3.*/site-packages/*.dist-info"))


class _Count:
    """Packages that were looked at, then packages that were unpacked: pip says nothing about the latter."""

    def __init__(self, packages: int) -> None:
        self.total = packages
        self.seen: set[str] = set()
        self._already: int | None = None

    def unpack(self, packages: int, *, already: int) -> None:
        """From now on count unpacked packages."""
        self.total, self._already = packages, already

    def done(self, installed: Callable[[], int]) -> int:
        """How far it is, of `total`."""
        done = len(self.seen) if self._already is None else max(0, installed() - self._already)
        return min(done, self.total)


def failure(what: str, finished: Finished, *, directory: Path) -> UserError:
    """The error for a failed step, with pip's last lines and what can be done about it."""
    tail = "\n".join(finished.tail.splitlines()[-_TAIL_LINES:])
    if "No space left" in tail:
        free = _free_gib(directory)
        hint = (
            f"{directory} has {free:.1f} GiB free; the engine needs about 4 GiB there and 2 GiB in the temporary files."
        )
    elif any(word in tail for word in _NETWORK):
        hint = (
            "The package index did not answer. Check the network and pip's settings, then run the same command again."
        )
    else:
        hint = "Run the same command again to continue where it stopped; `pip config list` shows where pip looks."
    return UserError(f"{what} failed", hint=hint, tail=tail)


def _free_gib(directory: Path) -> float:
    existing = next((place for place in (directory, *directory.parents) if place.exists()), Path("/"))
    return shutil.disk_usage(existing).free / 2**30


def mend(directory: Path) -> None:
    """Remove what an installation that was killed left half done, so that pip does it again.

    pip writes a package's RECORD last: without it the package looks installed but may lack files. Names that begin
    with `~` are what pip set aside while it replaced a package.
    """
    for site in directory.glob("lib/python3.*/site-packages"):
        for entry in os.scandir(site):
            half = entry.name.endswith(".dist-info") and not (Path(entry.path) / "RECORD").exists()
            if half or entry.name.startswith("~"):
                shutil.rmtree(entry.path, ignore_errors=True)
