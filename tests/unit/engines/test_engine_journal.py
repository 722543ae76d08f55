"""Streams that go on elsewhere: the client gets what it would have got of one engine."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.moves import Heard, base_tokenizer, events, journal_of, raw, unbroken
from tuneplex.testing import Tokenizer
from tuneplex.types import Route

UNTIMED = settings(deadline=None)
TOKENIZER = Tokenizer()
ROUTES = st.sampled_from([Route.CHAT, Route.COMPLETIONS])
GROUPS = st.lists(st.integers(1, 4), min_size=1, max_size=5)
CUTS = st.lists(st.integers(1, 25), min_size=1, max_size=3)
USAGES = st.sampled_from(
    [
        None,
        {"include_usage": False},
        {"include_usage": True},
        {"include_usage": True, "continuous_usage_stats": True},
    ]
)


def asked(route: Route, words: str, **more: object) -> dict[str, Any]:
    """The fields of a request that says something."""
    what = {"messages": [{"role": "user", "content": words}]} if route is Route.CHAT else {"prompt": words}
    return raw(**{name: value for name, value in {**what, **more}.items() if value is not None})


def moved(route: Route, fields: dict[str, Any], cuts: list[int], groups: list[int], *, many: bool = False) -> Heard:
    """What the client gets where each engine but the last breaks off after so many events; all must be continuable."""
    journal, sent = journal_of(route, fields)
    got: list[bytes] = []
    for number, cut in enumerate([*cuts, None], 1):
        stream = islice(events(route, sent, groups=groups[number % len(groups) :] + groups, number=number), cut)
        if many:
            got.append(journal.many(b"".join(stream)))
        else:
            for event in stream:
                got.append(journal.one(event))
                if journal.over:
                    break
        assert not journal.failed
        if journal.over or b"[DONE]" in got[-1]:
            break
        if not journal.continuable_now:
            got.append(journal.closing())
            break
        seam = journal.seam(base_tokenizer())
        assert seam is not None
        sent = journal.resume(seam)
        route = Route.COMPLETIONS
    used = journal.used()
    heard = Heard([event for event in got if event])
    told = heard.summary()["usage"]
    assert told is None or (used.prompt, used.completion) == (told["prompt_tokens"], told["completion_tokens"])
    return heard


@UNTIMED
@given(ROUTES, st.text(max_size=8), GROUPS, CUTS, USAGES, st.booleans())
def test_a_moved_stream_is_seamless(
    route: Route, words: str, groups: list[int], cuts: list[int], usage: dict[str, bool] | None, many: bool
) -> None:
    """However often and wherever it is moved: the same text, end and usage, in events of the same shape."""
    fields = asked(route, words + "!", max_tokens=60, temperature=0, stream_options=usage)
    whole = Heard(unbroken(route, fields)).summary()
    assert moved(route, fields, cuts, groups, many=many).summary() == whole
