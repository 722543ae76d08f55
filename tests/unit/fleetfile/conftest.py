"""A directory with what fleet files name, and a function that reads one there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tuneplex.fleetfile import FleetFile, load

LoadText = Callable[[str | bytes], FleetFile]


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadText:
    """Write a text to fleet.yaml, beside a base, two adapters and a certificate, and load it."""
    for directory in ("models/tiny", "adapters/one", "adapters/two"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "cert.pem").write_text("a certificate")
    monkeypatch.chdir(tmp_path)

    def read(text: str | bytes) -> FleetFile:
        file = Path("fleet.yaml")
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return load(file)

    return read
