"""Whether the modules that an adapter changes are the base's, by exact name and shape.

An engine leaves out what it does not find, with no more than a warning, and then answers as the base does (vllm#34186).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from tuneplex.adapters.gate.config import Config
from tuneplex.adapters.gate.names import Names, Pair
from tuneplex.adapters.gate.report import MERGE, Finding, Verdict
from tuneplex.shapes import BaseShape, Tensor

__all__ = ["Fit", "fit", "last_parts", "layers_of"]

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|blocks|h)\.(\d+)\.(.+)$")
# Tied to another tensor in many models, which then do not store it under its own name.
_OFTEN_TIED = ("lm_head", "embed_tokens")
_EMBEDDINGS = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out")
_MATRIX = 2

_Shapes = Mapping[str, set[tuple[int, ...]]]


class Fit(msgspec.Struct, frozen=True):
    """How an adapter fits a base.

    Attributes:
        renames: Names of tensors that must change, and into what.
        findings: What is to be said of it.
    """

    renames: dict[str, str]
    findings: tuple[Finding, ...]


def fit(config: Config, names: Names, pairs: tuple[Pair, ...], base: BaseShape | None) -> Fit:
    """Find each module of the adapter in the base.

    Args:
        config: The adapter's.
        names: From `names`.
        pairs: Its modules.
        base: None looks at the names alone.
    """
    if base is None:
        return Fit(_renamed(pairs, {}), tuple(_about_names(pairs, {}, None)))
    shapes = _shapes(base.tensors)
    known = _Names(shapes)
    found = {pair.module: _found(pair.module, known, nested=base.nested) for pair in pairs}
    paths = {} if base.nested else {module: name for module, name in found.items() if name and name != module}
    wrong = next(_wrong(config, pairs, base, shapes, found), None)
    findings = (wrong,) if wrong else (_fits(pairs, base, found), *_incomplete(config, pairs, base, shapes))
    return Fit(_renamed(pairs, paths), (*findings, *_about_names(pairs, paths, config), *_frozen(names, base)))


class _Names:
    """The base's modules, also by their names from the layer on."""

    def __init__(self, shapes: _Shapes) -> None:
        self.shapes = shapes
        self.by_tail: defaultdict[str, list[str]] = defaultdict(list)
        for name in shapes:
            if tail := _tail(name):
                self.by_tail[tail].append(name)


def _shapes(tensors: Mapping[str, Tensor]) -> _Shapes:
    """The shapes of all tensors, by module; biases and scales have other shapes than any change of a matrix."""
    shapes: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name, tensor in tensors.items():
        shapes[name.rpartition(".")[0]].add(tensor.shape)
    return shapes


def _found(module: str, names: _Names, *, nested: bool) -> str | None:
    """The base's module of this name; else the only one that it can be.

    That is one with more before the whole name, or with less: the adapter was trained on a part of the class that is
    served, or on a class around it. Where class and files name modules differently, what counts is the name from the
    layer on.
    """
    if module in names.shapes:
        return module
    alike = [name for name in names.by_tail.get(_tail(module), ()) if nested or _within(module, name)]
    return alike[0] if len(alike) == 1 else None


def _within(one: str, other: str) -> bool:
    return one.endswith(f".{other}") or other.endswith(f".{one}")


def _tail(module: str) -> str:
    match = _LAYER.search(module)
    return match[0].removeprefix(".") if match else ""


def _wrong(
    config: Config, pairs: tuple[Pair, ...], base: BaseShape, shapes: _Shapes, found: Mapping[str, str | None]
) -> Iterator[Finding]:
    """Modules that cannot be the base's."""
    trained = config.base_model_name_or_path
    way_out = f"it was trained on {trained[:200]}" if trained else "it was trained on another model"
    for pair in pairs:
        there = shapes.get(found[pair.module] or "", set())
        matrices = sorted(shape for shape in there if len(shape) == _MATRIX)
        if not there and pair.module.endswith(_OFTEN_TIED) and base.vocab_size and base.hidden_size:
            matrices = [(base.vocab_size, base.hidden_size)]
        if not there and not matrices:
            yield Finding("base", Verdict.REFUSED, f"the base has no module {pair.module}", way_out)
        elif not base.quantized and not _same(pair, matrices, turned=config.fan_in_fan_out):
            held = " or ".join(map(_times, matrices)) or "no matrix"
            detail = f"{pair.module} is {_times(pair.change)} in the adapter and {held} in the base"
            yield Finding("base", Verdict.REFUSED, detail, way_out)


def _same(pair: Pair, matrices: list[tuple[int, ...]], *, turned: bool) -> bool:
    change = pair.change
    return change in matrices or (turned and (change[1], change[0]) in matrices)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


def _fits(pairs: tuple[Pair, ...], base: BaseShape, found: Mapping[str, str | None]) -> Finding:
    """Modules that are all there; in a model for more than text their names cannot be held against its class."""
    detail = f"{len(pairs)} modules of {base.architecture or 'the base'}, by name and shape"
    if base.nested and any(name != module for module, name in found.items()):
        way_out = "look whether its answers differ from the base's"
        return Finding("base", Verdict.WARNED, f"{detail} from their layer on; what stands before it differs", way_out)
    if base.quantized:
        return Finding("base", Verdict.ACCEPTED, f"{detail.removesuffix(' and shape')}; the base is quantized")
    return Finding("base", Verdict.ACCEPTED, detail)


def _incomplete(config: Config, pairs: tuple[Pair, ...], base: BaseShape, shapes: _Shapes) -> Iterator[Finding]:
    """What should have weights and has none: half an export looks like a whole one."""
    modules = [pair.module for pair in pairs]
    lacking = [
        target
        for target in config.targets
        if _any_ends(shapes, target) and not _any_ends(modules, target) and not config.exclude_modules
    ]
    if lacking:
        detail = f"target_modules names {', '.join(lacking[:5])}, for which there are no weights"
        yield Finding("complete", Verdict.WARNED, detail, "export it again, with all shards gathered")
    narrowed = config.layers_to_transform is not None or config.exclude_modules or not config.targets
    holes = {} if narrowed else _holes(modules, base.layers)
    if holes:
        name, count = next(iter(holes.items()))
        detail = f"{name} has weights in {count} of {base.layers} layers"
        yield Finding("complete", Verdict.WARNED, detail, "export it again, with all shards gathered")


def _any_ends(names: Iterator[str] | Mapping[str, object] | list[str], tail: str) -> bool:
    return any(name == tail or name.endswith(f".{tail}") for name in names)


def _holes(modules: list[str], layers: int) -> dict[str, int]:
    """Kinds of modules that are not changed in each layer, and in how many they are."""
    counts: defaultdict[str, int] = defaultdict(int)
    for module in modules:
        if match := _LAYER.search(module):
            counts[match[2]] += 1
    return {name: count for name, count in counts.items() if count < layers}


def _renamed(pairs: tuple[Pair, ...], moved: Mapping[str, str]) -> dict[str, str]:
    halves = [half for pair in pairs for half in (pair.a, pair.b)]
    return {
        half.key: half.called(moved.get(half.module, half.module))
        for half in halves
        if not half.understood or half.module in moved
    }


def _about_names(pairs: tuple[Pair, ...], moved: Mapping[str, str], config: Config | None) -> Iterator[Finding]:
    if moved and config is not None and (config.rank_pattern or config.alpha_pattern):
        old, new = next(iter(moved.items()))
        detail = f"{old} is {new} in the base, and patterns of the configuration go by the former"
        yield Finding("names", Verdict.REFUSED, detail, "save it from the class that is served")
    elif renamed := _renamed(pairs, moved):
        old, new = next(iter(renamed.items()))
        yield Finding("names", Verdict.CONVERTED, f"{len(renamed)} tensors are renamed: {old} to {new}")
    touched = [name for name in last_parts(pairs) if name in _EMBEDDINGS]
    if touched:
        detail = f"changes {', '.join(touched)}, which vLLM serves for some architectures only, and refuses for others"
        yield Finding("embeddings", Verdict.WARNED, detail)


def _frozen(names: Names, base: BaseShape) -> Iterator[Finding]:
    """PEFT stores the embeddings beside an adapter that changes them; engines leave them out."""
    for shape in names.frozen.values():
        if base.vocab_size and shape != (base.vocab_size, base.hidden_size):
            detail = f"its embeddings are {_times(shape)} and the base's {base.vocab_size} x {base.hidden_size}"
            yield Finding("embeddings", Verdict.REFUSED, detail, MERGE)
            return
    if names.frozen:
        detail = "holds a copy of the embeddings it was trained on, which engines leave out"
        yield Finding("embeddings", Verdict.WARNED, detail, "make sure that they are the base's own")


def last_parts(pairs: tuple[Pair, ...]) -> tuple[str, ...]:
    """The last part of each module's name, each once."""
    return tuple(sorted({pair.module.rpartition(".")[2] for pair in pairs}))


def layers_of(pairs: tuple[Pair, ...]) -> int:
    """How many layers are changed."""
    return len({match[1] for pair in pairs if (match := _LAYER.search(pair.module))})
