"""Measure what LoRA costs on the CPU: `.venv/bin/python benchmarks/lora_cpu/run.py`. README.md says how."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The repository goes first, in place of this folder: the modules beside this file import by their full name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from benchmarks.lora_cpu.cli import main

    sys.exit(main())
