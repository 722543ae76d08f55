"""Command lines with a home of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    """A directory with a fleet file; nothing of it runs yet."""
    line = CommandLine(tmp_path)
    line.write_fleet()
    yield line
    line.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A directory whose fleet runs, for tests that only look at it; its key is `sk-shop`."""
    line = CommandLine(tmp_path_factory.mktemp("fleet"))
    prices = "prices: {currency: EUR, prompt: 0.15, completion: 0.60}"
    line.write_fleet(f"gateway: {{port: 0, key: sk-shop}}\naliases: {{gpt-4o-mini: contacts}}\n{prices}")
    try:
        started = line.run("up", "--detach")
        assert started.returncode == 0, started.stderr
        yield line
    finally:
        line.close()
