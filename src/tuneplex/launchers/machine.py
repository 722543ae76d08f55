"""What this machine has to compute with, and how replicas share it. The sharing is pure; only `survey` looks."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

__all__ = ["Machine", "cores_within_quota", "pick_gpus", "share_cores", "survey", "visible_gpus", "worker_cores"]


class Machine(msgspec.Struct, frozen=True):
    """One machine.

    Attributes:
        cores: Processor cores that we may use, one logical processor for each physical core, neighbours together.
        gpus: GPUs that we may use, as `CUDA_VISIBLE_DEVICES` names them.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()


def share_cores(cores: Sequence[int], replicas: int) -> tuple[tuple[int, ...], ...]:
    """Divide cores over replicas: equal runs of neighbours, the first ones get what is left over.

    With more replicas than cores, several replicas get the same core.
    """
    if replicas >= len(cores):
        return tuple((cores[index % len(cores)],) for index in range(replicas))
    size, rest = divmod(len(cores), replicas)
    bounds = [index * size + min(index, rest) for index in range(replicas + 1)]
    return tuple(tuple(cores[start:end]) for start, end in itertools.pairwise(bounds))


def worker_cores(share: Sequence[int]) -> tuple[int, ...]:
    """The part of a replica's share that its worker computes on: all but one, which the other processes need.

    On two cores that is as fast as using both, and steadier.
    """
    return tuple(share[:-1]) if len(share) > 1 else tuple(share)


def pick_share(cores: Sequence[int], peers: int, taken: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The worker cores for one more replica: of all shares, the one that overlaps least with what is taken."""
    shares = [worker_cores(share) for share in share_cores(cores, max(peers, 1))]
    busy = [core for other in taken for core in other]
    return min(shares, key=lambda share: sum(busy.count(core) for core in share))


def pick_gpus(gpus: Sequence[str], count: int, taken: Sequence[str]) -> tuple[str, ...] | None:
    """The first `count` GPUs that nobody uses, or None if there are not so many."""
    free = [gpu for gpu in gpus if gpu not in taken]
    return tuple(free[:count]) if len(free) >= count else None


def cores_within_quota(cores: Sequence[int], cpu_max: str) -> tuple[int, ...]:
    """As many cores as a control group's `cpu.max` pays for: `200000 100000` is two, `max 100000` is all."""
    quota, _space, period = cpu_max.strip().partition(" ")
    if not quota.isdigit() or not period.isdigit():
        return tuple(cores)
    return tuple(cores[: max(1, -(-int(quota) // int(period)))])


def visible_gpus(devices: Sequence[str], visible: str | None) -> tuple[str, ...]:
    """The GPUs that we may use.

    Args:
        devices: Names in /dev.
        visible: `CUDA_VISIBLE_DEVICES` as we were started with it, if at all; its names are kept as they are.
    """
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1")
    numbers = (re.fullmatch(r"nvidia(\d+)", name) for name in devices)
    return tuple(sorted((match[1] for match in numbers if match), key=int))


def survey(env: Mapping[str, str]) -> Machine:
    """Look at this machine."""
    allowed = sorted(os.sched_getaffinity(0))
    topology = Path("/sys/devices/system/cpu")
    physical = {
        _read(topology / f"cpu{core}/topology/thread_siblings_list") or str(core): core for core in allowed[::-1]
    }
    cores = cores_within_quota(sorted(physical.values()), _read(Path("/sys/fs/cgroup/cpu.max")))
    devices = [device.name for device in Path("/dev").iterdir()]
    return Machine(cores, visible_gpus(devices, env.get("CUDA_VISIBLE_DEVICES")))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
