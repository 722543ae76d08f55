"""Counting prompts with a tokenizer, piece by piece and off the event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.support.estimates import estimate
from tests.support.tokenizers import KINDS, make
from tuneplex.gateway.body import read_body
from tuneplex.gateway.estimate import Estimate, Tally, does_not_fit, fits_by_size
from tuneplex.gateway.prompts import Part, parts
from tuneplex.gateway.tokens import Pending, TokenCounter
from tuneplex.types import Route

MEGABYTE = 1024 * 1024
PROSE = "The river runs through the old town, and floods the lower streets.\n"
# At least three pieces each.
LONG_TEXTS = {
    "prose": PROSE * 1000,
    "no space": "a" * 50_000,
    "digits": "1234567890" * 5_000,
    "emoji": "😀" * 12_000,
    "line ends": "\n" * 30_000,
    "spaces": " " * 40_000,
    "runs of spaces": "".join(f"x{' ' * (number % 40)}" for number in range(2_000)),
    "escapes": '\\"' * 20_000,
    "accents of their own": "e\u0301" * 12_000,
    "special tokens": "<|im_start|>" * 3_000,
    "Chinese": "東京は大きい都市です。" * 1_000,
    "code": Path(__file__).read_text() * 3,
}
# A few characters of every kind, repeated beyond the size of a piece.
texts = st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=6).flatmap(
    lambda words: st.builds(lambda number: "".join(words) * number, st.integers(1, 2_000))
)


def fields_of(**fields: object) -> dict[str, Any]:
    """The fields of a request's body, as the gateway has them."""
    return read_body(json.dumps(fields, ensure_ascii=False).encode()).fields


def written(text: str, *, ascii_only: bool) -> dict[str, Any]:
    """The same of a completion, written in one way or the other."""
    return read_body(json.dumps({"prompt": text}, ensure_ascii=ascii_only).encode()).fields


def tokens_of(tokenizer: Tokenizer, text: str) -> int:
    """What the tokenizer makes of a text in one piece."""
    return len(tokenizer.encode(text, add_special_tokens=False))


def counted(tokenizer: Tokenizer | None, route: Route, **fields: object) -> Estimate:
    """The estimate of a request, counted at once."""
    found: list[Estimate] = []
    pending = Pending(route, fields_of(**fields), found.append, None)
    while not pending.step(tokenizer):
        pass
    pending.deliver()
    return found[0]


# --- what is counted


@given(texts, st.booleans())
def test_no_character_is_lost_by_cutting(text: str, ascii_only: bool) -> None:  # noqa: FBT001 - drawn
    """The pieces of a text are the text, however it is written in JSON, and none is large."""
    text = text.encode(errors="ignore").decode()
    found = list(parts(Route.COMPLETIONS, written(text, ascii_only=ascii_only)))
    assert "".join(part.text for part in found) == text
    assert all(len(part.text.encode()) <= 8 * 1024 for part in found)
    assert all(part.certain for part in found)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=2_000))
def test_a_text_of_one_piece_is_counted_exactly(kind: str, text: str) -> None:
    """What fits in a piece has just the tokens that the tokenizer gives it."""
    whole = tokens_of(make(kind), text)
    found = counted(make(kind), Route.COMPLETIONS, prompt=text, max_tokens=1)
    assert (found.prompt, found.at_least, found.counted, found.exact) == (whole, whole + 1, True, True)


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("name", LONG_TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_counted_closely(kind: str, name: str, ascii_only: bool) -> None:  # noqa: FBT001 - a parameter
    """Each cut may cost or save a few tokens, and what is certain is never more than there are."""
    tokenizer, text = make(kind), LONG_TEXTS[name]
    found: list[Estimate] = []
    fields = written(text, ascii_only=ascii_only)
    cuts = len(list(parts(Route.COMPLETIONS, fields))) - 1
    assert cuts >= 2
    pending = Pending(Route.COMPLETIONS, fields, found.append, None)
    while not pending.step(tokenizer):
        pass
    pending.deliver()
    whole = tokens_of(tokenizer, text)
    assert abs(found[0].prompt - whole) <= 12 * cuts
    assert whole - 28 * cuts <= found[0].at_least - 1 <= whole


@pytest.mark.parametrize("kind", ["byte level", "split"])
def test_prose_is_cut_where_words_begin(kind: str) -> None:
    """A text with spaces loses nothing by its cuts where the tokenizer keeps words apart."""
    assert counted(make(kind), Route.COMPLETIONS, prompt=LONG_TEXTS["prose"]).prompt == tokens_of(
        make(kind), LONG_TEXTS["prose"]
    )


def test_a_tokenizer_that_would_cut_off_counts_all(tmp_path: Path) -> None:
    """Some models' files say that long texts are cut off and short ones filled up; neither is done in counting."""
    cutting = Tokenizer.from_str(make("byte level").to_str())
    cutting.enable_truncation(4)
    cutting.enable_padding(length=4)
    cutting.save(str(tmp_path / "tokenizer.json"))

    async def ask() -> list[int]:
        counter = TokenCounter(str(tmp_path / "tokenizer.json"))
        try:
            return [(await count(counter, prompt=text)).prompt for text in (PROSE, "a")]
        finally:
            counter.close()

    assert asyncio.run(ask()) == [tokens_of(make("byte level"), PROSE), 1]


def message(content: object, role: str = "user") -> dict[str, object]:
    """A message of a chat."""
    return {"role": role, "content": content}


def test_chats_are_counted_by_their_texts() -> None:
    """Each text, in parts or not, and four tokens for each message."""
    tokenizer = make("byte level")
    pieces = [{"type": "text", "text": PROSE}, {"type": "image_url", "image_url": {"url": "x" * 100}}]
    messages = [message(PROSE, "system"), message(pieces), message(None, "assistant")]
    found = counted(tokenizer, Route.CHAT, messages=messages, max_tokens=7)
    assert found.prompt == 2 * tokens_of(tokenizer, PROSE) + 12
    assert found.completion == 7


@pytest.mark.parametrize(
    "messages, share",
    [
        ([message(PROSE * 500)], 1),
        ([message(PROSE * 500, "assistant")], 0),  # templates may leave out what a model has thought
        ([message(" " * 30_000)], 0),  # and strip texts
        ([message("") | {"name": PROSE * 500}], 0),
        ([message([{"type": "text", "text": PROSE * 250}, {"type": "text", "text": PROSE * 250}])], 1),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": PROSE * 500}}]}], 0),
    ],
)
def test_of_a_chat_only_what_every_template_keeps_is_certain(messages: list[object], share: int) -> None:
    """A request is refused only for what the model would read for sure."""
    tokenizer = make("byte level")
    found = counted(tokenizer, Route.CHAT, messages=messages)
    whole = share * tokens_of(tokenizer, PROSE) * 500
    assert whole * 0.98 <= found.at_least - 1 <= whole


@pytest.mark.parametrize(
    "route, fields, at_least, whole",
    [
        (Route.COMPLETIONS, {"prompt": [7] * 5_000, "max_tokens": 10}, 5_001, 5_010),
        (Route.COMPLETIONS, {"prompt": [7] * 5_000}, 5_001, 5_001),
        (Route.COMPLETIONS, {"prompt": [7] * 5, "max_tokens": 10}, 10, 15),
        (Route.COMPLETIONS, {"prompt": [[7] * 5_000, [7] * 9_000, [7] * 30], "max_tokens": 10, "n": 3}, 9_001, 9_010),
        (Route.COMPLETIONS, {"prompt": [7] * 5_000, "truncate_prompt_tokens": 10}, 1, 1),
        (Route.COMPLETIONS, {"prompt": [7] * 5_000, "truncate_prompt_tokens": None}, 5_001, 5_001),
        (Route.RESPONSES, {"input": "", "max_output_tokens": 20}, 20, 20),
        (Route.RESPONSES, {"input": PROSE * 100, "truncation": "auto"}, 1, 1),
        (Route.EMBEDDINGS, {"input": [[7] * 5_000, [7] * 9_000]}, 9_000, 9_000),
        (Route.EMBEDDINGS, {"input": [7] * 5_000, "max_tokens": 10}, 5_000, 5_000),
        (Route.CHAT, {}, 1, 1),
    ],
)
def test_the_context_is_for_the_longest_prompt(route: Route, fields: dict[str, Any], at_least: int, whole: int) -> None:
    """Of several prompts the longest counts, with one more token, or with the answer that is asked for."""
    found = counted(make("byte level"), route, **fields)
    assert (found.at_least, found.whole) == (at_least, whole)


def test_several_prompts_are_added_up() -> None:
    """For a limit all prompts count, and an answer to each."""
    tokenizer = make("byte level")
    found = counted(tokenizer, Route.COMPLETIONS, prompt=[PROSE * 300, PROSE, "a"], max_tokens=5, n=2)
    assert found.prompt == 301 * tokens_of(tokenizer, PROSE) + 1
    assert found.completion == 30
    assert found.at_least <= 300 * tokens_of(tokenizer, PROSE) + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [message("[" * 50_000)]},
        {"messages": json.loads("[" * 900 + "]" * 900)},
        {"messages": [[[[[[[[[[[[["x" * 9_000]]]]]]]]]]]]]},
        {"messages": [{}] * 250_000},
        {"messages": {"role": ["assistant"], "content": {"content": "x" * 9_000}}},
        {"messages": ["x" * 9_000, 5, None, True, 1.5, [1, "x" * 9_000]]},
        {"messages": "x", "max_tokens": -5, "n": 2**70},
    ],
)
def test_whatever_is_sent_has_an_estimate(fields: dict[str, Any]) -> None:
    """What makes no sense is left to the engine to refuse; nothing fails, and nothing is refused for it."""
    found = counted(make("byte level"), Route.CHAT, **fields)
    assert 0 <= found.prompt < 2**40
    assert found.counted


@pytest.mark.parametrize(
    "messages", [[message("a, " * 150_000)], [[[[[[[[[[[[["x" * 9_000]]]]]]]]]]]]], [{}] * 250_000]
)
def test_what_is_too_large_to_be_looked_into_is_not_free(messages: list[object]) -> None:
    """A prompt of very many values, or very deep, has the tokens that its bytes stand for; none is certain."""
    found = counted(make("byte level"), Route.CHAT, messages=messages)
    assert found.prompt == pytest.approx(len(json.dumps(messages)) / 4, rel=0.2)
    assert found.at_least == 1


@pytest.mark.parametrize("one", [{}, {"role": "user"}, [], [{}], [None], "x", {"content": None}])
def test_no_step_is_long(one: object) -> None:
    """Whatever a large prompt is made of, a step looks at a few hundred values of it at most."""
    fields = fields_of(messages=[one] * 5_000)
    pending, steps = Pending(Route.CHAT, fields, lambda _: None, None), 1
    while not pending.step(None):
        steps += 1
    assert steps >= 5_000 / 256


def test_what_is_no_utf_8_is_no_trouble() -> None:
    """A text with wrong bytes cannot be decoded; it is counted somehow, and from there on nothing of it is certain."""
    body = b'{"prompt": "%b \xff %b"}' % (b"a" * 20_000, b"b" * 20_000)
    found = [part.certain for part in parts(Route.COMPLETIONS, read_body(body).fields)]
    assert len(found) > 4
    assert found == sorted(found, reverse=True)
    assert not found[-1]


def test_counting_stops_when_it_is_enough() -> None:
    """Beyond what anybody needs to know, the rest is taken to be like the beginning."""
    tokenizer, found = make("byte level"), list[Estimate]()
    pending = Pending(Route.COMPLETIONS, fields_of(prompt=PROSE * 5_000, max_tokens=1), found.append, 4_000)
    steps = 1
    while not pending.step(tokenizer):
        steps += 1
    pending.deliver()
    assert steps < 5
    assert not found[0].exact
    assert found[0].at_least > 4_000
    whole = 5_000 * tokens_of(tokenizer, PROSE)
    assert whole * 0.95 < found[0].prompt < whole * 1.05


# --- what follows from it


def test_a_small_body_needs_no_counting() -> None:
    """A token stands for at least one byte, so a body that is smaller than the context fits, with its answer."""
    fields = fields_of(prompt="x", max_tokens=10)
    assert fits_by_size(90, Route.COMPLETIONS, fields, 100)
    assert not fits_by_size(91, Route.COMPLETIONS, fields, 100)
    assert fits_by_size(100_000, Route.COMPLETIONS, fields, None)
    assert fits_by_size(99, Route.COMPLETIONS, fields_of(prompt="x"), 100)
    assert not fits_by_size(100, Route.COMPLETIONS, fields_of(prompt="x"), 100)


@given(st.text(max_size=300), st.integers(0, 300))
def test_what_fits_by_size_fits(text: str, asked: int) -> None:
    """Whatever is said to fit by its size has, counted, no more tokens than the context."""
    body = json.dumps({"prompt": text, "max_tokens": asked}).encode()
    fields = read_body(body).fields
    context = len(body) + max(1, asked)
    assert fits_by_size(len(body), Route.COMPLETIONS, fields, context)
    assert counted(make("byte level"), Route.COMPLETIONS, prompt=text, max_tokens=asked).whole <= context


def test_a_refusal_tells_the_numbers() -> None:
    """The client reads what it would need and what there is, in OpenAI's shape and with OpenAI's code."""
    error = json.loads(does_not_fit(Estimate(900, 50, at_least=901, whole=950), 512).body())["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert "at least 901 tokens" in error["message"]
    assert "512" in error["message"]
    assert "about 70000" in does_not_fit(Estimate(70_000, 50, at_least=901, exact=False), 512).message


# --- the thread


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A tokenizer as models have it."""
    file = tmp_path / "tokenizer.json"
    make("byte level").save(str(file))
    return file


@pytest.fixture
async def counter(tokenizer_file: Path) -> AsyncIterator[TokenCounter]:
    """A counter with a tokenizer."""
    counter = TokenCounter(str(tokenizer_file))
    await counter.loaded()
    yield counter
    counter.close()


async def count(counter: TokenCounter, *, most: int | None = None, **fields: object) -> Estimate:
    """Count a completion's prompt."""
    found: asyncio.Future[Estimate] = asyncio.get_running_loop().create_future()
    counter.count(Route.COMPLETIONS, fields_of(**fields), found.set_result, most=most)
    assert not found.done(), "told before `count` was over"
    return await found


async def test_the_number_comes_on_the_event_loop(counter: TokenCounter) -> None:
    """`then` is called later, in the thread of the loop that asked."""
    heard: asyncio.Future[threading.Thread] = asyncio.get_running_loop().create_future()
    counter.count(Route.COMPLETIONS, fields_of(prompt="x"), lambda _: heard.set_result(threading.current_thread()))
    assert not heard.done()
    assert await heard is threading.current_thread()


async def test_many_are_counted_at_once(counter: TokenCounter) -> None:
    """Each of many requests, small and large, hears its own number."""
    sizes = [number % 7 * (300 if number % 50 == 0 else 1) + 1 for number in range(400)]
    found = await asyncio.gather(*(count(counter, prompt=PROSE * size) for size in sizes))
    each = tokens_of(make("byte level"), PROSE)
    assert [one.prompt for one in found] == [each * size for size in sizes]


async def test_a_small_one_does_not_wait_for_a_large_one(counter: TokenCounter) -> None:
    """Small requests that come after large ones are told first, and the large ones take turns, piece by piece."""
    order: list[str] = []
    last = asyncio.Event()

    def note(name: str) -> None:
        order.append(name)
        if len(order) == len(sizes):
            last.set()

    sizes = {"largest": 8_000, "large": 2_000, "larger": 4_000} | {f"small {number}": 1 for number in range(20)}
    for name, size in sizes.items():
        counter.count(Route.COMPLETIONS, fields_of(prompt=PROSE * size), lambda _, name=name: note(name))  # type: ignore[misc]
    await last.wait()
    assert order == [*(f"small {number}" for number in range(20)), "large", "larger", "largest"]


async def test_a_cancelled_one_is_not_counted(counter: TokenCounter) -> None:
    """Nobody hears of a request whose client has left, and the thread drops it at its next step."""
    heard: list[Estimate] = []
    large = fields_of(prompt=PROSE * 16_000)
    pending = [counter.count(Route.COMPLETIONS, large, heard.append) for _ in range(20)]
    await count(counter, prompt="x")
    for one in pending:
        one.cancel()
    await count(counter, prompt=PROSE * 500)  # comes after at least one step of each
    assert not counter._large
    assert not heard


def test_no_step_is_made_for_a_cancelled_one() -> None:
    """Once it is cancelled, no more of it is looked at."""
    heard: list[Estimate] = []
    pending = Pending(Route.COMPLETIONS, fields_of(prompt=PROSE * 1_000), heard.append, None)
    assert not pending.step(make("byte level"))
    pending.cancel()
    assert pending.step(None)
    pending.deliver()
    assert not heard


def test_who_left_just_before_the_end_hears_nothing() -> None:
    """A number that is on its way to the event loop when the client leaves is not told."""
    heard: list[Estimate] = []
    pending = Pending(Route.COMPLETIONS, fields_of(prompt=PROSE), heard.append, None)
    assert pending.step(make("byte level"))
    pending.cancel()
    pending.deliver()
    assert not heard


@pytest.mark.parametrize("content", [None, "{}", "not JSON", '{"version": "1.0", "model": {"type": "Unheard"}}'])
async def test_a_broken_tokenizer_leaves_an_estimate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    """Without a tokenizer that can be read, bytes are counted; the log says so once, and the estimate each time."""
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_text(content)
    counter = TokenCounter(str(file))
    with caplog.at_level(logging.WARNING):
        found = [await count(counter, prompt=PROSE * size, max_tokens=3) for size in (1, 1_000)]
        counter.use(str(file))
        await counter.loaded()
    counter.close()
    assert [one.prompt for one in found] == [-(-len(PROSE * size) // 4) for size in (1, 1_000)]
    assert [(one.counted, one.at_least) for one in found] == [(False, 3)] * 2
    (record,) = caplog.records
    assert "estimated by their bytes" in record.getMessage()
    assert str(file) in record.getMessage()


async def test_without_a_tokenizer_nobody_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    """A fleet whose base is not on this machine has none; that is no fault."""
    counter = TokenCounter()
    assert await count(counter, prompt="12345678") == estimate(Route.COMPLETIONS, fields_of(prompt="12345678"))
    counter.close()
    assert not caplog.records


async def test_another_tokenizer_takes_over(counter: TokenCounter, tmp_path: Path) -> None:
    """After a change of the fleet the new file counts, and again bytes where there is none."""
    other = tmp_path / "other.json"
    make("wordpiece").save(str(other))
    counter.use(str(other))
    assert (await count(counter, prompt=PROSE)).prompt == tokens_of(make("wordpiece"), PROSE)
    counter.use("")
    assert not (await count(counter, prompt=PROSE)).counted


async def test_a_library_that_fails_leaves_a_rough_estimate(
    counter: TokenCounter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure in the thread is logged, and whoever waits hears a number all the same."""
    monkeypatch.setattr("tuneplex.gateway.tokens._add", lambda *_: 1 / 0)
    found = await count(counter, prompt=PROSE, max_tokens=3)
    assert abs(found.prompt - len(PROSE) // 4) <= 1
    assert (found.completion, found.counted, found.exact) == (3, False, False)
    assert "could not be counted" in caplog.text
    monkeypatch.undo()
    assert (await count(counter, prompt=PROSE)).counted


async def test_the_thread_ends_with_the_counter(tokenizer_file: Path) -> None:
    """Closing leaves no thread, also while something large is counted; who waits hears nothing."""
    counter, heard = TokenCounter(str(tokenizer_file)), list[Estimate]()
    counter.count(Route.COMPLETIONS, fields_of(prompt=PROSE * 16_000), heard.append)
    thread = counter._thread
    counter.close()
    assert thread is not None
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
    assert not heard


async def test_a_counter_that_counts_nothing_has_no_thread() -> None:
    """Before the first call there is nothing to wait for and nothing to end."""
    counter = TokenCounter()
    await counter.loaded()
    assert counter._thread is None
    counter.close()


async def test_the_event_loop_goes_on_while_a_large_body_is_counted(counter: TokenCounter) -> None:
    """Counting 16 MB, the loop still turns hundreds of times; counted in one piece it would turn a few times."""
    fields = fields_of(prompt=PROSE * (16 * MEGABYTE // len(PROSE)))
    found: asyncio.Future[Estimate] = asyncio.get_running_loop().create_future()
    counter.count(Route.COMPLETIONS, fields, found.set_result)
    beats = 0
    while not found.done():
        await asyncio.sleep(0.001)
        beats += 1
    assert found.result().prompt > 2_000_000
    assert beats > 200


def test_a_tally_knows_each_prompt_by_itself() -> None:
    """The longest prompt is the one with most that is certain, wherever it stands."""
    tally = Tally(Route.COMPLETIONS, {})
    for number, tokens in enumerate((5, 50, 7)):
        tally.add(Part(number, tokens=tokens), None)
    assert tally.least == 50
