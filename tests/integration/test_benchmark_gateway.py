"""The gateway benchmark runs, and refuses to give figures for wrong replies."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]
TINY = (
    "--only",
    "direct,tuneplex,tuneplex-limits,tuneplex-waiting",
    "--rounds",
    "2",
    "--streams",
    "40",
    "--requests",
    "200",
)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark's load generator, which lives outside the package."""
    monkeypatch.syspath_prepend(str(REPOSITORY))
    return importlib.import_module("benchmarks.gateway.load")


def test_run_writes_sane_figures(tmp_path: Path) -> None:
    """A tiny run of the gateway answers every request rightly and reports plausible CPU times."""
    file = tmp_path / "result.json"
    script = REPOSITORY / "benchmarks" / "gateway" / "run.py"
    command = [sys.executable, str(script), *TINY, "--json", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "tuneplex" in result.stdout
    report = json.loads(file.read_bytes())
    costs = {(row["target"], row["test"]): row["cpu_us"] for row in report["rows"]}
    assert costs["direct", "stream"]["max"] == 0
    assert 5 < costs["tuneplex", "unary"]["min"] <= costs["tuneplex", "unary"]["median"] < 5_000
    assert costs["tuneplex", "unary"]["median"] < costs["tuneplex", "stream"]["median"] < 100_000
    assert {item["requests"] for item in report["rounds"]} == {40, 200}


async def test_wrong_model_ends_the_run(load: ModuleType) -> None:
    """A proxy that does not rename the model is found out by the first request."""
    names = load.Names(client="contacts", engine="contacts@0123456789ab")
    async with load.Load() as running, running.clients(load.Kind("stream", True, 2), names, running.port):
        with pytest.raises(Exception, match="the engine was asked for 'contacts'"):
            await running.drive(2, 1.0)


async def test_right_replies_are_counted(load: ModuleType) -> None:
    """Streams and short replies that are as they must be are counted, up to the number asked for."""
    names = load.Names(client="contacts", engine="contacts")
    async with load.Load() as running:
        for stream in (True, False):
            async with running.clients(load.Kind("any", stream, 3), names, running.port):
                assert await running.drive(10, 5.0) == 10
