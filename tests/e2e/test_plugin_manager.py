"""What the plugin's managers and snapshot do, without a model: a script in the engine's Python, judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_plugin import run_script

pytestmark = pytest.mark.engine

CHECKS = {
    "decisions",
    "a_batch_is_never_evicted",
    "pins_yield_and_return",
    "host_memory_keeps_its_capacity",
    "both_versions_of_a_name",
    "retired_is_gone",
    "a_lost_adapter_ends_no_step",
    "a_changed_adapter_is_not_mixed_up",
    "nothing_applied_is_an_error",
    "figures_are_true",
    "a_snapshot_survives_torn_writes",
    "a_snapshot_is_whole_under_fire",
    "the_dead_leave_nothing",
    "warming_up_leaves_nothing",
    "content_is_told_by_its_digest",
    "each_content_has_a_path",
    "unknown_versions_get_what_is_public",
}


def test_managers_and_snapshot(engine_python: Path) -> None:
    """Eviction, pins, retirement, errors and the snapshot do what they promise, at a cost of microseconds a step."""
    found = run_script(engine_python, "check_manager.py")
    assert found.pop("step_cost_us") < 300
    assert found == dict.fromkeys(CHECKS, True)
