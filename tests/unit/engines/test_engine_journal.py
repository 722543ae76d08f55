"""Streams that go on elsewhere: the client gets what it would have got of one engine."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.moves import CONTEXT, FINGERPRINT, Heard, Reader, base_tokenizer, events, journal_of, raw, unbroken
from tuneplex.engines.continuing import asking_ids, continuable
from tuneplex.engines.journal import Journal
from tuneplex.engines.meters import HiddenUsage, ShownUsage
from tuneplex.engines.usage import OPTIONS, Telling, Usage, asking_aloud
from tuneplex.engines.watching import WatchedChoices
from tuneplex.testing import Tokenizer
from tuneplex.types import Route

UNTIMED = settings(deadline=None)
TOKENIZER = Tokenizer()
ROUTES = st.sampled_from([Route.CHAT, Route.COMPLETIONS])
WORDS = st.text(min_size=1, max_size=8)
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


@dataclass(frozen=True)
class Plan:
    """How a stream is moved.

    Attributes:
        cuts: After how many events each engine but the last breaks off.
        groups: Tokens in each event; see `events`.
        many: All events of an engine come in one piece.
    """

    cuts: list[int]
    groups: list[int]
    many: bool = False


ODD_PROMPTS = [[Tokenizer.first_byte + byte for byte in "世é🙂".encode()] * 12, [Tokenizer.eos] * 99, [0]]
PLANS = st.builds(
    Plan,
    st.lists(st.integers(1, 25), min_size=1, max_size=3),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.booleans(),
)


def moved(route: Route, fields: dict[str, Any], plan: Plan) -> Heard:
    """What the client gets; wherever an engine breaks off, the stream must be continuable."""
    journal, sent = journal_of(route, fields)
    got: list[bytes] = []
    for number, cut in enumerate([*plan.cuts, None], 1):
        groups = plan.groups[number % len(plan.groups) :] + plan.groups
        stream = islice(events(route, sent, groups=groups, number=number), cut)
        got += [journal.many(b"".join(stream))] if plan.many else map(Reader(journal).one, stream)
        assert not journal.failed
        if not journal.continuable_now:
            got.append(journal.closing())
            break
        seam = journal.seam(base_tokenizer())
        assert seam is not None
        sent, route = journal.resume(seam), Route.COMPLETIONS
    heard, used = Heard(got), journal.used()
    told = heard.summary()["usage"]
    assert told is None or (used.prompt, used.completion) == (told["prompt_tokens"], told["completion_tokens"])
    return heard


def assert_alike(heard: Heard, whole: dict[str, Any]) -> None:
    """The client cannot tell it from the whole, but by how the tokens were divided among events."""
    found = heard.summary()
    assert found.pop("shapes") <= whole["shapes"]
    assert found == {name: value for name, value in whole.items() if name != "shapes"}


@UNTIMED
@given(ROUTES, WORDS, PLANS, USAGES)
def test_a_moved_stream_is_seamless(route: Route, words: str, plan: Plan, usage: dict[str, bool] | None) -> None:
    """However often and wherever it is moved: the same text, end and usage, in events of the same shape."""
    fields = asked(route, words, max_tokens=60, temperature=0, stream_options=usage)
    whole = Heard(unbroken(route, fields)).summary()
    assert_alike(moved(route, fields, plan), whole)


@pytest.mark.parametrize("prompt", ODD_PROMPTS, ids=len)
def test_odd_prompts(prompt: list[int]) -> None:
    """What comes before the reply does not matter: long runs of bytes, special tokens only."""
    fields = asked(Route.COMPLETIONS, "", prompt=prompt, max_tokens=40, ignore_eos=True)
    whole = Heard(unbroken(Route.COMPLETIONS, fields)).summary()
    for cut in range(1, 30):
        assert_alike(moved(Route.COMPLETIONS, fields, Plan([cut, 2], [1])), whole)


@settings(deadline=None, max_examples=250)
@given(ROUTES, WORDS, PLANS, st.data())
def test_stop_strings_are_found_across_the_seam(route: Route, words: str, plan: Plan, data: st.DataObject) -> None:
    """A stop string that begins before a seam and ends behind it ends the reply where one engine would have."""
    options = {"include_usage": True}
    plain = asked(route, words, max_tokens=40, temperature=0, ignore_eos=True, stream_options=options)
    text = Heard(unbroken(route, plain)).summary()["text"]
    starts = data.draw(st.lists(st.integers(8, len(text) - 3), min_size=1, max_size=2))
    stops = [text[at : at + data.draw(st.integers(3, 16))] for at in starts]
    stops += [stop + "?" for stop in data.draw(st.lists(st.sampled_from(stops), max_size=1))]  # is never said
    fields = plain | raw(stop=stops, include_stop_str_in_output=data.draw(st.booleans()))
    whole = Heard(unbroken(route, fields)).summary()
    assert whole["finish"][0][0] == "stop"
    assert_alike(moved(route, fields, plan), whole)


@UNTIMED
@given(ROUTES, WORDS, st.lists(st.integers(1, 25), min_size=1, max_size=2))
def test_whoever_wants_ids_gets_each_once(route: Route, words: str, cuts: list[int]) -> None:
    """A client that asked for the token ids itself gets them all, once; where that cannot be, there is no seam."""
    options = {"include_usage": True}
    fields = asked(route, words, max_tokens=60, temperature=0, return_token_ids=True, stream_options=options)
    whole = Heard(unbroken(route, fields)).summary()
    journal, sent = journal_of(route, fields)
    got: list[bytes] = []
    for number, cut in enumerate([*cuts, None], 1):
        stream = events(route, sent, number=number)
        got += map(Reader(journal).one, islice(stream, cut))
        while (seam := journal.seam(base_tokenizer())) is None and (event := next(stream, b"")):
            got.append(journal.one(event))  # inside of a character, or at the end
        if seam is None:
            break
        sent, route = journal.resume(seam), Route.COMPLETIONS
    assert_alike(Heard(got), whole)
    assert len(whole["ids"]) == whole["usage"]["completion_tokens"]


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"stop": ["e"], "max_tokens": 200},
        {"return_token_ids": True},
    ],
)
@pytest.mark.parametrize("border", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("groups", [[1], [1, 3]])
def test_nothing_is_seen_of_the_ids(route: Route, more: dict[str, Any], border: bytes, groups: list[int]) -> None:
    """Byte for byte the events that the engine would have sent if nobody had asked for the token ids."""
    fields = asked(route, '"token_ids":[1] \\', **{"max_tokens": 50, "ignore_eos": True, **more})
    journal, sent = journal_of(route, fields)
    reader = Reader(journal)
    got = [reader.one(event.replace(b"\n\n", border)) for event in events(route, sent, groups=groups)]
    assert b"".join(got) == b"".join(unbroken(route, fields, groups=groups)).replace(b"\n\n", border)
    assert journal.used().completion == journal.tokens


def test_a_reply_that_is_over_gets_what_is_missing() -> None:
    """An engine that breaks off behind the end of the reply has said all; only the closing events are missing."""
    options = {"include_usage": True}
    fields = asked(Route.CHAT, "hi", max_tokens=9, ignore_eos=True, stream_options=options)
    journal, sent = journal_of(Route.CHAT, fields)
    got = [journal.one(event) for event in list(events(Route.CHAT, sent))[:-2]]
    assert not journal.continuable_now
    got.append(journal.closing())
    assert journal.closing() == b""
    whole = Heard(unbroken(Route.CHAT, fields)).summary()
    assert Heard(got).summary() == whole


def test_a_broken_stream_is_counted_by_its_ids() -> None:
    """What a stream has used is known without the engine's last event: the ids are counted, those in groups too."""
    fields = asked(Route.CHAT, "hi", max_tokens=300, ignore_eos=True)
    journal, sent = journal_of(Route.CHAT, fields)
    for event in islice(events(Route.CHAT, sent, groups=[1, 3]), 1 + 140):
        journal.one(event)
    prompt = len(TOKENIZER.chat([("user", "hi")]))
    assert (journal.used().prompt, journal.used().completion, journal.used().exact) == (prompt, 280, False)


@pytest.mark.parametrize(
    "strange",
    [
        b'{"index":0,"delta":{"reasoning":"Hm."},"finish_reason":null,"token_ids":[7]}',
        b'{"index":0,"delta":{"reasoning_content":"Hm."},"finish_reason":null,"token_ids":[7]}',
        b'{"index":0,"delta":{"tool_calls":[]},"finish_reason":null,"token_ids":[7]}',
        b'{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":null}',
        b'{"index":0,"delta":{"content":"a"},"finish_reason":null,"logprobs":{},"token_ids":[7]}',
        b'{"index":1,"delta":{"content":"a"},"finish_reason":null,"token_ids":[7]}',
        b'{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[-7]}',
    ],
)
def test_what_is_not_known_is_passed_on_and_not_continued(strange: bytes) -> None:
    """An event with anything but text and tokens goes to the client, without ids, and ends the hope of a seam."""
    journal, sent = journal_of(Route.CHAT, asked(Route.CHAT, "hi", max_tokens=9))
    opening, first = islice(events(Route.CHAT, sent), 2)
    journal.many(opening + first)
    assert journal.continuable_now
    event = b'data: {"id":"x","choices":[%b]}\n\n' % strange
    assert journal.one(event) == event.replace(b"[7]", b"null").replace(b"[-7]", b"null")
    assert not journal.continuable_now
    assert journal.seam(base_tokenizer()) is None
    assert journal.used().completion == 2


def test_a_strange_continuation_fails() -> None:
    """What cannot be translated is not given to the client."""
    journal, sent = journal_of(Route.CHAT, asked(Route.CHAT, "hi", max_tokens=9))
    journal.many(b"".join(islice(events(Route.CHAT, sent), 3)))
    seam = journal.seam(base_tokenizer())
    assert seam is not None
    journal.resume(seam)
    assert journal.one(b'data: {"id":"x","choices":[{"index":0,"text":"a","thoughts":1}]}\n\n') == b""
    assert journal.failed
    assert journal.over
    assert journal.one(b"data: [DONE]\n\n") == b""


def test_other_text_than_the_tokens_make_is_not_continued() -> None:
    """A parser, or another tokenizer, has changed the text: nobody knows where it stands."""
    journal, sent = journal_of(Route.CHAT, asked(Route.CHAT, "hi", max_tokens=9, ignore_eos=True))
    for event in islice(events(Route.CHAT, sent), 6):
        journal.one(event.replace(b'"content":" ', b'"content":"'))
    assert journal.continuable_now
    assert journal.seam(base_tokenizer()) is None


def test_no_seam_before_stop_strings_count() -> None:
    """As long as `min_tokens` keeps stop strings from counting, one across the seam could not be told from others."""
    fields = asked(Route.CHAT, "hi", max_tokens=50, min_tokens=8, stop="zzz", ignore_eos=True)
    seams = []
    for count in (6, 12):
        journal, sent = journal_of(Route.CHAT, fields)
        journal.many(b"".join(islice(events(Route.CHAT, sent), count)))
        seams.append(journal.seam(base_tokenizer()) is not None)
    assert seams == [False, True]


def test_the_rest_is_asked_for() -> None:
    """What was said counts against the most and the least tokens; the client's own fields are kept, others are not."""
    fields = asked(Route.CHAT, "hi", max_completion_tokens=50, max_tokens=9, min_tokens=20, top_p=0.5, user="u")
    journal, sent = journal_of(Route.CHAT, fields)
    journal.many(b"".join(islice(events(Route.CHAT, sent), 6)))
    seam = journal.seam(base_tokenizer())
    assert seam is not None
    body = {name: msgspec.json.decode(value) for name, value in journal.resume(seam).items()}
    kept = len(seam.ids)
    prompt = TOKENIZER.chat([("user", "hi")])
    assert body == {
        "prompt": prompt + seam.ids,
        "max_tokens": 50 - kept,
        "min_tokens": 20 - kept,
        "return_token_ids": True,
        "stream": True,
        "top_p": 0.5,
        "user": "u",
    }


@pytest.mark.parametrize("context, most", [(CONTEXT, CONTEXT), (None, None)])
def test_the_context_limits_a_chat_without_a_limit(context: int | None, most: int | None) -> None:
    """A chat that may be as long as the context lets it can go on only where the context is known."""
    fields = asked(Route.CHAT, "hi")
    terms = continuable(Route.CHAT, fields)
    assert terms is not None
    journal = Journal(terms, ShownUsage(), context=context)
    journal.many(b"".join(islice(events(Route.CHAT, asking_ids(fields)), 6)))
    seam = journal.seam(base_tokenizer())
    if most is None:
        assert seam is None
        return
    assert seam is not None
    body = {name: msgspec.json.decode(value) for name, value in journal.resume(seam).items()}
    assert len(body["prompt"]) + body["max_tokens"] == most


def test_a_stream_that_may_be_cut_is_watched_on() -> None:
    """Where the usage is told in every event for a limit only, it is known of a continuation too, and hidden."""
    fields = asked(Route.CHAT, "hi", max_tokens=30, ignore_eos=True)
    terms, aloud = continuable(Route.CHAT, fields), asking_aloud(fields)
    assert terms is not None
    assert aloud is not None
    watch = WatchedChoices(HiddenUsage(Telling(True, FINGERPRINT)), choices=1, prompts=1, shown=False)
    journal = Journal(terms, watch, context=CONTEXT)
    sent = {**asking_ids(fields), OPTIONS: aloud.options}
    got = [journal.one(event) for event in islice(events(Route.CHAT, sent), 8)]
    seam = journal.seam(base_tokenizer())
    assert seam is not None
    told = list(events(Route.COMPLETIONS, {**journal.resume(seam), OPTIONS: aloud.options}, number=2))
    got += map(journal.one, told[:5])
    assert watch.so_far() == Usage(len(TOKENIZER.chat([("user", "hi")])), len(seam.ids) + 5)
    got += map(journal.one, told[5:])
    assert_alike(Heard(got), Heard(unbroken(Route.CHAT, fields)).summary())
    assert b"usage" not in b"".join(got)


def test_a_usage_in_mid_stream_is_not_the_last_word() -> None:
    """Whatever an engine tells before it says more, what comes behind counts too, if nobody had to look at it."""
    fields = asked(Route.CHAT, "hi", max_tokens=20, ignore_eos=True, stream_options={"include_usage": True})
    journal, sent = journal_of(Route.CHAT, fields)
    stream = list(events(Route.CHAT, sent))
    reader = Reader(journal)
    early = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    for event in (*stream[:4], early, *stream[4:12]):
        reader.one(event)
    used = journal.used()
    assert (used.completion, used.exact) == (journal.tokens, False)
