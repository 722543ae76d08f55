"""How replicas share a machine."""

from __future__ import annotations

import pytest

from tuneplex.launchers.local import inheritable
from tuneplex.launchers.machine import (
    cores_within_quota,
    pick_gpus,
    pick_share,
    share_cores,
    survey,
    visible_gpus,
    worker_cores,
)


@pytest.mark.parametrize(
    "cores, replicas, shares",
    [
        ([0, 1], 1, ((0, 1),)),
        ([0, 1], 2, ((0,), (1,))),
        ([0, 1, 2, 3, 4], 2, ((0, 1, 2), (3, 4))),
        ([4, 5, 6, 7], 4, ((4,), (5,), (6,), (7,))),
        ([0, 1], 3, ((0,), (1,), (0,))),
        ([3], 1, ((3,),)),
    ],
)
def test_cores_are_divided_evenly(cores: list[int], replicas: int, shares: tuple[tuple[int, ...], ...]) -> None:
    """Each replica gets a run of neighbours of its own, as long as there are enough."""
    assert share_cores(cores, replicas) == shares


def test_one_core_of_a_share_is_left_to_the_other_processes() -> None:
    """The worker computes on all cores of its share but one; a share of one core is used by both."""
    assert worker_cores((0, 1)) == (0,)
    assert worker_cores((0, 1, 2, 3)) == (0, 1, 2)
    assert worker_cores((5,)) == (5,)


def test_a_new_replica_takes_the_share_that_is_free() -> None:
    """A replica that starts again gets the cores that nobody uses, and a surplus one shares."""
    assert pick_share(range(8), 2, taken=[(0, 1, 2)]) == (4, 5, 6)
    assert pick_share(range(8), 2, taken=[(4, 5, 6)]) == (0, 1, 2)
    assert pick_share(range(8), 2, taken=[(0, 1, 2), (4, 5, 6)]) == (0, 1, 2)


def test_gpus_are_given_once() -> None:
    """A GPU that a replica uses is not given to another one."""
    assert pick_gpus(["0", "1", "2"], 2, taken=["0"]) == ("1", "2")
    assert pick_gpus(["0", "1", "2"], 2, taken=["0", "1"]) is None
    assert pick_gpus([], 0, taken=[]) == ()


@pytest.mark.parametrize(
    "cpu_max, count", [("max 100000", 8), ("", 8), ("200000 100000", 2), ("250000 100000", 3), ("50000 100000", 1)]
)
def test_a_container_has_the_cores_it_pays_for(cpu_max: str, count: int) -> None:
    """A quota of two and a half processors is three cores, no quota is all of them."""
    assert len(cores_within_quota(range(8), cpu_max)) == count


def test_visible_gpus() -> None:
    """Without a restriction the devices count; with one, its names do, in its order."""
    devices = ["nvidia1", "nvidia0", "nvidiactl", "nvidia10", "sda"]
    assert visible_gpus(devices, None) == ("0", "1", "10")
    assert visible_gpus(devices, "1,0") == ("1", "0")
    assert visible_gpus(devices, "") == visible_gpus(devices, "-1") == ()


def test_this_machine() -> None:
    """The survey finds at least one core here."""
    assert survey({"CUDA_VISIBLE_DEVICES": ""}).cores


def test_engines_see_no_credentials() -> None:
    """An engine learns where things are and how to compute, and nothing else of our environment."""
    env = {
        "PATH": "/bin",
        "HF_HOME": "/hub",
        "OMP_NUM_THREADS": "2",
        "HF_TOKEN": "secret",
        "TUNEPLEX_API_KEY": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "VLLM_API_KEY": "secret",
        "OPENAI_API_KEY": "secret",
    }
    assert inheritable(env) == {"PATH": "/bin", "HF_HOME": "/hub", "OMP_NUM_THREADS": "2"}
