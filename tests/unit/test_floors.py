"""The house: which room may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "tuneplex"

FLOORS: dict[int, set[str]] = {
    0: {"errors", "files", "identity", "log", "units", "why"},
    1: {"types"},
    2: {"http", "shapes", "metrics", "openapi", "journal", "objects"},
    3: {"traffic"},
    4: {"policy", "planner"},
    5: {"fleetfile", "releases"},
    6: {"records"},
    7: {"engines"},
    8: {"launchers", "adapters"},
    9: {"feed"},
    10: {"control", "gateway", "simulator", "bench", "distill"},
    11: {"dashboard"},
    12: {"app"},
    13: {"cli"},
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
TESTING_MAY_REACH = 7
READS_THE_OUTSIDE = {"app", "cli", "testing"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: Path) -> str:
    """The room that a file lies in: its folder below the package, or its own name."""
    first = module.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(module: Path) -> Iterator[str]:
    """The rooms of tuneplex that a module imports, from anywhere in its text."""
    package = ("tuneplex", *module.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(module.read_text())):
        for name in imported_names(node, package):
            parts = name.split(".")
            if parts[0] == "tuneplex" and len(parts) > 1:
                yield parts[1]


def imported_names(node: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """The absolute dotted names that one import statement brings in."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
        prefix = ".".join(filter(None, (base, node.module or "")))
        yield from (f"{prefix}.{alias.name}" for alias in node.names)


def may_import(room: str, other: str) -> bool:
    """Whether the house allows it: only lower floors, and `testing` up to the engines."""
    if room in {other, "__init__"} or other.startswith("__"):
        return True
    if other == "testing":
        return False
    if room == "testing":
        return FLOOR_OF[other] <= TESTING_MAY_REACH
    return FLOOR_OF[other] < FLOOR_OF[room]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_from_floors_below(module: Path) -> None:
    """A module imports only from its own room and from rooms on lower floors."""
    room = room_of(module)
    assert room in FLOOR_OF or room in {"__init__", "__main__", "testing"}, f"{room} has no floor yet"
    forbidden = [other for other in imported_rooms(module) if not may_import(room, other)]
    assert not forbidden, f"{room} may not import {forbidden}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_upper_floors_read_the_environment(module: Path) -> None:
    """Environment and command line are read in `app` and `cli` alone, so that the rest takes values."""
    if room_of(module) in READS_THE_OUTSIDE or "__main__" in module.read_text():
        return
    reads = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert not reads & {"os.environ", "os.getenv", "sys.argv"}


def test_the_floor_check_finds_a_climb() -> None:
    """The check itself is awake: an import from a floor above is seen, absolute or relative."""
    assert not may_import("policy", "gateway")
    assert not may_import("gateway", "control")
    assert may_import("gateway", "policy")
    tree = ast.parse("from ..control import loop\nimport tuneplex.cli.main")
    names = [name for node in tree.body for name in imported_names(node, ("tuneplex", "gateway"))]
    assert names == ["tuneplex.control.loop", "tuneplex.cli.main"]
