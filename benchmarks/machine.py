"""What a result says of the machine and the software that it was measured with."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

__all__ = ["machine"]


def machine() -> dict[str, str | int | float | None]:
    """The processor, its cores, the memory in MB (10^6 bytes) and the kernel."""
    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(),
        "memory_mb": round(psutil.virtual_memory().total / 1e6),
        "kernel": platform.release(),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
