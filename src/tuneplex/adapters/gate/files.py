"""Which files there are: weights that are no pickle, in one piece, and nothing that engines would leave out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tuneplex.adapters.gate.report import MERGE, Finding, Verdict
from tuneplex.shapes import ADAPTER_CONFIG, ADAPTER_WEIGHTS

__all__ = ["files"]

_PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
_WHOLE_MODEL = ("config.json", "model.safetensors", "model.safetensors.index.json")


def files(directory: Path) -> Iterator[Finding]:
    """What the directory's listing tells; no file is opened."""
    if not directory.is_dir():
        yield Finding("files", Verdict.REFUSED, "is not a directory", "name the directory that has the adapter's files")
        return
    pickle = next((name for name in _PICKLES if (directory / name).is_file()), None)
    if not (directory / ADAPTER_CONFIG).is_file():
        model = any((directory / name).is_file() for name in _WHOLE_MODEL)
        way_out = "this is a whole model: serve it as a base" if model else "a directory that PEFT saved has this file"
        yield Finding("files", Verdict.REFUSED, f"is not an adapter: {ADAPTER_CONFIG} is missing", way_out)
    elif not (directory / ADAPTER_WEIGHTS).is_file():
        yield _without_weights(directory, pickle)
    elif pickle:
        yield Finding("files", Verdict.ACCEPTED, f"safetensors; {pickle} beside it is a pickle and is never opened")
    else:
        yield Finding("files", Verdict.ACCEPTED, "safetensors")
    if any(directory.glob("new_embeddings.*")):
        detail = "new_embeddings: tokens were added, and no engine here adds them"
        yield Finding("added tokens", Verdict.REFUSED, detail, MERGE)


def _without_weights(directory: Path, pickle: str | None) -> Finding:
    if pickle:
        way_out = "save the adapter again with save_pretrained(..., safe_serialization=True)"
        return Finding(
            "files", Verdict.REFUSED, f"{pickle} is a pickle, which can run any code; it is not opened", way_out
        )
    if any(directory.glob("adapter_model-*-of-*.safetensors")):
        way_out = "save it again with a larger max_shard_size"
        return Finding("files", Verdict.REFUSED, "its weights lie in several files, which vLLM does not load", way_out)
    detail = f"is not a complete adapter: {ADAPTER_WEIGHTS} is missing"
    return Finding("files", Verdict.REFUSED, detail, "fetch or export it again")
