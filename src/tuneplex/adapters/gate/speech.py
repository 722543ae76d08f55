"""Whether an adapter's own chat template, tokens and defaults are the base's: engines go by the base's alone."""

from __future__ import annotations

from collections.abc import Iterator

from tuneplex.adapters.gate.report import MERGE, Finding, Verdict
from tuneplex.shapes import Speech

__all__ = ["speech"]

_REMOVE = "remove it from the adapter's directory if the base's is right"


def speech(own: Speech, base: Speech | None) -> Iterator[Finding]:
    """Hold what an adapter's directory says against what the base's says.

    Args:
        own: The adapter's.
        base: The base's; None says that what there is cannot be compared.
    """
    if own.damaged:
        yield Finding("tokenizer", Verdict.REFUSED, own.damaged, "export it again, or remove the file")
    elif base is None:
        named = (("chat template", own.template), ("added tokens", own.tokens), ("defaults", own.defaults))
        for check, value in named:
            if value:
                detail = "it has its own, and there is no base here to compare with; engines use the base's"
                yield Finding(check, Verdict.WARNED, detail, "name the base with --base")
    else:
        yield from _template(own, base)
        yield from _tokens(own, base)
        yield from _defaults(own, base)


def _template(own: Speech, base: Speech) -> Iterator[Finding]:
    if not own.template:
        return
    if own.template == base.template:
        yield Finding("chat template", Verdict.ACCEPTED, "the base's")
        return
    there = "differs from the base's" if base.template else "is its own, and the base has none"
    way_out = f"{_REMOVE}; else serve it in a fleet whose base has this template"
    yield Finding("chat template", Verdict.REFUSED, f"{there}; engines write prompts by the base's", way_out)


def _tokens(own: Speech, base: Speech) -> Iterator[Finding]:
    new = {token: number for token, number in own.tokens.items() if base.tokens.get(token) != number}
    padding = new.pop(own.padding, None)
    if new:
        token, number = next(iter(new.items()))
        known = base.tokens.get(token)
        about = f"is {known} in the base" if known is not None else "is not among the base's"
        detail = f"{token[:40]!r} is {number} and {about}; engines use the base's"
        yield Finding("added tokens", Verdict.REFUSED, detail, f"train with the base's tokenizer, or {MERGE}")
    elif padding is not None:
        detail = f"it has {own.padding[:40]!r} for padding, which is not the base's; prompts do not have it"
        yield Finding("added tokens", Verdict.WARNED, detail)
    elif own.tokens:
        yield Finding("added tokens", Verdict.ACCEPTED, "the base's")


def _defaults(own: Speech, base: Speech) -> Iterator[Finding]:
    new = [key for key, value in own.defaults.items() if base.defaults.get(key) != value]
    if new:
        detail = f"{', '.join(new)} differ from the base's; engines use the base's"
        yield Finding("defaults", Verdict.REFUSED, detail, f"{_REMOVE}, and let clients send these values")
    elif own.defaults:
        yield Finding("defaults", Verdict.ACCEPTED, "the base's")
