"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# The tests share noisy cores: how long an example takes says nothing about the code.
settings.register_profile("noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("noisy")


@pytest.hookimpl(tryfirst=True)  # before xdist itself looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where two processes share the tests, one has all that need real engines, because two of these are too many."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group("engines" if file.startswith("tests/e2e/") else file))
