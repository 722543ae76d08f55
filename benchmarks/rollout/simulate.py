"""How often a rollout is decided wrongly, and how soon rightly: `.venv/bin/python benchmarks/rollout/simulate.py`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The repository goes first, in place of this folder: the modules beside this file import by their full name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from benchmarks.rollout.cli import main

    sys.exit(main())
