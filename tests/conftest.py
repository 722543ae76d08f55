"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The tests share noisy cores: how long an example takes says nothing about the code.
settings.register_profile("noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("noisy")
