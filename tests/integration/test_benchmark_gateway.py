"""The gateway benchmark runs, and refuses to give figures for wrong replies."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]
TINY = (
    "--only",
    "direct,tuneplex,tuneplex-migrate,tuneplex-limits,tuneplex-waiting,tuneplex-records",
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


def test_times_of_streams_are_measured(tmp_path: Path) -> None:
    """Paced chunks have an age, lone streams a first piece, with token ids asked for and not, and by two gateways."""
    file = tmp_path / "result.json"
    script = REPOSITORY / "benchmarks" / "gateway" / "run.py"
    command = [sys.executable, str(script), "--only", "direct,tuneplex-migrate,tuneplex-2", "--tests", "lone,paced"]
    command += ["--quick", "--rounds", "1", "--paced", "40", "--json", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    rows = {(row["target"], row["test"]): row for row in json.loads(file.read_bytes())["rows"]}
    assert len(rows) == 6
    for name in ("direct", "tuneplex-migrate", "tuneplex-2"):
        half, most = rows[name, "paced"]["lag_us"]
        assert 0 < half <= most < 5_000_000
        assert rows[name, "lone"]["first_us"] > 0
    assert rows["tuneplex-migrate", "lone"]["added_us"] > 0


async def test_ids_are_sent_to_those_that_ask(load: ModuleType) -> None:
    """Who asks for token ids gets the prompt's with the first event and one in each other, as vLLM writes them."""
    wire = importlib.import_module("benchmarks.gateway.wire")
    names = load.Names(client="contacts", engine="contacts")
    async with load.Load() as running, running.clients(load.Kind("stream", True, 1), names, running.port):
        client = running._clients[0]
        client._request = client._request.replace(b'"stream": true', b'"return_token_ids":true,"stream":true')
        body = client._request.partition(b"\r\n\r\n")[2]
        client._request = re.sub(rb"content-length: \d+", b"content-length: %d" % len(body), client._request)
        client._expected = wire.script(0, "contacts", stream=True, ids=True)
        assert await running.drive(2, 5.0) == 2
    first, second, *_ = client._expected.events
    assert b'"prompt_token_ids":[1000,1001,' in first
    assert b'"finish_reason":null,"token_ids":[1001]' in second


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
