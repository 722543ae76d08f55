"""The LoRA benchmark's load and its engines, with FakeEngine in place of vLLM."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu import load
from benchmarks.lora_cpu.client import Client, Question
from benchmarks.lora_cpu.engines import ENGINES
from benchmarks.lora_cpu.load import drive, prompt, warm_up
from benchmarks.lora_cpu.plan import Cell
from benchmarks.lora_cpu.processes import Installation, running
from tuneplex.testing import FakeEngine, Script, write_fake_python


@pytest.fixture(autouse=True)
def _small_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """FakeEngine knows some hundred tokens only."""
    monkeypatch.setattr(load, "_IDS", range(64, 600))


async def test_every_client_sends_all_its_requests(tmp_path: Path) -> None:
    """Each client gets all its answers, of 32 tokens, from the models that the workload names."""
    uds = tmp_path / "engine.sock"
    async with FakeEngine("base", adapters=["r8", "r128"], uds=str(uds)) as engine:
        outcome = await drive(uds, Cell("plugin", "mix2", 3, 2), key=1)
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
        await warm_up(uds, Cell("plugin", "mix2", 8, 1))
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
            await drive(uds, Cell("none", "base", 1, 1), key=1)


async def test_unknown_model_is_named(tmp_path: Path) -> None:
    """A request that the engine refuses says for which model, and why."""
    uds = tmp_path / "engine.sock"
    async with FakeEngine("base", uds=str(uds)):
        client = Client(uds)
        with pytest.raises(BenchmarkError, match="r8: 404"):
            await client.ask(Question("r8", prompt("test"), 32))
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


async def test_engine_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of an engine that ends while it starts holds its last words."""
    monkeypatch.setenv("TUNEPLEX_FAKE_FAIL_START", "no such model")
    installed = Installation(write_fake_python(tmp_path / "python"), tmp_path, {}, None)
    with pytest.raises(BenchmarkError, match="no such model"), running([ENGINES["none"]], installed) as engines:
        await engines[0].ready()
