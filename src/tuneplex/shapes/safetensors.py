"""Reads the header of a safetensors file: what tensors it holds, without reading them.

The format: eight bytes with the header's length, little-endian; the header, JSON; then the tensors' bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from tuneplex.errors import SourceError

__all__ = ["Tensor", "read_header"]

_PREFIX = 8
_MAX_HEADER = 100 * 1024 * 1024  # the format's own limit
_MOST_DIMENSIONS = 8
_LARGEST = 1 << 48  # elements and bytes; more is no file of this world, and costs time to multiply
_BITS: Mapping[str, int] = MappingProxyType(
    {"F4": 4, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16}
    | {"BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}
)


class Tensor(msgspec.Struct, frozen=True):
    """One tensor, as the header describes it; `data_offsets` are bytes after the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.data_offsets[1] - self.data_offsets[0]


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name.

    Raises:
        SourceError: It is missing, cut off, or not a safetensors file.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(_PREFIX), "little")
            if size < _PREFIX or length > min(_MAX_HEADER, size - _PREFIX):
                raise _broken(path, "the header is cut off, or this is not a safetensors file")
            header = file.read(length)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    tensors = _decode(path, header)
    _check(path, tensors, size - _PREFIX - length)
    _check_places(path, tensors, size - _PREFIX - length)
    return tensors


def _decode(path: Path, header: bytes) -> dict[str, Tensor]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(value, type=Tensor) for name, value in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _broken(path, "the header is damaged, or this is not a safetensors file") from None
    if header.count(b'"data_offsets"') > len(tensors):
        raise _broken(path, "the header names a tensor twice")  # readers would differ in which one they take
    return tensors


def _check(path: Path, tensors: Mapping[str, Tensor], available: int) -> None:
    """Each tensor must have exactly its bytes, and all of them must be in the file."""
    for name, tensor in tensors.items():
        begin, end = tensor.data_offsets
        bits = _BITS.get(tensor.dtype)
        if bits is None:
            raise _broken(path, f"tensor {name} has the unknown type {tensor.dtype[:20]!r}")
        if len(tensor.shape) > _MOST_DIMENSIONS or max((*tensor.shape, begin, end)) > _LARGEST:
            raise _broken(path, f"tensor {name[:200]} has a shape or place that cannot be")
        if min(tensor.shape, default=0) < 0 or begin < 0 or (end - begin) * 8 != math.prod(tensor.shape) * bits:
            raise _broken(path, f"tensor {name} has another size than its shape says")
        if end > available:
            raise _broken(path, f"is cut off: tensor {name} ends {end - available} bytes after the file")


def _check_places(path: Path, tensors: Mapping[str, Tensor], available: int) -> None:
    """Tensors lie one after the other, without overlap or gap, to the end of the file; engines refuse all else."""
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        begin, end = tensor.data_offsets
        if begin != at:
            what = "overlaps the one before it" if begin < at else "has a gap before it"
            raise _broken(path, f"tensor {name[:200]} {what}")
        at = end
    if at != available:
        raise _broken(path, f"holds {available - at} bytes that belong to no tensor")


def _broken(path: Path, problem: str) -> SourceError:
    return SourceError(f"{path}: {problem}", hint="the file may be half written; fetch or export it again")
