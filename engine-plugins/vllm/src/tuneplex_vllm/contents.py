"""What an adapter is made of: its tensors, its files, and the one that stands in for an adapter that cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.utils import get_adapter_absolute_path

__all__ = ["fingerprint", "flat", "is_empty", "own_tensors", "size_of", "without_weights"]


def size_of(lora: Any) -> int:  # noqa: ANN401 - vLLM's own
    """What an adapter's weights take, in bytes."""
    return sum(tensor.nbytes for weights in lora.loras.values() for tensor in flat((weights.lora_a, weights.lora_b)))


def flat(value: object) -> Iterator[torch.Tensor]:
    """The tensors in a tensor or in lists of them; of None, none."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from flat(part)


def own_tensors(lora: Any) -> None:  # noqa: ANN401 - vLLM's own
    """Copy what is mapped from a file, so that host memory holds the weights whatever becomes of the file."""
    for weights in lora.loras.values():
        for name in ("lora_a", "lora_b"):
            value = getattr(weights, name)
            # A mapped tensor is a part of the whole file's storage; one that was converted or pinned has its own.
            if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() != value.nbytes:
                setattr(weights, name, value.clone())


def fingerprint(path: str) -> tuple[tuple[str, int, int, int], ...]:
    """Name, size, time of change and inode of each file of an adapter; empty when there is none."""
    try:
        files = sorted(Path(get_adapter_absolute_path(path)).glob("adapter_*"))
        stats = [(file.name, file.stat()) for file in files]
    except (OSError, ValueError):  # also of a hub that is out of reach; vLLM, which asks next, has words for it
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)


def without_weights(adapter_id: int) -> Any:  # noqa: ANN401 - vLLM's own
    """An adapter that changes nothing. vLLM looks at the first of its modules, so it has one, that no model has."""
    nothing = LoRALayerWeights("", 1, 1, torch.zeros(1, 1), torch.zeros(1, 1))
    lora = LoRAModel(adapter_id, 1, {"": nothing})
    lora.tuneplex_empty = True
    return lora


def is_empty(lora: Any) -> bool:  # noqa: ANN401 - vLLM's own
    """Whether this is what `without_weights` made."""
    return getattr(lora, "tuneplex_empty", False)
