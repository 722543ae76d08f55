"""The gate: everything that can be told of an adapter before an engine sees it, headers first and weights last."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from tuneplex.adapters.gate.config import Config, read_config
from tuneplex.adapters.gate.features import features
from tuneplex.adapters.gate.files import files
from tuneplex.adapters.gate.modules import fit, last_parts, layers_of
from tuneplex.adapters.gate.names import Pair, names, pairs
from tuneplex.adapters.gate.report import Facts, Finding, Report, Verdict
from tuneplex.adapters.gate.scaling import scaling
from tuneplex.adapters.gate.speech import speech
from tuneplex.errors import SourceError
from tuneplex.fleetfile.ranks import smallest_max_rank
from tuneplex.shapes import ADAPTER_WEIGHTS, BaseShape, Tensor, read_header, read_speech

__all__ = ["inspect", "listed", "renames"]

# Kept here too, so that headers can be judged without NumPy.
_DTYPES = frozenset({"F16", "BF16", "F32", "F64"})
_PACKED = re.compile(r"(?:-unsloth)?-(?:bnb-4bit|4bit|8bit|awq|gptq|fp8|int4|int8|bf16|fp16)(?:-.*)?$")


def inspect(
    directory: Path,
    base: BaseShape | None = None,
    *,
    base_name: str = "",
    deep: bool = False,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> Report:
    """Judge an adapter. Nothing is changed, and no pickle is opened.

    Args:
        directory: Where its files are.
        base: The model that it is to be served with; None leaves out all that needs it.
        base_name: What the base is called, to hold against what the adapter says of it; empty does not look.
        deep: Compute the effective rank too, which takes a few seconds for a large adapter.
        advance: Told how many modules of how many had their weights read.

    Returns:
        What was found. It never raises for what the adapter's files hold.
    """
    found = list(listed(directory))
    if _refused(found):
        return Report(str(directory), tuple(found), Facts())
    try:
        config, unknown = read_config(directory)
        found += features(config, unknown)
        tensors = read_header(directory / ADAPTER_WEIGHTS)
        return _judged(directory, config, tensors, found, _Wish(base, base_name, advance, deep=deep))
    except SourceError as error:
        detail = str(error).replace(f"{directory}/", "", 1)
        return Report(str(directory), (*found, Finding("readable", Verdict.REFUSED, detail, error.hint)), Facts())
    except OSError as error:
        return Report(str(directory), (*found, _unreadable(error)), Facts())


def listed(directory: Path) -> tuple[Finding, ...]:
    """What the directory's listing tells; no file is opened."""
    try:
        return tuple(files(directory))
    except OSError as error:
        return (_unreadable(error),)


def _unreadable(error: OSError) -> Finding:
    return Finding("readable", Verdict.REFUSED, f"cannot be read: {error.strerror}", "mend its permissions")


def renames(directory: Path, base: BaseShape | None) -> dict[str, str]:
    """Names of tensors that must change before an engine can read them; none where that would not help.

    Only headers are read.
    """
    try:
        config, _unknown = read_config(directory)
        named = names(read_header(directory / ADAPTER_WEIGHTS))
    except SourceError:
        return {}
    modules, unpaired = pairs(named.halves)
    fitting = fit(config, named, modules, base)
    return {} if _refused((*named.findings, *unpaired, *fitting.findings)) else fitting.renames


class _Wish:
    """How `inspect` was called."""

    def __init__(
        self, base: BaseShape | None, base_name: str, advance: Callable[[int, int], None], *, deep: bool
    ) -> None:
        self.base, self.base_name, self.advance, self.deep = base, base_name, advance, deep


def _judged(directory: Path, config: Config, tensors: dict[str, Tensor], found: list[Finding], wish: _Wish) -> Report:
    named = names(tensors)
    modules, unpaired = pairs(named.halves)
    scaled = scaling(config, modules)
    fitting = fit(config, named, modules, wish.base)
    found += [*named.findings, *unpaired, *scaled.findings, *_types(tensors), *fitting.findings]
    found += _recorded(config, wish.base_name)
    found += speech(read_speech(directory), wish.base.speech if wish.base else None)
    facts = Facts(
        rank=scaled.rank,
        max_lora_rank=smallest_max_rank(scaled.rank),
        alpha=config.lora_alpha or 0.0,
        scaling=scaled.factors,
        rslora=config.use_rslora,
        dtypes=tuple(sorted({tensor.dtype for tensor in tensors.values()})),
        size=sum(tensor.size for tensor in tensors.values()),
        modules=last_parts(modules),
        layers=layers_of(modules),
        base_name=config.base_model_name_or_path or "",
    )
    if _refused(found):
        return Report(str(directory), tuple(found), facts)
    weighed, effective = _weighed(directory, modules, facts, wish)
    facts = msgspec.structs.replace(facts, effective_rank=effective)
    return Report(str(directory), (*found, *weighed), facts, fitting.renames)


def _refused(found: Iterable[Finding]) -> bool:
    return any(finding.verdict is Verdict.REFUSED for finding in found)


def _types(tensors: Mapping[str, Tensor]) -> Iterator[Finding]:
    found = sorted({tensor.dtype for tensor in tensors.values()})
    strange = [name for name in found if name not in _DTYPES]
    if strange:
        detail = f"weights are {', '.join(strange)}: quantized without scales, or no weights"
        yield Finding("dtype", Verdict.REFUSED, detail, "save it in bfloat16, float16 or float32")
    elif found:
        yield Finding("dtype", Verdict.ACCEPTED, " and ".join(found))


def _recorded(config: Config, base_name: str) -> Iterator[Finding]:
    """Shapes do not tell two models of one family apart; what the adapter says of its base may."""
    said = (config.base_model_name_or_path or "").rstrip("/")
    if not said or not base_name:
        return
    if _plain(said) == _plain(base_name):
        yield Finding("recorded base", Verdict.ACCEPTED, said[:200])
    else:
        detail = f"it was trained on {said[:200]}, and the base is {base_name[:200]}"
        yield Finding("recorded base", Verdict.WARNED, detail, "make sure that these are the same weights")


def _plain(name: str) -> str:
    """A model's name without where it lies, and without how its weights were packed."""
    last = name.replace("\\", "/").rpartition("/")[2].partition("@")[0].lower()
    return _PACKED.sub("", last)


def _weighed(directory: Path, modules: tuple[Pair, ...], facts: Facts, wish: _Wish) -> tuple[list[Finding], int | None]:
    from tuneplex.adapters.gate import numbers  # noqa: PLC0415 - NumPy takes 0.1 s to import, headers need none

    seen = numbers.look(directory / ADAPTER_WEIGHTS, modules, wish.advance, deep=wish.deep)
    if seen.broken:
        detail = f"{seen.broken} holds NaN or infinity: the training diverged"
        return [Finding("numbers", Verdict.REFUSED, detail, "take an earlier checkpoint")], None
    if seen.still == len(modules):
        detail = "each module's A or B is zero: it changes nothing, and answers as the base does"
        return [Finding("numbers", Verdict.WARNED, detail, "see whether the right checkpoint was exported")], 0
    still = f"; {seen.still} of {len(modules)} modules change nothing" if seen.still else ""
    found = [Finding("numbers", Verdict.ACCEPTED, f"all finite{still}")]
    effective = seen.effective_rank
    needed = smallest_max_rank(effective) if effective else None
    if needed and facts.max_lora_rank and needed < facts.max_lora_rank:
        detail = f"99 % of the change is within rank {effective}: truncated, max_lora_rank {needed} would serve it"
        found.append(Finding("effective rank", Verdict.ACCEPTED, detail))
    return found, effective
