"""The random adapters, made once and kept in the user's cache directory."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import platformdirs

from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu.workloads import ADAPTERS
from tuneplex.adapters.locks import exclusive

__all__ = ["random_adapters"]

_SCRIPT = Path(__file__).with_name("make_adapters.py")
_MAKE_S = 300


def random_adapters(python: Path, base: Path) -> dict[str, Path]:
    """The directory of each adapter of `ADAPTERS`, written now if it is not there.

    Args:
        python: The engine's Python, which has PyTorch.
        base: The base's directory; the adapters have its shapes.

    Raises:
        BenchmarkError: They could not be made; the message holds the end of what the script said.
    """
    wanted = [f"{adapter.name}:{adapter.rank}:{','.join(adapter.modules)}" for adapter in ADAPTERS]
    digest = hashlib.sha256(_SCRIPT.read_bytes() + (base / "config.json").read_bytes() + repr(wanted).encode())
    root = platformdirs.user_cache_path("tuneplex") / "benchmarks"
    root.mkdir(parents=True, exist_ok=True)
    home = root / f"adapters-{digest.hexdigest()[:8]}"
    with exclusive(root / f"{home.name}.lock", lambda: None):
        if not home.exists():
            _make(python, base, home, wanted)
    return {adapter.name: home / adapter.name for adapter in ADAPTERS}


def _make(python: Path, base: Path, home: Path, wanted: list[str]) -> None:
    unfinished = home.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    command: list[str | Path] = [python, _SCRIPT, base, unfinished, *wanted]
    result = subprocess.run(command, timeout=_MAKE_S, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BenchmarkError(f"the adapters could not be made: {result.stderr[-1000:]}")
    unfinished.rename(home)
