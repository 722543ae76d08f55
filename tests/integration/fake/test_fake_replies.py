"""What FakeEngine answers when nothing goes wrong."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import httpx2
import pytest

from tuneplex.testing import FakeEngine, Tokenizer

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Tell me about the river."}]


def events(text: str) -> list[dict[str, Any]]:
    """The JSON events of a stream that ends properly."""
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def ask(client: httpx2.AsyncClient, path: str = CHAT, **fields: object) -> dict[str, Any]:
    """The JSON answer to one request."""
    body = {"model": "base", "temperature": 0, **({"messages": HELLO} if path == CHAT else {}), **fields}
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


async def test_replies_repeat_and_differ_by_adapter(client: httpx2.AsyncClient) -> None:
    """The same question gets the same answer, and another one from each adapter."""
    answers = [(await ask(client, model=name))["choices"][0]["message"]["content"] for name in ("base", "ada", "bob")]
    again = (await ask(client, model="ada"))["choices"][0]["message"]["content"]
    assert len(set(answers)) == 3
    assert again == answers[1]


async def test_the_truth_is_known_beforehand(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """`reply` tells the ids and the text of an answer, and the usage counts exactly these ids."""
    ids = engine.tokenizer.chat([("user", "Tell me about the river.")])
    truth = engine.reply(ids, model="ada", room=40)
    answer = await ask(client, model="ada", max_tokens=40, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == truth.token_ids
    assert answer["choices"][0]["message"]["content"] == truth.text
    assert answer["prompt_token_ids"] == ids
    assert answer["usage"]["completion_tokens"] == len(truth.token_ids)
    assert answer["usage"]["prompt_tokens"] == len(ids)


async def test_a_stream_says_the_same_as_a_whole_answer(client: httpx2.AsyncClient) -> None:
    """The deltas of a stream add up to the text and the ids that come without streaming."""
    whole = await ask(client, max_tokens=60, return_token_ids=True, ignore_eos=True)
    body = {"model": "base", "messages": HELLO, "temperature": 0, "max_tokens": 60, "return_token_ids": True}
    streamed = await client.post(CHAT, json={**body, "stream": True, "ignore_eos": True})
    choices = [chunk["choices"][0] for chunk in events(streamed.text)]
    assert "".join(choice["delta"]["content"] for choice in choices) == whole["choices"][0]["message"]["content"]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == whole["choices"][0]["token_ids"]
    assert choices[-1]["finish_reason"] == "length"


async def test_characters_span_tokens(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """A long reply has tokens in the middle of a character, which add no text of their own."""
    reply = engine.reply(engine.tokenizer.encode("a"), room=200, ignore_eos=True)
    assert any(ord(character) > 127 for character in reply.text)
    answer = await ask(client, "/v1/completions", prompt="a", max_tokens=200, ignore_eos=True)
    assert answer["choices"][0]["text"] == reply.text


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 23, 39])
async def test_a_cut_reply_continues_from_its_ids(client: httpx2.AsyncClient, engine: FakeEngine, cut: int) -> None:
    """Prompt ids and the ids sent so far, given as a prompt, bring the rest of the same reply."""
    ids = engine.tokenizer.chat([("user", "Go on.")])
    truth = engine.reply(ids, model="ada", room=40, ignore_eos=True)
    fields = {"max_tokens": 40 - cut, "ignore_eos": True, "return_token_ids": True}
    rest = await ask(client, "/v1/completions", model="ada", prompt=ids + truth.token_ids[:cut], **fields)
    assert rest["choices"][0]["token_ids"] == truth.token_ids[cut:]


async def test_a_stop_string_ends_the_text_before_it(client: httpx2.AsyncClient) -> None:
    """The text ends where the stop string begins, streamed or not, and the reason names it."""
    full = (await ask(client, max_tokens=40, ignore_eos=True))["choices"][0]["message"]["content"]
    stop = full[20:26]
    stopped = (await ask(client, max_tokens=40, ignore_eos=True, stop=[stop]))["choices"][0]
    assert stopped["message"]["content"] == full[: full.index(stop)]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)
    body = {"model": "base", "messages": HELLO, "temperature": 0, "ignore_eos": True, "stop": stop, "stream": True}
    deltas = [chunk["choices"][0]["delta"]["content"] for chunk in events((await client.post(CHAT, json=body)).text)]
    assert "".join(deltas) == full[: full.index(stop)]


async def test_seeds_and_choices(client: httpx2.AsyncClient) -> None:
    """`n` gives different choices, the same ones for the same seed and others for another seed."""

    async def texts(seed: int) -> list[str]:
        answer = await ask(client, n=3, seed=seed, temperature=1, max_tokens=12)
        return [choice["message"]["content"] for choice in answer["choices"]]

    first, again, other = await texts(1), await texts(1), await texts(2)
    assert len(set(first)) == 3
    assert first == again
    assert first != other


async def test_a_schema_is_satisfied(client: httpx2.AsyncClient) -> None:
    """`response_format` with a JSON schema brings JSON of that shape."""
    item = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}, "ok": {"type": "boolean"}}}
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["x", "y"]},
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 2},
            "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        },
        "required": ["kind", "items", "note"],
        "$defs": {"item": item},
    }
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
    said = json.loads((await ask(client, response_format=form))["choices"][0]["message"]["content"])
    assert said == {"kind": "y", "items": [{"n": 3, "ok": True}] * 2, "note": "sun"}


@pytest.mark.parametrize("choice, ending", [("required", "tool_calls"), ("named", "stop")])
async def test_tools_are_called_on_the_wire(client: httpx2.AsyncClient, choice: str, ending: str) -> None:
    """A tool that is asked for is called with arguments that fit it, streamed or not."""
    function = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    wanted = choice if choice == "required" else {"type": "function", "function": {"name": "weather"}}
    fields: dict[str, Any] = {"tools": [{"type": "function", "function": function}], "tool_choice": wanted}
    whole = (await ask(client, **fields))["choices"][0]
    call = whole["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "sunny"})
    assert whole["finish_reason"] == ending
    body = {"model": "base", "messages": HELLO, "stream": True, **fields}
    chunks = [chunk["choices"][0] for chunk in events((await client.post(CHAT, json=body)).text)]
    calls = [one for chunk in chunks for one in chunk["delta"].get("tool_calls", [])]
    assert calls[0]["function"] == {"name": "weather"}
    assert json.loads("".join(call["function"].get("arguments", "") for call in calls)) == {"city": "sunny"}
    assert chunks[-1]["finish_reason"] == ending


async def test_usage_in_the_stream(client: httpx2.AsyncClient) -> None:
    """`stream_options` brings running counts and one last event with the whole usage."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "base", "messages": HELLO, "stream": True, "stream_options": options, "max_tokens": 3, "n": 2}
    chunks = events((await client.post(CHAT, json={**body, "ignore_eos": True})).text)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 0, 1, 1, 2, 2, 3, 3, 6]
    assert chunks[-1]["choices"] == []


async def test_several_prompts(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """`/v1/completions` takes texts or token ids, several at once, and answers each."""
    one, two = engine.tokenizer.encode("one"), engine.tokenizer.encode("two")
    texts = await ask(client, "/v1/completions", prompt=["one", "two"], max_tokens=5)
    ids = await ask(client, "/v1/completions", prompt=[one, two], max_tokens=5)
    assert [choice["text"] for choice in texts["choices"]] == [choice["text"] for choice in ids["choices"]]
    assert texts["usage"]["prompt_tokens"] == len(one) + len(two)


async def test_responses(client: httpx2.AsyncClient) -> None:
    """The Responses API answers and streams the same text, without `[DONE]`."""
    fields = {"input": "Tell me.", "max_output_tokens": 9, "ignore_eos": True}
    whole = await ask(client, "/v1/responses", **fields)
    body = {"model": "base", "temperature": 0, "stream": True, **fields}
    text = (await client.post("/v1/responses", json=body)).text
    last = json.loads(text.strip().rsplit("data: ", 1)[1])
    assert last["type"] == "response.completed"
    assert last["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert whole["usage"]["output_tokens"] == 9
    assert "[DONE]" not in text


async def test_tokenize_and_back(client: httpx2.AsyncClient) -> None:
    """`/tokenize` and `/detokenize` lose nothing."""
    text = "The river, 🙂 <|im_end|>"
    ids = (await client.post("/tokenize", json={"prompt": text})).json()["tokens"]
    assert ids[-1] == Tokenizer.eos
    assert (await client.post("/detokenize", json={"tokens": ids})).json() == {"prompt": text}


async def test_prompts_are_counted_with_their_first_tokens(client: httpx2.AsyncClient) -> None:
    """As in vLLM the page has a prompt once for each of its choices, and nothing of what was left before."""
    prompt, labels = "hello", '{engine="0",model_name="base"}'
    with contextlib.suppress(httpx2.ReadTimeout):
        body = {"model": "base", "prompt": prompt, "fake_fault": {"before_first_chunk_s": 60}}
        await client.post("/v1/completions", json=body, timeout=0.2)
    assert f"vllm:prompt_tokens_total{labels} 0.0" in (await client.get("/metrics")).text
    several = {"model": "base", "prompt": prompt, "n": 3, "max_tokens": 2, "ignore_eos": True}
    count = (await client.post("/v1/completions", json=several)).json()["usage"]["prompt_tokens"]
    page = (await client.get("/metrics")).text
    assert f"vllm:prompt_tokens_total{labels} {3.0 * count}" in page
    assert f"vllm:generation_tokens_total{labels} 6.0" in page


async def test_metrics_follow_what_happens(client: httpx2.AsyncClient, engine: FakeEngine) -> None:
    """The metrics page counts the tokens that were really made."""
    answer = await ask(client, max_tokens=7, ignore_eos=True)
    page = (await client.get("/metrics")).text
    labels = '{engine="0",model_name="base"}'
    assert f"vllm:generation_tokens_total{labels} 7.0" in page
    assert f"vllm:prompt_tokens_total{labels} {float(answer['usage']['prompt_tokens'])}" in page
    assert f"vllm:num_requests_running{labels} 0.0" in page
    assert 'finished_reason="length"} 1.0' in page
    assert engine.scheduler.running == 0


async def test_the_key_guards_what_vllm_guards(engine: FakeEngine) -> None:
    """With a key, only paths below `/v1` ask for it."""
    del engine
    async with FakeEngine(api_key="secret") as guarded, httpx2.AsyncClient(base_url=guarded.url) as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers={"authorization": "Bearer secret"})).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
