"""The LoRA benchmark's load and its engines, with FakeEngine in place of vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu.client import Client, Question
from benchmarks.lora_cpu.engines import ENGINES
from benchmarks.lora_cpu.load import Prompts, drive, warm_up
from benchmarks.lora_cpu.plan import Cell
from benchmarks.lora_cpu.processes import Installation, running
from tuneplex.testing import FakeEngine, Script, Tokenizer, write_fake_python

PROMPTS = Prompts(Tokenizer().size)
SLOWLY = '{"between_chunks_s": 0.01}'


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until something has come about; the process must not end before that."""
    deadline = time.monotonic() + 30
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_every_client_sends_all_its_requests(tmp_path: Path) -> None:
    """Each client gets all its answers, of 32 tokens, from the models that the workload names."""
    uds = tmp_path / "engine.sock"
    async with FakeEngine("base", adapters=["r8", "r128"], uds=str(uds)) as engine:
        outcome = await drive(uds, Cell("plugin", "mix2", 3, 2), PROMPTS, key=1)
        assert len(engine.requests) == 6
    assert sorted(outcome.answers) == sorted(
        (("r8", "r128")[(client + request) % 2], client, request) for client in range(3) for request in range(2)
    )
    assert {len(answer.tokens) for answer in outcome.answers.values()} == {32}
    assert all(0 < answer.ttft_s < outcome.wall_s for answer in outcome.answers.values())


async def test_warm_up_asks_each_adapter_once(tmp_path: Path) -> None:
    """Before a cell is measured, each model of its workload answers one short request."""
    uds = tmp_path / "engine.sock"
    async with FakeEngine("base", adapters=["r8", "r128"], uds=str(uds)) as engine:
        await warm_up(uds, Cell("plugin", "mix2", 8, 1), PROMPTS)
        assert sorted(request.model or "" for request in engine.requests) == ["r128", "r8"]


@pytest.mark.parametrize(
    "script,words",
    [
        (Script(status=500), "base: 500"),
        (Script(close_after_chunks=3), "closed the connection"),
        (Script(drop_done=True), "done: False"),
        (Script(error_after_chunks=3), "base: "),
    ],
)
async def test_wrong_reply_ends_the_run(tmp_path: Path, script: Script, words: str) -> None:
    """An error or a reply that is cut is not counted but ends the run."""
    uds = tmp_path / "engine.sock"
    async with FakeEngine("base", uds=str(uds)) as engine:
        engine.script(script)
        with pytest.raises((BenchmarkError, OSError), match=words):
            await drive(uds, Cell("none", "base", 1, 1), PROMPTS, key=1)


async def test_unknown_model_is_named(tmp_path: Path) -> None:
    """A request that the engine refuses says for which model, and why."""
    uds = tmp_path / "engine.sock"
    async with FakeEngine("base", uds=str(uds)):
        client = Client(uds)
        with pytest.raises(BenchmarkError, match="r8: 404"):
            await client.ask(Question("r8", PROMPTS.draw("test"), 32))
        await client.close()


async def test_engines_end_with_the_run(tmp_path: Path) -> None:
    """All processes of all engines are gone after a run that fails."""
    kinds = [ENGINES["none"], ENGINES["plugin"]]
    installed = Installation(write_fake_python(tmp_path / "python"), tmp_path, {}, None)
    pids: list[int] = []
    with contextlib.suppress(BenchmarkError), running(kinds, installed) as engines:
        for engine in engines:
            await engine.ready()
            pids += engine.meter.pids()
        raise BenchmarkError("this run fails")
    assert len(pids) >= 4
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The whole benchmark, of an engine without LoRA only, with a fake one in its place."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps({"vocab_size": Tokenizer().size}))
    python = write_fake_python(tmp_path / "python")
    script = Path(__file__).parents[2] / "benchmarks" / "lora_cpu" / "run.py"
    words = [sys.executable, script, "--only", "none", "--json", tmp_path / "run.json", "--engine-python", python]
    return [str(word) for word in (*words, "--base", base)]


def rounds_in(file: Path) -> list[tuple[int, int]]:
    """Session and round of every piece in a run's file; nothing while there is no file."""
    pieces = json.loads(file.read_bytes())["pieces"] if file.exists() else []
    return [(piece["session"], piece["round"]) for piece in pieces]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.full)])
def test_interrupted_run_goes_on(command: list[str], tmp_path: Path, number: signal.Signals) -> None:
    """A run that is interrupted or killed leaves no engine behind, and the next one adds the missing rounds."""
    file = tmp_path / "run.json"
    command += ["--rounds", "6"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"TUNEPLEX_FAKE_SCRIPT": SLOWLY})
    wait_for(lambda: len(rounds_in(file)) > 0, first)
    engines = psutil.Process(first.pid).children(recursive=True)
    first.send_signal(number)
    first.wait(30)
    assert not psutil.wait_procs(engines, 20)[1]
    done = len(rounds_in(file))
    assert 0 < done < 6
    second = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 0, second.stderr
    assert rounds_in(file) == [(1 if number <= done else 2, number) for number in range(1, 7)]


async def test_engine_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of an engine that ends while it starts holds its last words."""
    monkeypatch.setenv("TUNEPLEX_FAKE_FAIL_START", "no such model")
    installed = Installation(write_fake_python(tmp_path / "python"), tmp_path, {}, None)
    with pytest.raises(BenchmarkError, match="no such model"), running([ENGINES["none"]], installed) as engines:
        await engines[0].ready()
