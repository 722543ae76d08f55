"""Whether an adapter can belong to a base, by the shapes of their tensors.

An engine may load a strange adapter with no more than a warning and then answer as the base does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tuneplex.errors import SourceError
from tuneplex.shapes.adapter import LORA_A, AdapterShape
from tuneplex.shapes.base import BaseShape
from tuneplex.shapes.safetensors import Tensor

__all__ = ["check_fit"]

_PREFIX = "base_model.model."
_LAYER = re.compile(r"(?:^|\.)((?:layers|layer|blocks|h)\.\d+\..+)$")
# Tied to another tensor in many models, which then do not store it under its own name.
_OFTEN_TIED = ("lm_head", "embed_tokens")
_MATRIX = 2

_Shapes = Mapping[str, set[tuple[int, ...]]]


def check_fit(name: str, adapter: AdapterShape, base: BaseShape) -> None:
    """Refuse an adapter that was made for another model.

    Args:
        name: The adapter's, for the message.
        adapter: From `read_adapter`.
        base: From `read_base`.

    Raises:
        SourceError: A module that it changes does not exist in the base, or has another shape there.
    """
    known = _by_module(base.tensors)
    hint = f"it was trained on {adapter.base_name}" if adapter.base_name else "it was trained on another model"
    for module, shape in _changed(adapter.tensors):
        shapes = known.get(_short(module), set())
        if not shapes and not module.endswith(_OFTEN_TIED):
            raise SourceError(f"adapter {name}: the base has no module {module}", hint=hint)
        if shapes and not base.quantized and not any(sorted(shape) == sorted(other) for other in shapes):
            there = " or ".join(_times(other) for other in sorted(shapes) if len(other) == _MATRIX)
            message = f"adapter {name}: {module} is {_times(shape)} in the adapter and {there} in the base"
            raise SourceError(message, hint=hint)


def _by_module(tensors: Mapping[str, Tensor]) -> _Shapes:
    """The shapes of all tensors, by module; biases and scales have other shapes than any change of a matrix."""
    shapes: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name, tensor in tensors.items():
        shapes[_short(name.rpartition(".")[0])].add(tensor.shape)
    return shapes


def _short(module: str) -> str:
    """The name from the layer on: what stands before it differs between a model's class and its files."""
    match = _LAYER.search(module)
    return match[1] if match else module.rpartition(".")[2]


def _changed(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Each module that the adapter changes, and the shape (out, in) of the change."""
    for name, first in tensors.items():
        match = LORA_A.search(name)
        if match is None:
            continue
        second = tensors.get(name[: match.start()] + match[0].replace("A", "B", 1))
        module = name[: match.start()].removeprefix(_PREFIX)
        if second is None or len(first.shape) != _MATRIX or len(second.shape) != _MATRIX:
            raise SourceError(f"the adapter's weights for {module} are not a pair of matrices")
        if first.shape[0] != second.shape[1]:
            raise SourceError(f"the two matrices for {module} have different ranks")
        yield module, (second.shape[0], first.shape[1])


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)
