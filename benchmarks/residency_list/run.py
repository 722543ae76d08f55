"""Measure how fast the list of adapters answers: `.venv/bin/python benchmarks/residency_list/run.py`; see README.md."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The repository goes first, in place of this folder: the modules beside this file import by their full name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from benchmarks.residency_list.cli import main

    sys.exit(main())
