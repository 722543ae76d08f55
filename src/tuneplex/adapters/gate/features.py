"""Which of PEFT's many kinds of LoRA an adapter is, by its configuration, and which of them an engine computes.

vLLM refuses some of them when it loads, and does not know the others: it would leave them out without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tuneplex.adapters.gate.config import Config
from tuneplex.adapters.gate.report import MERGE, Finding, Verdict

__all__ = ["features"]

_PLAIN_STARTS = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})
_EXPORT = "save it as a plain LoRA (path_initial_model_for_weight_conversion in PEFT's save_pretrained)"
_CLASSIFIERS = frozenset({"score", "classifier"})
_NAMED_AT_MOST = 5

# Keys that must say nothing: what they stand for, why it cannot be served, and the way out.
_NOT_SERVED = (
    ("use_dora", "DoRA", "its magnitudes are not applied by any engine here", MERGE),
    ("lora_bias", "LoRA bias", "biases beside A and B are not applied by any engine here", MERGE),
    ("alora_invocation_tokens", "activated LoRA", "it acts from certain tokens on only, which no engine here does", ""),
    ("layer_replication", "layer replication", "it needs a base with its layers doubled", MERGE),
    ("use_bdlora", "block-diagonal LoRA", "no engine here computes it", MERGE),
    ("use_qalora", "QA-LoRA", "it changes quantized groups, which no engine here does", MERGE),
    ("arrow_config", "Arrow", "it chooses among several adapters for each token, which no engine here does", ""),
    ("kasa_config", "KaSA", "it changes the base itself and has a third matrix", MERGE),
    ("monteclora_config", "Monteclora", "it samples its weights anew, which no engine here does", MERGE),
    ("target_parameters", "parameters", "changes of fused experts cannot be checked, and so are not served", MERGE),
    ("trainable_token_indices", "tokens", "embeddings of single tokens were trained; no engine applies them", MERGE),
)


def features(config: Config, unknown: tuple[str, ...] = ()) -> Iterator[Finding]:
    """What the configuration asks for, one finding for each thing that is not usual.

    Args:
        config: From `read_config`.
        unknown: Keys that it does not know, from the same.
    """
    if config.peft_type.upper() != "LORA":
        detail = f"is of the kind {config.peft_type[:40]!r}; only LORA can be served"
        yield Finding("kind", Verdict.REFUSED, detail, MERGE)
        return
    yield from _missing(config)
    for key, check, reason, way_out in _NOT_SERVED:
        if getattr(config, key):
            yield Finding(check, Verdict.REFUSED, f"{key} is set: {reason}", way_out)
    if config.bias != "none":
        reason = f"bias is {config.bias[:20]!r}: the base's biases were trained too, and no engine applies them"
        yield Finding("bias", Verdict.REFUSED, reason, f"train with bias='none', or {MERGE}")
    yield from _start(config)
    yield from _whole(config)
    if unknown:
        named = ", ".join(unknown[:_NAMED_AT_MOST]) + (" …" if len(unknown) > _NAMED_AT_MOST else "")
        way_out = "compare its answers with those of the trainer"
        yield Finding("unknown keys", Verdict.WARNED, f"nothing is known of {named}; engines ignore it", way_out)


def _missing(config: Config) -> Iterator[Finding]:
    """VLLM loads nothing without these keys, whatever they say."""
    if config.lora_alpha is None:
        yield Finding(
            "alpha", Verdict.REFUSED, "lora_alpha is missing", "add what it was trained with; PEFT's own is 8"
        )
    if config.target_modules is msgspec.UNSET:
        yield Finding("targets", Verdict.REFUSED, "target_modules is missing", "add the list of modules it changes")


def _start(config: Config) -> Iterator[Finding]:
    start = config.init_lora_weights
    if isinstance(start, str) and start.lower() not in _PLAIN_STARTS:
        reason = f"init_lora_weights is {start[:40]!r}: the base itself was changed before training"
        way_out = f"{_EXPORT}; if the served base was changed already, set the key to true"
        yield Finding("initialization", Verdict.REFUSED, reason, way_out)


def _whole(config: Config) -> Iterator[Finding]:
    if not config.modules_to_save:
        return
    names = ", ".join(config.modules_to_save[:_NAMED_AT_MOST])
    heads = _CLASSIFIERS.issuperset(config.modules_to_save)
    reason = f"modules_to_save: {names} {'were' if len(config.modules_to_save) > 1 else 'was'} trained whole"
    about = "; a classifier's head is not served" if heads else ""
    yield Finding(
        "whole modules", Verdict.REFUSED, f"{reason}, and only A and B of an adapter are applied{about}", MERGE
    )
