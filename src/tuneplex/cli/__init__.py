"""The command line: `tuneplex`."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command that the command line names, and end with its exit code."""
    from tuneplex.cli.main import run  # noqa: PLC0415 - whoever imports the package should not pay for typer

    sys.exit(run(sys.argv[1:]))
