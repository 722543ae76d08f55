"""Writes an adapter's weights under names that engines understand. No number changes: the data is copied as it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tuneplex.shapes import read_header

__all__ = ["rename_tensors"]

_ALIGNED = 8


def rename_tensors(file: Path, renames: Mapping[str, str]) -> None:
    """Replace a safetensors file by one in which some tensors have other names.

    Args:
        file: Replaced in one step, after all is on the disk.
        renames: The name of a tensor, and its new one, which no other tensor has.

    Raises:
        SourceError: It is no safetensors file.
        OSError: It cannot be written.
    """
    tensors = read_header(file)
    header = {renames.get(name, name): msgspec.to_builtins(tensor) for name, tensor in tensors.items()}
    text = msgspec.json.encode({"__metadata__": {"format": "pt"}, **header})
    text += b" " * (-len(text) % _ALIGNED)
    part = file.with_name(f".{file.name}.part")
    with file.open("rb") as source, part.open("wb") as target:
        source.seek(8 + int.from_bytes(source.read(8), "little"))
        target.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())
    part.replace(file)
