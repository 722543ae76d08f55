"""See what clients see of faults: `.venv/bin/python benchmarks/faults/run.py`. README.md says how."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The repository goes first, in place of this folder: the modules beside this file import by their full name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from benchmarks.faults.cli import main

    sys.exit(main())
