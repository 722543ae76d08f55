"""`python -m tuneplex.cli` is `tuneplex`."""

from __future__ import annotations

from tuneplex.cli import main

main()
