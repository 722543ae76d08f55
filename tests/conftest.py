"""Settings of all tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# The tests share noisy cores: how long an example takes says nothing about the code.
settings.register_profile("noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("noisy")


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """A file at a time, and all that need real engines in one process: two of these at a time are too many."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "engines" if file.startswith("tests/e2e/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:  # noqa: ANN401 - xdist's own
    """How two processes share the tests."""
    return _ByFile(config, log)
