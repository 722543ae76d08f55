"""Looks at the weights themselves: NaN and infinity, matrices of zeros, and how many directions carry the change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from tuneplex.adapters.gate.names import Half, Pair
from tuneplex.errors import SourceError

__all__ = ["Numbers", "look"]

_CHUNK = 1 << 21  # elements that are looked at together
_HELD = 0.99
# As they lie in a file: the type of as many bits, and which of these are the exponent.
_Bits = npt.NDArray[np.unsignedinteger[Any]]
_Floats = npt.NDArray[np.float64]
_KINDS: Mapping[str, tuple[np.dtype[np.unsignedinteger[Any]], int]] = MappingProxyType(
    {
        "F16": (np.dtype("<u2"), 0x7C00),
        "BF16": (np.dtype("<u2"), 0x7F80),
        "F32": (np.dtype("<u4"), 0x7F800000),
        "F64": (np.dtype("<u8"), 0x7FF0000000000000),
    }
)


class Numbers(msgspec.Struct, frozen=True):
    """What the weights are.

    Attributes:
        broken: The first tensor that holds NaN or infinity, if one does.
        still: How many modules have a change of zero.
        effective_rank: The rank that holds 99 % of each module's change, by the squares of its singular values; None
            if it was not asked for.
    """

    broken: str = ""
    still: int = 0
    effective_rank: int | None = None


class _Weights:
    """The tensors of one open file. It is read, not mapped: somebody may cut a file that they train into."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = 8 + int.from_bytes(file.read(8), "little")

    def bits(self, half: Half, at: int = 0, count: int = -1) -> _Bits:
        """Some of a matrix's numbers, by default all, as they lie in the file."""
        kind, _exponent = _KINDS[half.tensor.dtype]
        begin, end = half.tensor.data_offsets
        most = (end - begin) // kind.itemsize - at
        wanted = most if count < 0 else min(count, most)
        self._file.seek(self._start + begin + at * kind.itemsize)
        data = self._file.read(wanted * kind.itemsize)
        if len(data) < wanted * kind.itemsize:
            raise SourceError(f"{half.key} is cut off: the file changed while it was read", hint="try again")
        return np.frombuffer(data, dtype=kind)

    def chunks(self, half: Half) -> Iterator[_Bits]:
        """The same, a piece at a time."""
        for at in range(0, math.prod(half.tensor.shape), _CHUNK):
            yield self.bits(half, at, _CHUNK)


def look(file: Path, pairs: tuple[Pair, ...], advance: Callable[[int, int], None], *, deep: bool) -> Numbers:
    """Read all weights once, a piece at a time.

    Args:
        file: The safetensors file; its header is known to be true.
        pairs: Its modules, of floating types.
        advance: Told how many modules of how many were looked at.
        deep: Compute the effective rank too.

    Raises:
        SourceError: The file changed meanwhile.
        OSError: It cannot be read.
    """
    with file.open("rb") as handle:
        return _looked(_Weights(handle), pairs, advance, deep=deep)


def _looked(weights: _Weights, pairs: tuple[Pair, ...], advance: Callable[[int, int], None], *, deep: bool) -> Numbers:
    still, effective = 0, 0
    for at, pair in enumerate(pairs):
        zero = False
        for half in (pair.a, pair.b):
            finite, empty = _scan(weights, half)
            if not finite:
                return Numbers(broken=half.key)
            zero = zero or empty
        still += zero
        if deep and not zero:
            effective = max(effective, _effective_rank(weights, pair))
        advance(at + 1, len(pairs))
    return Numbers(still=still, effective_rank=effective if deep else None)


def _scan(weights: _Weights, half: Half) -> tuple[bool, bool]:
    """Whether all numbers of a matrix are finite, and whether all of them are zero, of either sign."""
    kind, exponent = _KINDS[half.tensor.dtype]
    mask, sign = kind.type(exponent), kind.type((1 << (kind.itemsize * 8 - 1)) - 1)
    empty = True
    for bits in weights.chunks(half):
        if ((bits & mask) == mask).any():
            return False, False
        empty = empty and not (bits & sign).any()
    return True, empty


def _effective_rank(weights: _Weights, pair: Pair) -> int:
    """From the products of A and of B with themselves: their size is the rank's, however large the module is."""
    first = _gram(weights, pair.a, rows=True)
    second = _gram(weights, pair.b, rows=False)
    with np.errstate(all="ignore"):
        values, vectors = np.linalg.eigh(first)
        root = vectors * np.sqrt(np.clip(values, 0, None))
        squares = np.clip(np.linalg.eigvalsh(root.T @ second @ root), 0, None)[::-1]
        total = squares.sum()
        if not math.isfinite(total) or total <= 0:
            return 0
        return int(np.searchsorted(np.cumsum(squares), _HELD * total) + 1)


def _gram(weights: _Weights, half: Half, *, rows: bool) -> _Floats:
    """A·Aᵀ of rows, or Bᵀ·B of columns; divided by its largest number, so that nothing overflows."""
    shape = half.tensor.shape
    bits = weights.bits(half).reshape(shape)
    bits = bits if rows else bits.T
    step = max(1, _CHUNK // len(bits))
    largest, total = 0.0, np.zeros((len(bits), len(bits)))
    for at in range(0, bits.shape[1], step):
        largest = max(largest, float(np.abs(_floats(bits[:, at : at + step], half.tensor.dtype)).max()))
    for at in range(0, bits.shape[1], step):
        part = _floats(bits[:, at : at + step], half.tensor.dtype) / largest
        total += part @ part.T
    return total


def _floats(bits: _Bits, dtype: str) -> _Floats:
    if dtype == "BF16":
        bits, dtype = np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16), "F32"
    plain = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]
    return np.ascontiguousarray(bits).view(plain).astype(np.float64)
