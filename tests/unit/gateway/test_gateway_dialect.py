"""What engines answer when something is wrong, put into OpenAI's shape."""

from __future__ import annotations

import json

import pytest

from tuneplex.engines import dialect_for
from tuneplex.types import Route

NAMES = {"name": "legal@0123456789ab", "shown": "legal"}


def vllm(message: str, kind: str = "BadRequestError", code: int = 400, param: str | None = None) -> bytes:
    """An error as vLLM writes it."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


@pytest.mark.parametrize(
    "status, body, expected, words",
    [
        (400, vllm("too long for legal@0123456789ab"), 400, "too long for legal"),
        (400, b'{"object":"error","message":"old shape","code":400}', 400, "old shape"),
        (422, b'{"detail":[{"loc":["body","n"],"msg":"not a number"}]}', 400, "body.n: not a number"),
        (400, b'{"detail":"plain detail"}', 400, "plain detail"),
        (400, b'{"error":"just a text"}', 400, "just a text"),
        (400, b"<html>proxy</html>", 400, "refused the request with the status 400"),
        (400, b'["what"]', 400, "refused the request with the status 400"),
        (404, b'{"detail":"Not Found"}', 404, "does not offer this route for the model `legal`"),
        (404, vllm("The model `legal@0123456789ab` does not exist.", "NotFoundError", 404), 503, "not loaded"),
        (413, vllm("too large", code=413), 413, "too large"),
        (429, b'{"error":{"message":"slow down"}}', 429, "slow down"),
        (401, b'{"error":"Unauthorized"}', 502, "own credentials"),
        (403, b"", 502, "own credentials"),
        (500, vllm("/usr/lib/python3 exploded", "InternalServerError", 500), 500, "failed at this request"),
        (501, b"", 501, "failed at this request"),
        (503, b"", 503, "cannot take requests"),
        (502, b"bad gateway at http://10.0.0.7:8000", 502, "unexpected status 502"),
        (302, b"", 502, "unexpected status 302"),
    ],
)
def test_engine_errors_become_openai_errors(status: int, body: bytes, expected: int, words: str) -> None:
    """Each has OpenAI's shape, a fitting status, and tells no more of the inside than the client may know."""
    error = dialect_for("vllm").error(status, body, **NAMES)
    shown = json.loads(error.body())["error"]
    assert error.status == expected
    assert words in shown["message"]
    assert set(shown) == {"message", "type", "param", "code"}
    assert "0123456789ab" not in shown["message"]
    assert "10.0.0.7" not in shown["message"]


def test_busy_errors_say_when_to_come_back() -> None:
    """429 and 503 have a number of seconds."""
    for status in (429, 503):
        assert dialect_for("openai").error(status, b"", **NAMES).retry_after_s is not None


@pytest.mark.parametrize(
    "event, status",
    [
        (b'data: {"error": {"message": "boom", "type": "InternalServerError", "code": 500}}\n\ndata: [DONE]\n\n', 500),
        (b'data: {"error":{"message":"too long","code":400}}\n\n', 400),
        (b'data: {"error":"text"}\r\n\r\n', 500),
    ],
)
def test_errors_inside_of_a_stream_are_read(event: bytes, status: int) -> None:
    """The engine's error event has a status too."""
    dialect = dialect_for("vllm")
    assert dialect.error_mark in event
    assert dialect.error_at(event) == 0
    assert dialect.stream_error(event, **NAMES).status == status


@pytest.mark.parametrize(
    "route, last, ended",
    [
        (Route.CHAT, b"data: {}\n\ndata: [DONE]\n\n", True),
        (Route.CHAT, b"data: [DONE]\r\n\r\n", True),
        (Route.CHAT, b'data: {"x":"[DONE]"}\n\n', False),
        (Route.CHAT, b"", False),
        (Route.RESPONSES, b'event: response.completed\ndata: {"type":"response.completed"}\n\n', True),
        (Route.RESPONSES, b'event: x\ndata: {"type":"response.output_text.delta"}\n\n', False),
        (Route.COMPLETIONS, b'data: {"type":"response.completed"}\n\n', False),
    ],
)
def test_a_stream_has_a_proper_end(route: Route, last: bytes, ended: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """`[DONE]` ends a stream, and so does a response's last event; anything else is a break."""
    assert dialect_for("openai").ended(route, last) is ended


def test_unknown_engines_are_named() -> None:
    """The error says which kinds there are."""
    with pytest.raises(ValueError, match="'ollama'; known are vllm and openai"):
        dialect_for("ollama")
