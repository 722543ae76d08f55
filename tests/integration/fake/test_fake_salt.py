"""FakeEngine takes the salt of the prefix cache as vLLM does."""

from __future__ import annotations

import httpx2
import pytest

from tuneplex.testing import FakeEngine

BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
}


@pytest.mark.parametrize("path", list(BODIES))
async def test_the_salt_is_remembered(client: httpx2.AsyncClient, engine: FakeEngine, path: str) -> None:
    """Every route takes one, and none is as good as null."""
    for salt in ("a" * 128, None):
        reply = await client.post(path, json={"model": "base", **BODIES[path], "cache_salt": salt})
        assert reply.status_code == 200, reply.text
    await client.post(path, json={"model": "base", **BODIES[path]})
    assert [record.cache_salt for record in engine.requests] == ["a" * 128, None, None]


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize(
    "salt, words",
    [("", "a non-empty string"), (5, "a non-empty string"), ([], "a non-empty string")]
    + [(salt, "at most 128 characters") for salt in ("a" * 129, "a@b", "a/b", "a\\b", "a\0b")],
)
async def test_a_wrong_salt_is_refused(client: httpx2.AsyncClient, path: str, salt: object, words: str) -> None:
    """What vLLM's cache backends could take for something else is a wrong request, in vLLM's words."""
    reply = await client.post(path, json={"model": "base", **BODIES[path], "cache_salt": salt})
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == "cache_salt"
