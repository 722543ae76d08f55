"""Endpoints as they are written."""

from __future__ import annotations

import pytest

from tuneplex.http import Endpoint


@pytest.mark.parametrize(
    "text, expected",
    [
        ("unix:/run/tp/e.sock", Endpoint(path="/run/tp/e.sock")),
        ("http://127.0.0.1:8001", Endpoint(host="127.0.0.1", port=8001)),
        ("http://node", Endpoint(host="node", port=80)),
        ("https://llm.example/prefix", Endpoint(host="llm.example", port=443, tls=True, prefix="/prefix")),
        ("http://[::1]:8001", Endpoint(host="::1", port=8001)),
    ],
)
def test_an_endpoint_is_read_and_written(text: str, expected: Endpoint) -> None:
    """What is read can be written again."""
    assert Endpoint.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text", ["", "unix:relative", "ftp://host", "host:8000", "http://", "http://h/?q", "http://u@h"]
)
def test_anything_else_is_refused(text: str) -> None:
    """The error shows what was read."""
    with pytest.raises(ValueError, match="is not an endpoint"):
        Endpoint.parse(text)


def test_a_trailing_slash_means_nothing() -> None:
    """A base URL may end with one."""
    assert Endpoint.parse("http://host:1/v1/").prefix == "/v1"
