"""The model's name in replies: exchanged where it is a field, nowhere else, however the bytes are cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.engines.rename import Renamer, StreamRenamer

ENGINE = "contacts@0123456789ab"
CLIENT = "contacts"

NASTY = st.sampled_from(
    [f'"model":"{ENGINE}"', f'\\"model\\": "{ENGINE}"', "model", ENGINE, '"', "\\", "\n", "é", "🦜"]
)
TEXT = st.lists(st.one_of(NASTY, st.text(max_size=5)), max_size=6).map("".join)
CUTS = st.lists(st.integers(0, 2000), max_size=8)


def chunk(model: str, text: str) -> dict[str, object]:
    """A reply of the usual shape."""
    return {"id": "x", "model": model, "choices": [{"delta": {"content": text}, "logprobs": {text: -0.5}}]}


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data`, cut at some of these places."""
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[start:end] for start, end in itertools.pairwise(borders)]


@given(text=TEXT, cuts=CUTS, compact=st.booleans(), ascii_only=st.booleans())
def test_any_split_gives_the_same_reply(*, text: str, cuts: list[int], compact: bool, ascii_only: bool) -> None:
    """However a reply is spelt and cut, the client reads its own name, and generated text is never touched."""
    separators = (",", ":") if compact else (", ", ": ")
    sent = json.dumps(chunk(ENGINE, text), separators=separators, ensure_ascii=ascii_only).encode()
    renamer = StreamRenamer(Renamer(ENGINE, CLIENT))
    out = b"".join(renamer.feed(piece) for piece in pieces(sent, cuts)) + renamer.flush()
    assert out == Renamer(ENGINE, CLIENT).events(sent)
    assert json.loads(out) == chunk(CLIENT, text)


@given(name=st.text(min_size=1, max_size=20), shown=st.text(min_size=1, max_size=20))
def test_any_name_can_be_exchanged(name: str, shown: str) -> None:
    """Quotes, backslashes and any other character in a name are no obstacle."""
    for ascii_only in (False, True):
        sent = json.dumps(chunk(name, "hello"), ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        assert json.loads(Renamer(name, shown).document(sent)) == chunk(shown, "hello")


@pytest.mark.parametrize("document", [b'{"model" : "a@1"}', b'{\n  "model":\n "a@1"\n}', b'{"model":\t"a@1"}'])
def test_documents_may_be_spaced_in_any_way(document: bytes) -> None:
    """A pretty-printed reply is renamed too."""
    assert json.loads(Renamer("a@1", "a").document(document)) == {"model": "a"}


def test_only_the_exact_name_is_exchanged() -> None:
    """A name that begins or ends with the other one stays."""
    sent = b'{"model":"a@12"}{"model":"xa@1"}{"model":"a@1"}{"parent_model":"a@1"}'
    assert Renamer("a@1", "a").events(sent) == b'{"model":"a@12"}{"model":"xa@1"}{"model":"a"}{"parent_model":"a@1"}'


def test_the_same_name_costs_nothing() -> None:
    """Without anything to exchange the bytes are passed on as they are."""
    data = b'data: {"model":"base"}\n\n'
    assert Renamer("base", "base").events(data) is data
    assert StreamRenamer(Renamer("base", "base")).feed(data) == data
