"""Measure many adapters on few slots: `.venv/bin/python benchmarks/many_adapters/run.py`; see README.md."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The repository goes first, in place of this folder: the modules beside this file import by their full name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from benchmarks.many_adapters.cli import main

    sys.exit(main())
