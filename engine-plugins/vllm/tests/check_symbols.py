"""A script for the engine's Python: whether the installed vLLM has what the plugin touches. Prints JSON.

`PYTHON check_symbols.py SOURCE [--without NAME ...] [--renamed NAME ...]`. SOURCE is the directory of the plugin's
modules. To show that a change is noticed and named, each of the further names is taken away in turn, or a function with
another parameter is put in its place, and the same is looked for again.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tuneplex_vllm.symbols import SYMBOLS, Symbol

OWN = {
    *("get", "items", "keys", "pop", "values"),  # of dicts
    *("is_contiguous", "nbytes", "shape", "type"),  # of tensors and devices
    *("tuneplex", "tuneplex_counted"),  # the plugin's own marks on vLLM's objects
}
"""What is read of vLLM's objects that is not vLLM's."""
VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def resolve(name: str) -> Any:  # noqa: ANN401 - modules, classes and functions
    """The object of a name."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    return found


def faults(symbol: Symbol) -> Iterator[str]:
    """What vLLM lacks of a symbol, or has in another form."""
    try:
        found = resolve(symbol.name)
    except (ImportError, AttributeError) as error:
        yield f"{symbol.name}: missing ({error})"
        return
    for name in symbol.attributes:
        if not has(found, name):
            yield f"{symbol.name}: attribute {name} is missing"
    if symbol.parameters is not None and (changed := signature_fault(found, symbol.parameters)):
        yield f"{symbol.name}: {changed}"
    source = inspect.getsource(found) if symbol.words else ""
    for words in symbol.words:
        if words not in source:
            yield f"{symbol.name}: its source does not say {words!r}"


def has(owner: Any, name: str) -> bool:  # noqa: ANN401 - modules and classes
    """Whether a module, a class or a class's instances have an attribute."""
    if hasattr(owner, name):
        return True
    if not inspect.isclass(owner):
        return False
    return any(name in names_of(kind) for kind in owner.__mro__ if kind.__module__.startswith("vllm"))


@functools.cache
def names_of(kind: type) -> frozenset[str]:
    """What a class declares, and what its methods set on `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return frozenset(getattr(kind, "__annotations__", ())) | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value)
    }


def is_self(node: ast.expr) -> bool:
    """Whether this is the name `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


def signature_fault(found: Any, wanted: tuple[str, ...]) -> str:  # noqa: ANN401 - classes and functions
    """Why a function cannot be called, or overridden, with these parameters; empty if it can."""
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    if inspect.ismethod(found) or inspect.isclass(found):
        parameters = [p for p in parameters if p.name != "cls"]
    names = [p.name for p in parameters if p.kind not in VARIADIC]
    if [name for name in names if name in wanted] != list(wanted):
        return f"parameters are {names}, not {list(wanted)}"
    needed = [p.name for p in parameters if p.kind not in VARIADIC and p.default is p.empty]
    extra = [name for name in needed if name not in wanted]
    return f"parameters {extra} are needed as well" if extra else ""


class Source:
    """What the plugin's source says of vLLM.

    Args:
        directory: The plugin's modules.

    Attributes:
        imported: `module` or `module:name` of every import from vLLM.
        assigned: `name.attribute` of every attribute that is set on such a name.
        inherited: For each class of vLLM that is subclassed, what is used of it or overridden.
        read: Names of attributes that are read of what has no type here (`Any`): vLLM's own objects.
    """

    def __init__(self, directory: Path) -> None:
        self.imported: set[str] = set()
        self.assigned: set[str] = set()
        self.inherited: dict[str, set[str]] = {}
        self.read: set[str] = set()
        for path in sorted(directory.glob("*.py")):
            tree = ast.parse(path.read_text())
            names = dict(imports(tree))
            self.imported |= set(names.values())
            self.assigned |= set(assignments(tree, names))
            self.read |= set(reads(tree))
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self._look_at(node, names)

    def _look_at(self, node: ast.ClassDef, names: dict[str, str]) -> None:
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in names:
                self.inherited.setdefault(names[base.id], set()).update(used_of_base(node))


def reads(tree: ast.AST) -> Iterator[str]:
    """Attributes of parameters annotated `Any`, and of what such parameters are kept as on `self`."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    untyped = {function: set(any_parameters(function)) for function in functions}
    kept = {
        node.targets[0].attr
        for function, names in untyped.items()
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    }
    for function, names in untyped.items():
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and root_of(node.value) in names | {f"self.{name}" for name in kept}:
                yield node.attr


def any_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The parameters of a function that are annotated `Any`."""
    for argument in (*function.args.args, *function.args.kwonlyargs):
        if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any" and argument.arg != "self":
            yield argument.arg


def root_of(node: ast.expr) -> str:
    """Where a chain of attributes begins: a name, or `self.name`."""
    while isinstance(node, ast.Attribute):
        if is_self(node.value):
            return f"self.{node.attr}"
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The local name and the full one of everything that is imported from vLLM."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}:{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "vllm":
                    yield alias.asname or alias.name, alias.name


def assignments(tree: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """Attributes that are set on something imported from vLLM, or on its type."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = node.value
            if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "type":
                owner = owner.args[0]
            if isinstance(owner, ast.Name) and owner.id in names:
                yield f"{names[owner.id]}.{node.attr}"


def used_of_base(node: ast.ClassDef) -> set[str]:
    """What a class reads of `self` or `super()` without defining it, and what it defines: overrides are among these."""
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    read = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute):
            owner = item.value
            is_super = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
            if is_self(owner) or is_super:
                read.add(item.attr)
    assigned = {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
    return (read | methods | (assigned & {"_manager_cls"})) - {"__init__"}


def unlisted(source: Source) -> list[str]:
    """What the source touches and the list lacks."""
    listed = {symbol.name for symbol in SYMBOLS}
    attributes: dict[str, set[str]] = {}
    for symbol in SYMBOLS:
        attributes.setdefault(symbol.name, set()).update(symbol.attributes)
        owner, _, last = symbol.name.rpartition(".")
        attributes.setdefault(owner, set()).add(last)
    missing = [name for name in source.imported if not is_listed(name, listed, attributes)]
    for name in source.assigned:
        owner, _, attribute = name.rpartition(".")
        added = attribute.startswith("tuneplex_")  # nothing of vLLM's is replaced
        if not added and not any(attribute in attributes.get(known, ()) for known in also_known_as(owner)):
            missing.append(name)
    for base, used in source.inherited.items():
        theirs = {name for name in used if has(resolve(base), name)}
        missing += [f"{base}.{name}" for name in theirs - attributes.get(base, set())]
    said = {word for symbol in SYMBOLS for words in symbol.words for word in re.findall(r"\w+", words)}
    known = set().union(*attributes.values()) | said | OWN
    return sorted([*missing, *(f"an attribute {name}" for name in source.read - known)])


def is_listed(name: str, listed: set[str], attributes: dict[str, set[str]]) -> bool:
    """Whether an import is in the list: by itself, as an attribute of its module, or as a module."""
    module, _, attribute = name.partition(":")
    return name in listed or attribute in attributes.get(module, ()) or (f"{module}.{attribute}" in listed)


def also_known_as(owner: str) -> list[str]:
    """What is set on a platform belongs to its class, and what is set on an imported module to that module."""
    module, _, attribute = owner.partition(":")
    known = [owner, f"{module}.{attribute}"]
    return [*known, "vllm.platforms.interface:Platform"] if attribute == "current_platform" else known


def spoiled(name: str, *, taken_away: bool) -> list[str]:
    """What is found wrong when a symbol is taken away, or has other parameters."""
    module, _, path = name.partition(":")
    owner_path, _, attribute = path.rpartition(".")
    owner = resolve(f"{module}:{owner_path}" if owner_path else module)
    owner = next(kind for kind in getattr(owner, "__mro__", (owner,)) if attribute in vars(kind))
    with mock.patch.object(owner, attribute, stranger):
        if taken_away:
            delattr(owner, attribute)
        return all_faults()


def stranger(_self: object, anything_else: object) -> object:
    """What takes a function's place."""
    return anything_else


def all_faults() -> list[str]:
    """What is wrong with any symbol."""
    return [fault for symbol in SYMBOLS for fault in faults(symbol)]


def main(arguments: list[str]) -> dict[str, Any]:
    """Look for all symbols, for what is not listed, and for what is noticed of changes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--renamed", nargs="*", default=[])
    given = parser.parse_args(arguments)
    return {
        "faults": all_faults(),
        "unlisted": unlisted(Source(given.source)),
        "symbols": len(SYMBOLS),
        "without": {name: spoiled(name, taken_away=True) for name in given.without},
        "renamed": {name: spoiled(name, taken_away=False) for name in given.renamed},
    }


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1:])))
