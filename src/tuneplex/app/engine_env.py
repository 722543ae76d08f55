"""The engine's own environment: where it is, and how `tuneplex engine install` makes it.

vLLM pins hundreds of packages, so it lives in a virtual environment of its own (design: tuneplex stays small). The lock
file lists each of them; they are installed without dependency resolution, PyTorch first.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from tuneplex.adapters import commands
from tuneplex.adapters.locks import exclusive
from tuneplex.adapters.progress import Progress
from tuneplex.app.engine_pip import Pip, clean_environment, failure, mend
from tuneplex.errors import UserError

__all__ = ["Sources", "build", "default_directory", "find", "find_engine_python", "install", "require"]

_PYTHON_VARIABLE: Final = "TUNEPLEX_ENGINE_PYTHON"
_NEEDS_PYTHON: Final = (3, 11)
_MARKER: Final = "tuneplex-engine.json"
_UNFINISHED: Final = ".tuneplex-unfinished"
_LOCK: Final = ".tuneplex-lock"
_NEEDED_BYTES: Final = 4 * 2**30
_OWN_VLLM: Final = (
    "Bring your own vLLM instead: set `engine: {python: /path/to/python}` in the fleet file, or attach to engines that "
    "already run with `launcher: external`."
)


class _Marker(msgspec.Struct, frozen=True):
    """What a finished environment was made from."""

    fingerprint: str


@dataclass(frozen=True)
class Sources:
    """What an environment is made from.

    Attributes:
        lock: The lock file.
        plugin: The directory of the engine plugin's distribution.
    """

    lock: Path
    plugin: Path

    @classmethod
    def shipped(cls) -> Sources:
        """Those of this installation of tuneplex: inside the package, or in the checkout around it.

        Raises:
            UserError: They are in neither place.
        """
        package = Path(__file__).parents[1]
        inside = package / "_engine_plugins"
        checkout = package.parents[1]
        for lock, plugin in (
            (inside / "engine.lock", inside / "vllm"),
            (checkout / "requirements" / "engine.lock", checkout / "engine-plugins" / "vllm"),
        ):
            if lock.is_file() and plugin.is_dir():
                return cls(lock, plugin)
        raise UserError("this installation lacks the engine's lock file", hint="Install tuneplex from a wheel again.")

    def fingerprint(self) -> str:
        """Changes with the lock and with the plugin's code."""
        digest = hashlib.sha256(self.lock.read_bytes())
        code = ("src/*/*.py", "src/*/*.c", "setup.py", "pyproject.toml")
        for path in sorted(found for pattern in code for found in self.plugin.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()

    def requirements(self) -> list[str]:
        """The lock's lines that name a package."""
        lines = (line.strip() for line in self.lock.read_text("utf-8").splitlines())
        return [line for line in lines if line and not line.startswith("#")]

    def torch_index(self) -> str | None:
        """The index that has PyTorch's CPU build, for machines whose pip does not find it."""
        for line in self.lock.read_text("utf-8").splitlines():
            if line.startswith("# torch-index:"):
                return line.split()[2]
        return None


def find() -> str | None:
    """The engine's Python on this machine, or None if there is no finished environment."""
    found = find_engine_python(
        cwd=Path.cwd(), data_dir=platformdirs.user_data_path("tuneplex"), explicit=None, env=os.environ
    )
    return str(found) if found else None


def find_engine_python(*, cwd: Path, data_dir: Path, explicit: str | None, env: Mapping[str, str]) -> Path | None:
    """Look for the engine's Python.

    Args:
        cwd: `.venv-engine` in it counts.
        data_dir: `engine` in it counts, last.
        explicit: A setting that wins over everything.
        env: `TUNEPLEX_ENGINE_PYTHON` in it comes second.

    Returns:
        The interpreter: of a setting as it is, even if nothing is there; of a directory only if it is finished.
    """
    named = explicit or env.get(_PYTHON_VARIABLE)
    if named:
        return Path(named)
    for directory in (cwd / ".venv-engine", data_dir / "engine"):
        python = _python_of(directory)
        if os.access(python, os.X_OK) and not (directory / _UNFINISHED).exists():
            return python
    return None


def require() -> str:
    """The engine's Python on this machine.

    Raises:
        UserError: There is none, or the one that is named cannot be run.
    """
    python = find()
    if python is None:
        raise UserError("there is no engine on this machine yet", hint=f"Run `tuneplex engine install`. {_OWN_VLLM}")
    if not os.access(python, os.X_OK):
        raise UserError(f"{_PYTHON_VARIABLE} names {python}, which is not a program", hint="Correct it or unset it.")
    return python


def default_directory() -> Path:
    """Where the environment belongs: `.venv-engine` inside a checkout, otherwise this user's data directory."""
    checkout = Path(__file__).parents[3]
    cwd = Path.cwd()
    if cwd == checkout and (checkout / "requirements" / "engine.lock").is_file():
        return cwd / ".venv-engine"
    return platformdirs.user_data_path("tuneplex") / "engine"


def install(directory: Path | None, progress: Progress, *, python: Path | None = None) -> str:
    """Make the engine's environment, or bring it up to date; returns its Python.

    What is up to date takes milliseconds. A run that was interrupted is completed by the next one.

    Args:
        directory: Where; None means `default_directory()`.
        progress: Told about each step; its numbers are packages.
        python: The Python 3.11 to build with; None looks for one.

    Raises:
        UserError: This machine cannot have it, or a step failed; the message has pip's last lines.
    """
    target = (directory or default_directory()).absolute()
    return str(build(target, Sources.shipped(), progress, python=python, env=os.environ))


def build(
    directory: Path, sources: Sources, progress: Progress, *, python: Path | None, env: Mapping[str, str]
) -> Path:
    """As `install`, with everything given."""
    fingerprint = sources.fingerprint()
    if _is_finished(directory, fingerprint):
        return _python_of(directory)
    _check_machine(platform.system(), platform.machine())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        waiting = partial(progress.step, "waiting for another process that installs the engine")
        with exclusive(directory / _LOCK, waiting):
            if not _is_finished(directory, fingerprint):
                _build(directory, sources, progress, python=python, env=env)
                marker = directory / _MARKER
                marker.write_bytes(msgspec.json.encode(_Marker(fingerprint)))
                (directory / _UNFINISHED).unlink()
    except OSError as error:
        raise UserError(f"{directory}: {error}", hint="Choose another place with --dir.") from error
    return _python_of(directory)


def _is_finished(directory: Path, fingerprint: str) -> bool:
    try:
        marker = msgspec.json.decode((directory / _MARKER).read_bytes(), type=_Marker)
    except (OSError, msgspec.MsgspecError):
        return False
    return marker.fingerprint == fingerprint and not (directory / _UNFINISHED).exists()


def _check_machine(system: str, machine: str) -> None:
    if (system, machine) != ("Linux", "x86_64"):
        raise UserError(f"the engine's lock is for Linux on x86-64; this is {system} on {machine}", hint=_OWN_VLLM)


def _build(
    directory: Path, sources: Sources, progress: Progress, *, python: Path | None, env: Mapping[str, str]
) -> None:
    fresh = not (directory / _MARKER).exists()
    if fresh and shutil.disk_usage(directory).free < _NEEDED_BYTES and not (directory / _UNFINISHED).exists():
        raise UserError(f"{directory}: less than 4 GiB are free there", hint="Choose another place with --dir.")
    (directory / _UNFINISHED).touch()
    mend(directory)
    inner = _python_of(directory)
    if not os.access(inner, os.X_OK):
        _make_venv(directory, python or _python_311(env), progress, env)
    pip = Pip(inner, env, progress)
    requirements = sources.requirements()
    _install_torch(pip, sources, requirements, directory)
    count = len(requirements)
    finished = pip.install(["--requirement", sources.lock], packages=count, step=f"fetching {count} packages for vLLM")
    if finished.code != 0:
        raise failure("installing the engine's packages", finished, directory=directory)
    _install_plugin(pip, sources, directory)


def _make_venv(directory: Path, python: Path, progress: Progress, env: Mapping[str, str]) -> None:
    progress.step(f"making {directory} with {python}")
    version = commands.run([python, "-c", "import sys; print(*sys.version_info[:2])"], env=clean_environment(env))
    if version.code != 0 or tuple(version.tail.split()) != tuple(map(str, _NEEDS_PYTHON)):
        raise UserError(f"{python} is not Python 3.11, which the engine's lock is for", hint=_OWN_VLLM)
    finished = commands.run([python, "-m", "venv", directory], env=clean_environment(env))
    if finished.code != 0:
        raise UserError(
            f"making a virtual environment with {python} failed",
            tail=finished.tail,
            hint="On Debian and Ubuntu it needs the package python3.11-venv.",
        )


def _python_311(env: Mapping[str, str]) -> Path:
    """The running Python if it fits, otherwise one from the path."""
    if sys.version_info[:2] == _NEEDS_PYTHON:
        return Path(sys.executable)
    found = shutil.which("python3.11", path=env.get("PATH"))
    if found is None:
        raise UserError(
            "the engine's lock is for Python 3.11, and no python3.11 is on the path",
            hint=f"Install it (Debian, Ubuntu: python3.11 python3.11-venv) or name one with --python. {_OWN_VLLM}",
        )
    return Path(found)


def _install_torch(pip: Pip, sources: Sources, requirements: list[str], directory: Path) -> None:
    """PyTorch first: its CPU build is not on PyPI, so pip may need to be told where it is."""
    torch = next(line for line in requirements if line.startswith("torch=="))
    finished = pip.install([torch], packages=1, step=f"fetching {torch}")
    index = sources.torch_index()
    if finished.code != 0 and index and "No matching distribution" in finished.tail:
        finished = pip.install(
            ["--extra-index-url", index, torch], packages=1, step=f"fetching {torch} from {index} (about 200 MB)"
        )
    if finished.code != 0:
        raise failure(f"installing {torch}", finished, directory=directory)


def _install_plugin(pip: Pip, sources: Sources, directory: Path) -> None:
    """Build the plugin from a copy: the original may be read-only, and building leaves traces."""
    with tempfile.TemporaryDirectory(prefix="tuneplex-plugin-") as scratch:
        copy = Path(scratch) / "vllm"
        shutil.copytree(sources.plugin, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
        options = ["--no-build-isolation", "--no-index", "--force-reinstall"]
        finished = pip.install([*options, copy], packages=1, step="installing the plugin tuneplex-vllm")
    if finished.code != 0:
        raise failure("installing the plugin tuneplex-vllm", finished, directory=directory)


def _python_of(directory: Path) -> Path:
    return directory / "bin" / "python"
