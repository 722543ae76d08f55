"""Fleets of processes, with FakeEngine in the place of vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet, MakeFleet, one_pool
from tests.support.postgres import postgres
from tuneplex.testing import write_fake_python
from tuneplex.types import AdapterVersion

__all__ = ["postgres"]


@pytest.fixture(scope="session")
def fake_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stand-in for the engine's Python."""
    return str(write_fake_python(tmp_path_factory.mktemp("engine") / "python"))


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AdapterVersion]:
    """Adapters for FakeEngine: two good ones, a newer content of the first, and one whose files are not there."""
    directory = tmp_path_factory.mktemp("adapters")
    made = {}
    for key, name, digest in (("ada", "ada", "a"), ("bob", "bob", "b"), ("newer", "ada", "c"), ("bad", "bad", "d")):
        path = directory / key
        if key != "bad":
            path.mkdir()
            (path / "adapter_config.json").write_text(json.dumps({"r": 8, "peft_type": "LORA"}))
            (path / "adapter_model.safetensors").write_bytes(digest.encode() * 8)
        made[key] = AdapterVersion(name, digest * 64, str(path), 8, "default")
    return made


@pytest.fixture
def make_fleet(tmp_path: Path, fake_python: str) -> Iterator[MakeFleet]:
    """Make a fleet of one pool and start it; at the end of the test all of it is gone."""
    made: list[Fleet] = []

    def make(*versions: AdapterVersion, gateways: int = 1, **pool: Any) -> Fleet:  # noqa: ANN401 - PoolSpec's
        spec = one_pool(fake_python, *versions, gateways=gateways, **pool)
        made.append(Fleet(tmp_path / f"fleet-{len(made)}", spec))
        made[-1].start()
        return made[-1]

    yield make
    for fleet in made:
        fleet.end()
