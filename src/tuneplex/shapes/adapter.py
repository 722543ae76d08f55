"""What an adapter is made of: `adapter_config.json` and the header of its weights."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tuneplex.errors import SourceError
from tuneplex.shapes.jsonfile import read_json
from tuneplex.shapes.safetensors import Tensor, read_header

__all__ = ["ADAPTER_CONFIG", "ADAPTER_WEIGHTS", "AdapterShape", "read_adapter"]

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PICKLED = ("adapter_model.bin", "adapter_model.pt")
# The first of the two matrices of a module, as PEFT names it, with or without the adapter's own name.
_LORA_A = re.compile(r"\.lora_(?:embedding_)?A(?:\.[^.]+)?(?:\.weight)?$")


class AdapterShape(msgspec.Struct, frozen=True):
    """An adapter without its numbers.

    Attributes:
        rank: The largest LoRA rank in it.
        alpha: LoRA alpha.
        target_modules: As the configuration says it: names, or one regular expression.
        base_name: The base it was trained on, as the configuration says it.
        size: Bytes of weights.
        tensors: By name.
        rslora: Scaled by the square root of the rank.
        dora: Carries magnitudes too (DoRA).
        bias: `none`, `all` or `lora_only`.
        modules_to_save: Modules that were trained and stored whole.
    """

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    base_name: str
    size: int
    tensors: dict[str, Tensor]
    rslora: bool = False
    dora: bool = False
    bias: str = "none"
    modules_to_save: tuple[str, ...] = ()


class _Config(msgspec.Struct, frozen=True):
    """The part of `adapter_config.json` that we read; other keys do not matter here."""

    peft_type: str
    r: int
    lora_alpha: float = 8.0
    rank_pattern: dict[str, int] | None = None
    target_modules: list[str] | str | None = None
    base_model_name_or_path: str | None = None
    use_rslora: bool = False
    use_dora: bool = False
    bias: str = "none"
    modules_to_save: list[str] | None = None

    @property
    def ranks(self) -> frozenset[int]:
        """All ranks that the weights may have."""
        return frozenset([self.r, *(self.rank_pattern or {}).values()])


def read_adapter(path: Path) -> AdapterShape:
    """Read an adapter's directory, headers only.

    Raises:
        SourceError: It is no LoRA adapter, its weights are missing, pickled or cut off, or they contradict the
            configuration.
    """
    try:
        return _read(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None


def _read(path: Path) -> AdapterShape:
    config = _config(path)
    tensors = read_header(_weights(path))
    _check_ranks(path, config, tensors)
    targets = config.target_modules or []
    return AdapterShape(
        rank=max(config.ranks),
        alpha=config.lora_alpha,
        target_modules=(targets,) if isinstance(targets, str) else tuple(targets),
        base_name=config.base_model_name_or_path or "",
        size=sum(tensor.size for tensor in tensors.values()),
        tensors=tensors,
        rslora=config.use_rslora,
        dora=config.use_dora,
        bias=config.bias,
        modules_to_save=tuple(config.modules_to_save or ()),
    )


def _config(path: Path) -> _Config:
    file = path / ADAPTER_CONFIG
    if not file.is_file():
        hint = "an adapter's directory, as PEFT saves it, has this file"
        raise SourceError(f"{path}: is not an adapter: {ADAPTER_CONFIG} is missing", hint=hint)
    config = read_json(file, _Config)
    if config.peft_type.upper() != "LORA":
        raise SourceError(f"{file}: is of the kind {config.peft_type!r}; only LORA can be served")
    if min(config.ranks) < 1:
        raise SourceError(f"{file}: the rank should be at least 1")
    return config


def _weights(path: Path) -> Path:
    file = path / ADAPTER_WEIGHTS
    if file.is_file():
        return file
    pickled = next((name for name in _PICKLED if (path / name).is_file()), None)
    if pickled:
        hint = "save the adapter again with save_pretrained(..., safe_serialization=True)"
        raise SourceError(f"{path / pickled}: is a pickle, which can run any code; it is not loaded", hint=hint)
    raise SourceError(f"{path}: is not a complete adapter: {ADAPTER_WEIGHTS} is missing")


def _check_ranks(path: Path, config: _Config, tensors: dict[str, Tensor]) -> None:
    found = {name: tensor.shape[0] for name, tensor in tensors.items() if tensor.shape and _LORA_A.search(name)}
    if not found:
        raise SourceError(f"{path / ADAPTER_WEIGHTS}: holds no LoRA weights")
    for name, rank in found.items():
        if rank not in config.ranks:
            said = ", ".join(str(rank) for rank in sorted(config.ranks))
            hint = "the weights and the configuration belong to different adapters; export them together"
            raise SourceError(f"{path}: {name} has rank {rank}, the configuration says {said}", hint=hint)
