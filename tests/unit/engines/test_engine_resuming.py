"""Seams in streams of any tokens, for tokenizers of the kinds that models have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from tests.support.tokenizers import KINDS, make
from tuneplex.engines.resuming import Said, Stops, find_seam

UNTIMED = settings(deadline=None)
TEXTS = st.text("ab eé世🙂😀\u200d🇩🇪ñ́.,'\n", min_size=1, max_size=30)
ENDS = Stops(("abc 世界", "x"), 5)


def pieces(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> list[str]:
    """The text of each token, as vLLM makes it."""
    stream = DecodeStream(ids=prompt, skip_special_tokens=True)
    return [stream.step(tokenizer, token_id) or "" for token_id in ids]


@pytest.mark.parametrize("kind", KINDS)
@UNTIMED
@given(prompt=TEXTS, reply=TEXTS, data=st.data())
def test_the_text_goes_on_without_a_gap(kind: str, prompt: str, reply: str, data: st.DataObject) -> None:
    """What was shown and what another engine says behind the seam are the whole, wherever the first one broke off."""
    tokenizer = make(kind)
    before, ids = tokenizer.encode(prompt).ids, tokenizer.encode(reply, add_special_tokens=False).ids
    texts = pieces(tokenizer, before, ids)
    cut = data.draw(st.integers(0, len(ids)))
    stops = data.draw(st.sampled_from([Stops(), ENDS]))
    said = "".join(texts[:cut])
    shown = said[: max(0, len(said) - stops.reach)]
    seam = find_seam(tokenizer, Said(before, ids[:cut], shown=shown), stops, skip_special=True)
    assert seam is not None
    kept = len(seam.ids)
    assert seam.ids == ids[:kept]
    rest = pieces(tokenizer, before + seam.ids, ids[kept:])
    assert shown + seam.held + "".join(rest) == "".join(texts)
    assert not any(texts[kept:cut])


@pytest.mark.parametrize("kind", KINDS)
def test_other_text_has_no_seam(kind: str) -> None:
    """Text that the tokens do not make, or less of it than the engine would have given away, is not continued."""
    tokenizer = make(kind)
    ids = tokenizer.encode("The river runs through the old town", add_special_tokens=False).ids
    text = "".join(pieces(tokenizer, [], ids))
    for shown in (text[:-1], text + "!", "A" + text[1:], ""):
        assert find_seam(tokenizer, Said([], ids, shown=shown), Stops(), skip_special=True) is None
    for shown in (text, text[:-4], text[:-6]):
        assert find_seam(tokenizer, Said([], ids, shown=shown), ENDS, skip_special=True) is None
    assert find_seam(tokenizer, Said([], ids, shown=text[:-5]), ENDS, skip_special=True) is not None


def test_unknown_tokens_have_no_seam() -> None:
    """Tokens that the base's tokenizer does not have, as those of another base, are not continued."""
    said = Said([1], [10**6], shown="a")
    assert find_seam(make("split"), said, Stops(), skip_special=True) is None
