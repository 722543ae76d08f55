"""What `ask` says beside an answer."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from tests.support.front import VERSIONS, open_front, view_of
from tuneplex.cli.ask import Question, Target, ask
from tuneplex.cli.why import explained
from tuneplex.errors import TuneplexError, UserError
from tuneplex.testing import FakeEngine, Script
from tuneplex.why import Tokens, Told, Tried

_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
_WORD = 'data: {"choices": [{"index": 0, "delta": {"content": "Yes"}}]}\n\n'
_DONE = "data: [DONE]\n\n"


async def said(stream: str, capsys: pytest.CaptureFixture[str], *, why: bool = False) -> tuple[str, list[str]]:
    """Standard output, and the lines of standard error, of a question that is answered with this stream."""
    async with FakeEngine() as engine:
        engine.script(Script(raw=_HEAD + stream))
        question = Question("base", "May they?")
        assert await asyncio.to_thread(ask, Target(f"{engine.url}/v1"), question, as_json=False, why=why) == 0
    out, err = capsys.readouterr()
    return out, err.splitlines()


async def test_waiting_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever waits reads where the request stands, and standard output has nothing but the answer."""
    stream = ": waiting, position 2 of 3, about 4 s\n\n: waiting, position 1 of 2\n\n" + _WORD + _DONE
    assert await said(stream, capsys) == ("Yes\n", ["waiting, position 2 of 3, about 4 s", "waiting, position 1 of 2"])


async def test_answer_that_a_limit_has_cut_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The answer looks complete, so a warning after it tells that it is not, and why."""
    why = "ended by a limit: tenant acme is limited to 1.00 EUR per month, and nothing is left"
    assert await said(_WORD + f": {why}\n\n" + _DONE, capsys) == ("Yes\n", [f"warning: {why}"])


async def test_comments_of_other_servers_are_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    """A proxy's keep-alive is for nobody to read."""
    assert await said(": keep-alive\n\n" + _WORD + _DONE, capsys) == ("Yes\n", [])


async def test_a_server_that_does_not_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever asked why learns that there is no answer, with the answer to the question."""
    words = "warning: the server has not said why: perhaps it is no gateway of tuneplex"
    assert await said(_WORD + _DONE, capsys, why=True) == ("Yes\n", [words])
    assert await said(_WORD + _DONE + ": why not\n\n", capsys, why=True) == ("Yes\n", [words])


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_gateway_says_why(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    """Where the request went and how long it took is told in words, after the answer."""
    async with FakeEngine("base", adapters=VERSIONS.values()) as engine, open_front(view_of([engine])) as front:
        target = Target(f"http://127.0.0.1:{front.port}/v1")
        question = Question("contacts", "May they?", max_tokens=4)
        assert await asyncio.to_thread(ask, target, question, as_json=as_json, why=True) == 0
    out, err = capsys.readouterr()
    assert out.startswith("{") == as_json
    went, took, tokens = err.splitlines()
    assert re.fullmatch(r"after \d\.\d\d s it went to r0", went)
    assert re.fullmatch(("" if as_json else r"the first token came after \S+ s, ") + r"all of it after \S+ s", took)
    assert re.fullmatch(r"tokens: \d+ of the prompt, 4 of the reply", tokens)


@pytest.mark.parametrize(
    "script, as_json", [(Script(status=400), False), (Script(status=400), True), (Script(reset_after_chunks=2), False)]
)
async def test_a_gateway_says_why_it_failed(
    capsys: pytest.CaptureFixture[str], script: Script, *, as_json: bool
) -> None:
    """Then it matters most: the explanation comes before the error."""
    async with FakeEngine("base", adapters=VERSIONS.values()) as engine, open_front(view_of([engine])) as front:
        engine.script(script)
        target = Target(f"http://127.0.0.1:{front.port}/v1")
        with pytest.raises(TuneplexError):
            await asyncio.to_thread(ask, target, Question("contacts", "May they?"), as_json=as_json, why=True)
    went, *_ = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"after \S+ s it went to r0, and was (refused|broken) \S+ s later", went)


async def test_an_error_without_an_explanation_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """Who names a model that is not there learns that, and nothing of gateways."""
    async with FakeEngine() as engine, open_front(view_of([engine])) as front:
        target = Target(f"http://127.0.0.1:{front.port}/v1")
        with pytest.raises(UserError, match="does not exist"):
            await asyncio.to_thread(ask, target, Question("nobody", "May they?"), as_json=False, why=True)
    assert capsys.readouterr().err == ""


def test_all_that_can_have_happened_has_words() -> None:
    """Counting, waiting, attempts that failed and went on, and tokens of which some were there already."""
    attempts = [
        Tried("default-0", 0.512, 2, "broken", 1.25),
        Tried("default-1", 1.8, 1, "stalled", 30, goes_on=True),
        Tried("default-2", 32, 0, "answers", goes_on=True),
    ]
    told = Told("req-1", "v1", 40.5, 0.5, "a free place", 0.01, 0.75, attempts, Tokens(300, 256, 50, exact=False))
    assert explained(msgspec.json.encode(told).decode()) == (
        "its tokens were counted after 0.01 s",
        "it waited 0.50 s for a free place",
        "after 0.51 s it went to default-0 beside 2 others, and was broken 1.25 s later",
        "after 1.80 s it went on to default-1 beside 1 other, and was stalled 30.00 s later",
        "after 32.00 s it went on to default-2",
        "the first token came after 0.75 s, all of it after 40.50 s",
        "tokens: about 300 of the prompt (256 of them from the prefix cache), 50 of the reply",
    )
