"""Finds adapters in a tree of directories, and gives each a name that a fleet file may have."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tuneplex.shapes import ADAPTER_CONFIG

__all__ = ["Tree", "find_adapters", "names_for"]

_UNUSABLE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 100
_MOST_DIRECTORIES = 200_000


class Tree(msgspec.Struct, frozen=True):
    """What a tree holds.

    Attributes:
        directories: Those of adapters, sorted.
        below: How many more lie inside of these: earlier states that a trainer has kept.
        whole: Whether all of the tree was seen; very large ones are not.
    """

    directories: tuple[Path, ...]
    below: int = 0
    whole: bool = True


def find_adapters(root: Path) -> Tree:
    """Look through a tree. Links to directories are not followed, and hidden ones are left out."""
    found: list[Path] = []
    below, seen = 0, 0
    for text, directories, files in os.walk(root):
        seen += 1
        if seen > _MOST_DIRECTORIES:
            return Tree(tuple(sorted(found)), below, whole=False)
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        if ADAPTER_CONFIG not in files:
            continue
        directory = Path(text)
        if any(parent in found for parent in directory.parents):
            below += 1
        else:
            found.append(directory)
    return Tree(tuple(sorted(found)), below)


def names_for(root: Path, directories: Sequence[Path], taken: frozenset[str] = frozenset()) -> dict[Path, str]:
    """A name for each directory: its own, with those above it where that is not enough to tell them apart.

    Args:
        root: What they lie in; its own name is used last.
        directories: All different.
        taken: Names that none of them may have.
    """
    depth = dict.fromkeys(directories, 1)
    most = max((len(_parts(root, directory)) for directory in directories), default=0)
    for _ in range(most):
        clashing = list(_clashing({one: _name(root, one, depth[one]) for one in directories}, taken))
        for directory in clashing:
            depth[directory] += 1
    named: dict[Path, str] = {}
    used = set(taken)
    for directory in directories:
        named[directory] = _numbered(_name(root, directory, depth[directory]), used)
        used.add(named[directory])
    return named


def _clashing(named: dict[Path, str], taken: frozenset[str]) -> Iterator[Path]:
    counts = Counter(named.values())
    return (directory for directory, name in named.items() if name in taken or counts[name] > 1)


def _parts(root: Path, directory: Path) -> tuple[str, ...]:
    inside = directory.relative_to(root).parts
    return (root.absolute().name, *inside)


def _name(root: Path, directory: Path, depth: int) -> str:
    text = "-".join(_parts(root, directory)[-depth:])
    return _UNUSABLE.sub("-", text).strip("-._")[-_LONGEST:].lstrip("-._") or "adapter"


def _numbered(name: str, used: set[str]) -> str:
    """The name, or with a number behind it: names can differ in what cannot be in them."""
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{name[: _LONGEST - 8]}-{number}"
    return found
