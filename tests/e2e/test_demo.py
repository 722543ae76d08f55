"""The demo as the README has it: real vLLM, a real model, real fine-tunes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

from tests.support.command_line import CommandLine

pytestmark = pytest.mark.engine

BASE = "smollm2-135m-instruct (base)"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    """A home of its own."""
    line = CommandLine(tmp_path)
    yield line
    line.close()


def answers(text: str) -> dict[str, dict[str, str]]:
    """Adapter -> who -> what was said."""
    found = {}
    for block in text.strip().split("\n\n"):
        _, base, tuned = (line.strip() for line in block.splitlines())
        (_, said_by_base), (name, said) = base.split(": ", 1), tuned.split(": ", 1)
        assert base.startswith(f"{BASE}: ")
        found[name] = {"base": said_by_base, "tuned": said}
    return found


def test_demo_answers_and_leaves_nothing(cli: CommandLine, base_model: Path, engine_python: Path) -> None:
    """`tuneplex demo --once` asks base and fine-tunes, which differ; each fine-tune does its task; then all ends."""
    assert base_model.is_dir()
    demo = cli.run(
        *("demo", "--once", "--port", "0", "--timeout", "10m"),
        patience_s=900,
        XDG_CACHE_HOME=str(platformdirs.user_cache_path()),
        TUNEPLEX_ENGINE_PYTHON=str(engine_python),
    )
    assert demo.returncode == 0, demo.stderr
    told = answers(demo.stdout[demo.stdout.index("asked (") :])
    assert set(told) == {"contacts", "triage", "sql"}
    assert all(said["base"] != said["tuned"] for said in told.values())
    assert json.loads(told["contacts"]["tuned"]) == {
        "name": "Clara Olsen",
        "company": "Nimbus",
        "email": "clara.olsen@nimbus.example",
        "phone": "+44 20 7946 0321",
    }
    assert told["triage"]["tuned"] == "shipping"
    assert told["sql"]["tuned"] == "SELECT port, COUNT(*) FROM ships GROUP BY port"
    assert cli.processes() == {}
    assert not list(cli.states.glob("*/run"))
