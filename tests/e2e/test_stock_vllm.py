"""What vLLM does without the plugin: the faults that the plugin is there for, shown on the version that is pinned.

When one of these tests fails, vLLM has mended something: look whether the plugin still has to.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lora import write_adapter
from tests.support.real_engine import real_engine
from tests.support.residency import (
    LONG,
    PREFIX,
    Residency,
    replace_adapter,
    residency,
    value_count,
    write_big_adapter,
    write_unmatched_adapter,
)

SCRIPT = Path(__file__).parents[1] / "support" / "pin_every_slot.py"
FLAGS = (
    "--enable-lora --max-loras 2 --max-cpu-loras 4 --max-lora-rank 8 --max-model-len 1024 --max-num-seqs 4 "
    "--dtype float32 --enable-prefix-caching --enforce-eager --disable-uvicorn-access-log"
)

pytestmark = [pytest.mark.engine, pytest.mark.full]


@pytest.fixture(scope="module")
def stock(engine_python: Path, base_model: Path) -> Iterator[Residency]:
    """A vLLM that loads no plugin at all."""
    env = {"VLLM_PLUGINS": "", "VLLM_SERVER_DEV_MODE": "1"}
    with real_engine(engine_python, base_model, flags=FLAGS, env=env) as engine, residency(engine) as client:
        yield client


def load(stock: Residency, name: str, path: Path, **more: object) -> None:
    """Load an adapter through vLLM's own route."""
    body = {"lora_name": name, "lora_path": str(path), **more}
    reply = stock.client.post("/v1/load_lora_adapter", json=body)
    assert reply.status_code == 200, reply.text


def test_stock_has_none_of_the_routes(stock: Residency) -> None:
    """Without the plugin there is nothing under its prefix, and nothing of its own in the log."""
    assert stock.client.get(f"{PREFIX}/adapters").status_code == 404
    assert "tuneplex-vllm" not in stock.engine.log.read_text()


def test_stock_serves_stale_prefix_cache(stock: Residency, tmp_path: Path) -> None:
    """New weights under an old name and path answer a long known prefix from the old weights' cache (vllm#42125)."""
    old, new = write_adapter(tmp_path / "old", seed=1), write_adapter(tmp_path / "new", seed=2)
    place = Path(shutil.copytree(old, tmp_path / "place"))
    load(stock, "doc", place)
    stock.say("doc", LONG)
    replace_adapter(place, new)
    load(stock, "doc", place, load_inplace=True)
    load(stock, "fresh", new)
    assert stock.say("doc") == stock.say("fresh")  # the weights are the new ones
    right = stock.say("fresh", LONG)
    hits = stock.metric("vllm:prefix_cache_hits_total")
    assert stock.say("doc", LONG) != right  # their cache is not
    assert stock.metric("vllm:prefix_cache_hits_total") > hits


def test_stock_answers_as_the_base_for_weights_that_fit_nowhere(stock: Residency, tmp_path: Path) -> None:
    """An adapter of whose weights none is applied loads, and answers what the base answers (vllm#34186)."""
    load(stock, "lost", write_unmatched_adapter(tmp_path / "lost"))
    assert stock.say("lost", tokens=16) == stock.say("base", tokens=16)


def test_stock_keeps_what_it_unloads(stock: Residency, tmp_path: Path) -> None:
    """The route for unloading takes the name away; the engine keeps its copy, and the memory (vllm#54839)."""
    big = write_big_adapter(tmp_path / "big", rank=8)
    for number in range(4):
        load(stock, f"big{number}", big)
    full, ids = stock.memory(), stock.engine_ids()
    for number in range(4):
        stock.client.post("/v1/unload_lora_adapter", json={"lora_name": f"big{number}"}).raise_for_status()
    assert stock.engine_ids() == ids
    assert full - stock.memory() < value_count(big)  # a quarter of one of the four


def pin_every_slot(python: Path, base: Path, adapters: list[Path], *, plugins: str) -> dict[str, Any]:
    """Run the script that pins every slot and asks for one adapter more."""
    finished = subprocess.run(
        [python, SCRIPT, base, *adapters],
        env=os.environ | {"VLLM_PLUGINS": plugins},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    result = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
    assert result, finished.stdout[-3000:] + finished.stderr[-3000:]
    found: dict[str, Any] = json.loads(result[-1].removeprefix("RESULT "))
    return found


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters, for an engine with two slots."""
    directory = tmp_path_factory.mktemp("three")
    return [write_adapter(directory / str(seed), seed=seed) for seed in range(3)]


def test_stock_dies_of_pins(engine_python: Path, base_model: Path, three: list[Path]) -> None:
    """With every slot pinned through the engine client, a request for another adapter kills the engine."""
    found = pin_every_slot(engine_python, base_model, three, plugins="")
    assert found["pins"] == ["True", "True"]
    assert found["answer"].startswith("EngineDeadError")
    assert found["dead"]


def test_the_plugin_survives_pins(engine_python: Path, base_model: Path, three: list[Path]) -> None:
    """The same calls with the plugin: the last pin is refused, or it yields; the other adapter is answered."""
    found = pin_every_slot(engine_python, base_model, three, plugins="tuneplex")
    assert found["pins"][0] == "True"
    assert not found["dead"]
    assert found["answer"]
    assert "Error" not in found["answer"]
