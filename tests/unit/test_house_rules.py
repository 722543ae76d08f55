"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tuneplex"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in {"__init__.py", "__main__.py"})
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
LONGEST_FUNCTION = 50


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a file, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_each_test_says_its_behaviour(path: Path) -> None:
    """Each test has a docstring that is one sentence."""
    tests = [node for node in functions(path) if node.name.startswith("test_")]
    silent = [node.name for node in tests if not (ast.get_docstring(node) or "").strip().endswith(".")]
    assert not silent


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_fit_on_a_screen(path: Path) -> None:
    """No function of the package is longer than a screen."""
    long = [node.name for node in functions(path) if (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION]
    assert not long


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_architecture_names_each_module(path: Path) -> None:
    """ARCHITECTURE.md has a line for each module."""
    name = str(path.relative_to(PACKAGE))
    assert f"`{name}`" in (ROOT / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=lambda path: path.name)
def test_no_module_keeps_global_state(path: Path) -> None:
    """Nothing is rebound with `global`."""
    assert not any(isinstance(node, ast.Global) for node in ast.walk(ast.parse(path.read_text())))
