"""What `ask` says beside an answer."""

from __future__ import annotations

import asyncio

import pytest

from tuneplex.cli.ask import Question, Target, ask
from tuneplex.testing import FakeEngine, Script

_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
_WORD = 'data: {"choices": [{"index": 0, "delta": {"content": "Yes"}}]}\n\n'
_DONE = "data: [DONE]\n\n"


async def said(stream: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[str]]:
    """Standard output, and the lines of standard error, of a question that is answered with this stream."""
    async with FakeEngine() as engine:
        engine.script(Script(raw=_HEAD + stream))
        question = Question("base", "May they?")
        assert await asyncio.to_thread(ask, Target(f"{engine.url}/v1"), question, as_json=False) == 0
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
