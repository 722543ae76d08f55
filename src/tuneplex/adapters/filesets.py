"""What is fetched of a repository or a prefix: only files at its top, never code, never pickles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from tuneplex.errors import SourceError

__all__ = ["ADAPTER_FILES", "BASE_FILES", "FileSet"]


@dataclass(frozen=True)
class FileSet:
    """The files of an adapter or of a base.

    Attributes:
        kind: The directory in the cache.
        patterns: The files.
        needed: Patterns that at least one file each must match.
    """

    kind: str
    patterns: tuple[str, ...]
    needed: tuple[str, ...]

    def chosen(self, source: str, there: Sequence[str]) -> tuple[str, ...]:
        """The names among those at the top of a source that are fetched.

        Raises:
            SourceError: Something that is needed is not there.
        """
        for pattern in self.needed:
            if not any(fnmatch(name, pattern) for name in there):
                raise _lacking(source, pattern, there)
        wanted = [name for name in there if any(fnmatch(name, pattern) for pattern in self.patterns)]
        # Some repositories hold the same weights a second time, in one file of another layout.
        several = any(fnmatch(name, "model*.safetensors") for name in wanted)
        return tuple(name for name in wanted if not (several and name.startswith("consolidated")))


_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "*.jinja")
ADAPTER_FILES = FileSet(
    "adapters",
    (
        "adapter_config.json",
        "adapter_model.safetensors",
        "new_embeddings.safetensors",
        "generation_config.json",
        *_TOKENIZER,
    ),
    ("adapter_config.json", "adapter_model.safetensors"),
)
BASE_FILES = FileSet(
    "bases",
    ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken"),
    ("config.json", "*.safetensors"),
)


def _lacking(source: str, pattern: str, there: Sequence[str]) -> SourceError:
    pickled = next((name for name in there if name.endswith((".bin", ".pt", ".pth"))), None)
    if pickled and pattern.endswith(".safetensors"):
        message = f"{source}: has no {pattern}, only {pickled}, a pickle, which can run any code and is not fetched"
        return SourceError(message, hint="choose a revision or a repository with safetensors")
    hint = "it belongs under 'adapters'" if pattern == "config.json" and "adapter_config.json" in there else ""
    return SourceError(f"{source}: has no {pattern}", hint=hint or "choose another revision or repository")
