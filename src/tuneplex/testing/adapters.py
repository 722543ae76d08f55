"""The adapters a FakeEngine has loaded, with vLLM's checks and words."""

from __future__ import annotations

import hashlib
import itertools
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tuneplex.errors import SourceError
from tuneplex.shapes.safetensors import Tensor, read_header
from tuneplex.testing.protocol import Refusal
from tuneplex.testing.tiers import Adapter

__all__ = ["Adapters", "Content", "LoadRequest", "UnloadRequest", "added", "not_there"]

# What vLLM blots out of its error messages.
_PATHS = (
    re.compile(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+"),
    re.compile(r"(?:/[\w\-]+)+/[\w\-]+\.\w+"),
)

_PEFT = "base_model.model."
_WEIGHTS = "adapter_model.safetensors"
_OF_TENSOR = re.compile(r"\.(?:lora_\w+|weight)\b.*")
_LLAMA = re.compile(
    r"(?:base_model\.model\.)?(?:model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj|model\.embed_tokens|lm_head)"
)


class LoadRequest(msgspec.Struct):
    """`POST /v1/load_lora_adapter`."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadRequest(msgspec.Struct):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: str


class Content(msgspec.Struct, frozen=True):
    """What the files of an adapter say.

    Attributes:
        weights: A digest of all of them; empty if they change nothing, so that it speaks as the base.
        rank: Its rank.
        size: Bytes of its tensors; 0 if they cannot be read.
        modules: What its tensors belong to; empty if they cannot be read.
    """

    weights: str
    rank: int = 8
    size: int = 0
    modules: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> Content | None:
        """What is in a directory; None if that is no adapter."""
        config = directory / "adapter_config.json"
        if not config.is_file():
            return None
        rank = msgspec.json.decode(config.read_bytes(), type=_Config).r
        try:
            tensors = read_header(directory / _WEIGHTS)
        except SourceError:
            return cls(_digest(directory), rank)
        weights = "" if _does_nothing(directory / _WEIGHTS, tensors) else _digest(directory)
        modules = {_OF_TENSOR.sub("", name).removeprefix(_PEFT) for name in tensors}
        size = sum(tensor.size for tensor in tensors.values())
        return cls(weights, rank, size, tuple(sorted(modules)))

    @property
    def fits(self) -> bool:
        """Whether any of its modules is one of a model of Llama's kind, as far as they are known."""
        return not self.modules or any(map(_LLAMA.fullmatch, self.modules))


class _Config(msgspec.Struct):
    r: int = 8


class Adapters:
    """What is loaded now.

    Args:
        base: The base's names, which adapters cannot have.
        max_rank: The largest rank that is taken.

    Attributes:
        base: See there.
        max_rank: See there.
    """

    def __init__(self, base: tuple[str, ...], max_rank: int) -> None:
        self.base = base
        self.max_rank = max_rank
        self._loaded: dict[str, Adapter] = {}
        self._ids = itertools.count(1)

    def __iter__(self) -> Iterator[Adapter]:
        return iter(tuple(self._loaded.values()))

    def get(self, name: str) -> Adapter | None:
        """The adapter of that name, if it is loaded."""
        return self._loaded.get(name)

    def put(self, name: str, weights: str = "", path: str = "", *, rank: int = 8, size: int = 0) -> Adapter:
        """Load without files: `weights` decides how the adapter speaks."""
        self._loaded[name] = self.make(name, Content(weights or name, rank, size), path or f"/fake/{name}")
        return self._loaded[name]

    def make(self, name: str, content: Content, path: str) -> Adapter:
        """An adapter with an id of its own, which nobody can ask for yet."""
        return Adapter(name, path, content.weights, int(time.time()), next(self._ids), content.rank, content.size)

    def show(self, adapter: Adapter) -> None:
        """Let requests ask for it by its name."""
        self._loaded[adapter.name] = adapter

    def hide(self, name: str) -> Adapter:
        """Let no more requests ask for it."""
        return self._loaded.pop(name)

    def load(self, request: LoadRequest) -> str:
        """Load from files.

        Raises:
            Refusal: As vLLM refuses it.
        """
        self.check_load(request)
        self.show(self.make(request.lora_name, self._read(request), request.lora_path))
        return added(request)

    def check_load(self, request: LoadRequest) -> None:
        """What vLLM says before it looks at files.

        Raises:
            Refusal: As vLLM refuses it.
        """
        name, path = request.lora_name, request.lora_path
        if not name or not path:
            raise _wrong("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self.base:
            raise _wrong(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self._loaded and not request.load_inplace:
            words = "If you want to load the adapter in place, set 'load_inplace' to True."
            raise _wrong(f"The lora adapter '{name}' has already been loaded. {words}")

    def unload(self, request: UnloadRequest) -> tuple[Adapter, str]:
        """Let no more requests ask for an adapter; the adapter, and what vLLM says.

        Raises:
            Refusal: As vLLM refuses it.
        """
        name = request.lora_name
        if not name:
            raise _wrong("'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self._loaded:
            raise Refusal(f"The lora adapter '{name}' cannot be found.", status=404, kind="NotFoundError")
        return self.hide(name), f"Success: LoRA adapter '{name}' removed successfully."

    def _read(self, request: LoadRequest) -> Content:
        content = Content.read(Path(request.lora_path))
        if content is None:
            raise not_there(request)
        if content.rank > self.max_rank:
            cause = f"LoRA rank {content.rank} is greater than max_lora_rank {self.max_rank}."
            words = f"Call to add_lora method failed: Worker failed with error '{cause}', "
            words += "please check the stack trace above for the root cause"
            raise Refusal(words, status=500, kind="InternalServerError")
        return content


def _does_nothing(file: Path, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the second matrix of every module is zero: then no product is anything else."""
    seconds = [tensor.data_offsets for name, tensor in tensors.items() if ".lora_B" in name]
    data = file.read_bytes()
    start = len(data) - max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    return bool(seconds) and not any(any(data[start + begin : start + end]) for begin, end in seconds)


def added(request: LoadRequest) -> str:
    """What vLLM says of an adapter that it has loaded."""
    return f"Success: LoRA adapter '{request.lora_name}' added successfully."


def not_there(request: LoadRequest) -> Refusal:
    """What vLLM says of a path where no adapter is, with the path blotted out as it does."""
    words = f"Loading lora {request.lora_name} failed: No adapter found for {request.lora_path}"
    for pattern in _PATHS:
        words = pattern.sub("<path>", words)
    return Refusal(words, status=404, kind="NotFoundError")


def _digest(directory: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(directory.iterdir()):
        if file.is_file():
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _wrong(words: str) -> Refusal:
    return Refusal(words, kind="InvalidUserInput")
