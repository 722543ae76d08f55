"""From the names of an adapter's tensors to the modules that they change, and to names that engines understand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from tuneplex.adapters.gate.report import MERGE, Finding, Verdict
from tuneplex.shapes import Tensor

__all__ = ["Half", "Names", "Pair", "names", "pairs"]

PREFIX = "base_model.model."
_LONGEST = 512
_MATRIX = 2
# `…q_proj.lora_A.weight`, with the adapter's own name in it where a trainer has saved its state as it was.
_HALF = re.compile(r"(.+?)\.lora_([AB])(?:\.(?!weight$)([^.]+))?\.weight")
_OF_EMBEDDING = re.compile(r"(.+?)\.lora_embedding_([AB])(?:\.([^.]+))?")
# What wrappers of PyTorch put into names: compiled, sharded and checkpointed modules.
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_PARALLEL = "module."
_FROZEN = (".embed_tokens.base_layer.weight", ".lm_head.base_layer.weight")
_WHOLE = "were saved whole, as they were trained or tokens were added; no engine here applies them"
_EXPORT = "save it with save_pretrained of PEFT"
# What else is found in such files, and what it means; the first that matches counts.
_STRANGE = (
    (".lora_magnitude_vector", "are magnitudes of DoRA, which no engine here applies", MERGE),
    (".trainable_tokens", "are embeddings of single tokens, which no engine here applies", MERGE),
    (".lora_diag", "are a third matrix, which no engine here applies", MERGE),
    (".lora_A.bias", "are biases of A, which no engine here applies", MERGE),
    (".lora_B.bias", "are biases of B, which no engine here applies", MERGE),
    (".lora_down.", "are named as image models name them", "convert it to PEFT's names"),
    (".lora_up.", "are named as image models name them", "convert it to PEFT's names"),
    (".lora_a", "are named as MLX names them, and lie the other way round", "convert it to PEFT's form"),
    (".lora_b", "are named as MLX names them, and lie the other way round", "convert it to PEFT's form"),
    (".lm_head.weight", _WHOLE, MERGE),
    (".embed_tokens.weight", _WHOLE, MERGE),
    (".bias", "are trained biases of the base, which no engine here applies", MERGE),
)


class Half(msgspec.Struct, frozen=True):
    """One of a module's two matrices.

    Attributes:
        key: The tensor's name in the file.
        module: The module's name, without what PEFT and wrappers put before and into it.
        letter: `A` or `B`.
        adapter: The adapter's own name, if the tensor's has it.
        embedding: Whether it changes an embedding, whose matrices lie the other way round.
        understood: Whether an engine understands the key as it is.
        tensor: Its type, shape and place.
    """

    key: str
    module: str
    letter: str
    adapter: str
    embedding: bool
    understood: bool
    tensor: Tensor

    def called(self, module: str) -> str:
        """The name that engines understand, for a module of this name."""
        tail = f"lora_embedding_{self.letter}" if self.embedding else f"lora_{self.letter}.weight"
        return f"{PREFIX}{module}.{tail}"


class Pair(msgspec.Struct, frozen=True):
    """Both matrices of a module."""

    a: Half
    b: Half

    @property
    def module(self) -> str:
        """The module's name."""
        return self.a.module

    @property
    def rank(self) -> int:
        """How many directions it has."""
        return self.a.tensor.shape[0]

    @property
    def change(self) -> tuple[int, int]:
        """The shape of the change: (out, in), of an embedding (tokens, width)."""
        there = (self.b.tensor.shape[0], self.a.tensor.shape[1])
        return (there[1], there[0]) if self.a.embedding else there


class Names(msgspec.Struct, frozen=True):
    """What the names say.

    Attributes:
        halves: The matrices of LoRA.
        frozen: Shapes of copies of the base's embeddings, which PEFT stores beside an adapter that changes them.
        findings: What else there is.
    """

    halves: tuple[Half, ...]
    frozen: dict[str, tuple[int, ...]]
    findings: tuple[Finding, ...]


def names(tensors: Mapping[str, Tensor]) -> Names:
    """Read the names of an adapter's tensors."""
    halves: list[Half] = []
    frozen: dict[str, tuple[int, ...]] = {}
    strange: list[str] = []
    for key, tensor in tensors.items():
        half = _half(key, tensor) if len(key) <= _LONGEST else None
        if half is not None:
            halves.append(half)
        elif key.endswith(_FROZEN):
            frozen[key] = tensor.shape
        else:
            strange.append(key)
    findings = [*_strange(strange), *_several(halves)]
    if not halves and not findings:
        findings.append(Finding("tensors", Verdict.REFUSED, "the file holds no LoRA weights", _EXPORT))
    return Names(tuple(halves), frozen, tuple(findings))


def _half(key: str, tensor: Tensor) -> Half | None:
    linear, embedding = _HALF.fullmatch(key), _OF_EMBEDDING.fullmatch(key)
    match = linear or embedding
    if match is None:
        return None
    path = _WRAPPERS.sub("", match[1].removeprefix(_PARALLEL))
    module = _WRAPPERS.sub("", path.removeprefix(PREFIX).removeprefix(_PARALLEL))
    understood = match[3] is None and match[1] in {module, PREFIX + module}
    return Half(key, module, match[2], match[3] or "", linear is None, understood, tensor)


def _strange(keys: list[str]) -> Iterator[Finding]:
    """One finding for each kind of tensor that is not LoRA's."""
    seen = set()
    for key in keys:
        kind = next((one for one in _STRANGE if one[0] in key[-_LONGEST:]), None)
        mark, meaning, way_out = kind or ("", "are not A or B of a module, and no engine here applies them", MERGE)
        if mark not in seen:
            seen.add(mark)
            yield Finding("tensors", Verdict.REFUSED, f"tensors such as {key[:120]} {meaning}", way_out)


def _several(halves: list[Half]) -> Iterator[Finding]:
    found = sorted({half.adapter for half in halves})
    if len(found) > 1:
        called = ", ".join(name or "one without a name" for name in found[:5])
        yield Finding("tensors", Verdict.REFUSED, f"the file holds several adapters: {called}", "save each on its own")


def pairs(halves: tuple[Half, ...]) -> tuple[tuple[Pair, ...], tuple[Finding, ...]]:
    """Put A and B of each module together; what has no fitting other half is found fault with."""
    by_module: dict[str, dict[str, Half]] = {}
    findings = []
    for half in halves:
        at = by_module.setdefault(half.module, {})
        if half.letter in at:
            findings.append(_unpaired(half.module, f"has two matrices {half.letter}"))
        at[half.letter] = half
    found = []
    for module, at in by_module.items():
        if problem := _problem(at):
            findings.append(_unpaired(module, problem))
        else:
            found.append(Pair(at["A"], at["B"]))
    return tuple(found), tuple(findings[:1])


def _unpaired(module: str, problem: str) -> Finding:
    return Finding("tensors", Verdict.REFUSED, f"{module} {problem}", f"{_EXPORT}, with all shards gathered")


def _problem(at: Mapping[str, Half]) -> str:
    if len(at) != _MATRIX:
        return f"has a matrix {next(iter(at))} without its other half"
    a, b = at["A"].tensor.shape, at["B"].tensor.shape
    if len(a) != _MATRIX or len(b) != _MATRIX or 0 in (*a, *b) or at["A"].embedding != at["B"].embedding:
        return "has something else than a pair of matrices"
    return "" if a[0] == b[1] else f"has matrices of different ranks, {a[0]} and {b[1]}"
