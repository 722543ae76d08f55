"""The adapters a FakeEngine has loaded, with vLLM's checks and words."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tuneplex.testing.protocol import Refusal

__all__ = ["Adapter", "Adapters", "LoadRequest", "UnloadRequest"]

# What vLLM blots out of its error messages.
_PATHS = (
    re.compile(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+"),
    re.compile(r"(?:/[\w\-]+)+/[\w\-]+\.\w+"),
)


class LoadRequest(msgspec.Struct):
    """`POST /v1/load_lora_adapter`."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadRequest(msgspec.Struct):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: str


class Adapter(msgspec.Struct, frozen=True):
    """One loaded adapter; `weights` is what makes it speak its own way."""

    name: str
    path: str
    weights: str
    loaded_at: int


class _Config(msgspec.Struct):
    r: int = 8


class Adapters:
    """What is loaded now.

    Args:
        base: The base's names, which adapters cannot have.
        max_rank: The largest rank that is taken.
    """

    def __init__(self, base: tuple[str, ...], max_rank: int) -> None:
        self._base = base
        self._max_rank = max_rank
        self._loaded: dict[str, Adapter] = {}

    def __iter__(self) -> Iterator[Adapter]:
        return iter(tuple(self._loaded.values()))

    def get(self, name: str) -> Adapter | None:
        """The adapter of that name, if it is loaded."""
        return self._loaded.get(name)

    def put(self, name: str, weights: str = "", path: str = "") -> None:
        """Load without files: `weights` decides how the adapter speaks."""
        self._loaded[name] = Adapter(name, path or f"/fake/{name}", weights or name, int(time.time()))

    def load(self, request: LoadRequest) -> str:
        """Load from files.

        Raises:
            Refusal: As vLLM refuses it.
        """
        name, path = request.lora_name, request.lora_path
        if not name or not path:
            raise _wrong("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._base:
            raise _wrong(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self._loaded and not request.load_inplace:
            words = "If you want to load the adapter in place, set 'load_inplace' to True."
            raise _wrong(f"The lora adapter '{name}' has already been loaded. {words}")
        self.put(name, self._read(name, Path(path)), path)
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, request: UnloadRequest) -> str:
        """Forget an adapter.

        Raises:
            Refusal: As vLLM refuses it.
        """
        name = request.lora_name
        if not name:
            raise _wrong("'lora_name' needs to be provided to unload a LoRA adapter.")
        if self._loaded.pop(name, None) is None:
            raise Refusal(f"The lora adapter '{name}' cannot be found.", status=404, kind="NotFoundError")
        return f"Success: LoRA adapter '{name}' removed successfully."

    def _read(self, name: str, directory: Path) -> str:
        config = directory / "adapter_config.json"
        if not config.is_file():
            shown = str(directory)
            for pattern in _PATHS:
                shown = pattern.sub("<path>", shown)
            words = f"Loading lora {name} failed: No adapter found for {shown}"
            raise Refusal(words, status=404, kind="NotFoundError")
        rank = msgspec.json.decode(config.read_bytes(), type=_Config).r
        if rank > self._max_rank:
            cause = f"LoRA rank {rank} is greater than max_lora_rank {self._max_rank}."
            words = f"Call to add_lora method failed: Worker failed with error '{cause}', "
            words += "please check the stack trace above for the root cause"
            raise Refusal(words, status=500, kind="InternalServerError")
        return _digest(directory)


def _digest(directory: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(directory.iterdir()):
        if file.is_file():
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _wrong(words: str) -> Refusal:
    return Refusal(words, kind="InvalidUserInput")
