"""What a base model is made of: `config.json` and the headers of its weights."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuneplex.errors import SourceError
from tuneplex.shapes.jsonfile import read_json
from tuneplex.shapes.safetensors import Tensor, read_header
from tuneplex.shapes.speech import Speech, read_speech

__all__ = ["BASE_CONFIG", "BASE_INDEX", "BaseShape", "read_base"]

BASE_CONFIG = "config.json"
BASE_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth")


class BaseShape(msgspec.Struct, frozen=True):
    """A base model without its numbers; sizes that its configuration does not tell are 0.

    Attributes:
        architecture: The class that runs it: `LlamaForCausalLM`.
        hidden_size: Width of the residual stream.
        layers: How many.
        heads: Attention heads.
        kv_heads: Key and value heads.
        vocab_size: Tokens in the vocabulary.
        max_position: Longest context it was made for, tokens.
        size: Bytes of weights.
        tensors: By name.
        quantized: Its weights are packed, so their shapes do not tell what the modules compute.
        nested: It is for more than text: its modules may have other names in its class than in its files.
        speech: How prompts are written for it.
    """

    architecture: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    max_position: int
    size: int
    tensors: dict[str, Tensor]
    quantized: bool = False
    nested: bool = False
    speech: Speech = Speech()


class _Text(msgspec.Struct, frozen=True):
    """The sizes in `config.json`, at its top or, in models for more than text, in `text_config`."""

    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int | None = None
    vocab_size: int = 0
    max_position_embeddings: int = 0


class _Config(_Text, frozen=True):
    """The part of `config.json` that we read."""

    architectures: list[str] | None = None
    text_config: _Text | None = None
    quantization_config: dict[str, object] | None = None


class _Index(msgspec.Struct, frozen=True):
    """Which file holds which tensor."""

    weight_map: dict[str, str]


def read_base(path: Path) -> BaseShape:
    """Read a base model's directory, headers only.

    Raises:
        SourceError: It is no model, or its weights are missing, pickled or cut off.
    """
    try:
        return _read(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None


def _read(path: Path) -> BaseShape:
    file = path / BASE_CONFIG
    if not file.is_file():
        raise SourceError(f"{path}: is not a model: {BASE_CONFIG} is missing", hint=_hint(path))
    config = read_json(file, _Config)
    tensors = _tensors(path)
    text = config.text_config or config
    return BaseShape(
        architecture=(config.architectures or [""])[0],
        hidden_size=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads or text.num_attention_heads,
        vocab_size=text.vocab_size,
        max_position=text.max_position_embeddings,
        size=sum(tensor.size for tensor in tensors.values()),
        tensors=tensors,
        quantized=config.quantization_config is not None,
        nested=config.text_config is not None,
        speech=read_speech(path),
    )


def _hint(path: Path) -> str:
    adapter = (path / "adapter_config.json").is_file()
    return "this is an adapter; it belongs under 'adapters'" if adapter else "name the directory that has this file"


def _tensors(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(path):
        tensors |= read_header(file)
    return tensors


def _weight_files(path: Path) -> list[Path]:
    if (path / _SINGLE).is_file():
        return [path / _SINGLE]
    if (path / BASE_INDEX).is_file():
        names = sorted(set(read_json(path / BASE_INDEX, _Index).weight_map.values()))
        return [_shard(path, name) for name in names]
    found = sorted(path.glob("*.safetensors"))
    if found:
        return found
    if any(next(path.glob(pattern), None) for pattern in _PICKLED):
        hint = "convert them to safetensors"
        raise SourceError(f"{path}: its weights are pickles, which can run any code; they are not loaded", hint=hint)
    raise SourceError(f"{path}: is not a complete model: there are no safetensors files")


def _shard(path: Path, name: str) -> Path:
    file = path / name
    if Path(name).name != name:
        raise SourceError(f"{path / BASE_INDEX}: names a file outside its directory")
    if not file.is_file():
        raise SourceError(f"{path}: is not a complete model: {name} is missing", hint="fetch or copy it again")
    return file
