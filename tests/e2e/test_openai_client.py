"""OpenAI's own Python client, through the gateway, with FakeEngine and with the real vLLM behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import openai
import pytest
from openai import AsyncOpenAI, AsyncStream, OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from tests.support.background import background
from tests.support.gateways import KEY, open_gateway
from tests.support.real_engine import RealEngine
from tuneplex.testing import FakeEngine, Script

SAY_YES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say only: yes"}]
WEATHER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Rome?"}]
CITY: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[ChatCompletionFunctionToolParam] = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
]
EXACTLY_EIGHT = {"ignore_eos": True}


class Place(BaseModel):
    """What a reply has to be."""

    city: Literal["Rome", "Oslo"]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeEngine]:
    """A fake that knows tools."""
    with background(FakeEngine(adapters=["ada", "bob"], api_key="secret", tool_parser=True)) as engine:
        yield engine


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.engine)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The base URL of a gateway in front of the fake, and of one in front of the real engine."""
    if request.param == "real":
        real: RealEngine = request.getfixturevalue("real_engine")
        opened = open_gateway(real.endpoint, real.secret)
    else:
        opened = open_gateway(request.getfixturevalue("fake").endpoint, "secret")
    with background(opened) as found:
        yield found


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    """The synchronous client."""
    with OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(url: str) -> AsyncIterator[AsyncOpenAI]:
    """The asynchronous client."""
    async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def test_chat(client: OpenAI) -> None:
    """A chat completion has a text, a reason why it ended, and a usage that adds up."""
    reply = client.chat.completions.create(model="ada", messages=SAY_YES, max_tokens=8, extra_body=EXACTLY_EIGHT)
    assert reply.model == "ada"
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert (reply.usage.completion_tokens, reply.usage.total_tokens) == (8, reply.usage.prompt_tokens + 8)


def test_an_alias_is_the_model_that_comes_back(client: OpenAI) -> None:
    """An application that asks for `gpt-4o-mini` gets `gpt-4o-mini`, whole and in each chunk."""
    reply = client.chat.completions.create(model="gpt-4o-mini", messages=SAY_YES, max_tokens=2)
    assert reply.model == "gpt-4o-mini"
    stream = client.chat.completions.create(model="gpt-4o-mini", messages=SAY_YES, max_tokens=2, stream=True)
    assert {chunk.model for chunk in stream} == {"gpt-4o-mini"}


def test_a_stream_says_the_same(client: OpenAI) -> None:
    """The deltas of a stream add up to what comes without streaming."""
    whole = client.chat.completions.create(model="base", messages=SAY_YES, max_tokens=8, temperature=0)
    chunks = list(
        client.chat.completions.create(model="base", messages=SAY_YES, max_tokens=8, temperature=0, stream=True)
    )
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


async def test_the_async_client_streams(async_client: AsyncOpenAI) -> None:
    """Several streams at a time, by the asynchronous client, are whole."""

    async def stream(model: str) -> list[ChatCompletionChunk]:
        opened = await async_client.chat.completions.create(
            model=model, messages=SAY_YES, max_tokens=8, stream=True, extra_body=EXACTLY_EIGHT
        )
        return [chunk async for chunk in opened]

    streams = await asyncio.gather(*(stream(model) for model in ("base", "ada", "base", "ada")))
    for model, chunks in zip(("base", "ada", "base", "ada"), streams, strict=True):
        assert {chunk.model for chunk in chunks} == {model}
        assert chunks[-1].choices[0].finish_reason == "length"


def test_usage_in_the_stream(client: OpenAI) -> None:
    """`include_usage` brings one last chunk with the usage and no choice."""
    options: openai.types.chat.ChatCompletionStreamOptionsParam = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="ada", messages=SAY_YES, max_tokens=8, stream=True, stream_options=options, extra_body=EXACTLY_EIGHT
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_n(client: OpenAI) -> None:
    """`n` gives so many choices."""
    reply = client.chat.completions.create(model="base", messages=WEATHER, max_tokens=6, n=3, temperature=1)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]


def test_seed(client: OpenAI) -> None:
    """The same seed gives the same text."""
    # In bfloat16 batch and prefix cache decide close calls: so one at a time, and the first one fills the cache.
    _, *texts = [
        client.chat.completions.create(model="base", messages=WEATHER, max_tokens=6, seed=7, temperature=1)
        .choices[0]
        .message.content
        for _ in range(3)
    ]
    assert texts[0] == texts[1]


def test_stop(client: OpenAI) -> None:
    """The text ends before the stop string."""
    full = client.completions.create(model="base", prompt="One, two, three,", max_tokens=30, temperature=0)
    stop = full.choices[0].text[4:7]
    stopped = client.completions.create(
        model="base", prompt="One, two, three,", max_tokens=30, temperature=0, stop=[stop]
    )
    assert stopped.choices[0].text == full.choices[0].text[: full.choices[0].text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_logprobs(client: OpenAI) -> None:
    """Log-probabilities come for each token, with the alternatives that were asked for."""
    reply = client.chat.completions.create(
        model="base", messages=WEATHER, max_tokens=3, logprobs=True, top_logprobs=2, extra_body=EXACTLY_EIGHT
    )
    found = reply.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 3
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in found.content)


def test_completions(client: OpenAI) -> None:
    """Plain completions take texts and token ids, whole and streamed."""
    reply = client.completions.create(
        model="ada", prompt=["The river", "The sea"], max_tokens=4, extra_body=EXACTLY_EIGHT
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    stream = client.completions.create(
        model="ada", prompt=[5, 6, 7], max_tokens=4, stream=True, extra_body=EXACTLY_EIGHT
    )
    chunks = list(stream)
    assert {chunk.model for chunk in chunks} == {"ada"}
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_schema_is_satisfied(client: OpenAI) -> None:
    """`response_format` with a JSON schema brings an object of that shape, which the client parses."""
    reply = client.chat.completions.parse(
        model="base", messages=WEATHER, max_tokens=200, temperature=0, response_format=Place
    )
    assert reply.choices[0].message.parsed is not None
    assert reply.choices[0].message.parsed.city in {"Rome", "Oslo"}


@pytest.mark.parametrize("choice", ["required", "named"])
def test_tools(client: OpenAI, choice: str) -> None:
    """A tool that has to be called is called on the wire, whole and streamed."""
    wanted = "required" if choice == "required" else {"type": "function", "function": {"name": "weather"}}
    fields = {"tool_choice": wanted}
    reply = client.chat.completions.create(
        model="base", messages=WEATHER, max_tokens=300, temperature=0, tools=TOOLS, extra_body=fields
    )
    calls = reply.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "weather"
    assert json.loads(calls[0].function.arguments)["city"] in {"Rome", "Oslo"}
    stream = client.chat.completions.create(
        model="base", messages=WEATHER, max_tokens=300, temperature=0, tools=TOOLS, stream=True, extra_body=fields
    )
    deltas = [delta for chunk in stream for delta in chunk.choices[0].delta.tool_calls or []]
    parts = [delta.function for delta in deltas if delta.function is not None]
    assert parts[0].name == "weather"
    assert "".join(part.arguments or "" for part in parts) == calls[0].function.arguments


def test_responses(client: OpenAI) -> None:
    """The Responses API answers whole and streamed."""
    reply = client.responses.create(model="ada", input="Say hi.", max_output_tokens=8, extra_body=EXACTLY_EIGHT)
    assert reply.model == "ada"
    assert reply.output_text
    assert reply.usage is not None
    assert reply.usage.output_tokens == 8
    stream = client.responses.create(
        model="ada", input="Say hi.", max_output_tokens=8, stream=True, extra_body=EXACTLY_EIGHT
    )
    events = list(stream)
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.model == "ada"
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == last.response.output_text


def test_tools_in_responses(client: OpenAI) -> None:
    """The Responses API calls a tool that has to be called."""
    tool: FunctionToolParam = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
    reply = client.responses.create(
        model="base", input="Rome?", max_output_tokens=300, temperature=0, tools=[tool], tool_choice="required"
    )
    call = reply.output[0]
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in {"Rome", "Oslo"}


async def test_async_responses(async_client: AsyncOpenAI) -> None:
    """The asynchronous client streams responses too."""
    stream = await async_client.responses.create(model="base", input="Say hi.", max_output_tokens=4, stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.completed"


def test_models(client: OpenAI) -> None:
    """Base and adapters are listed, and can be asked for one by one."""
    names = {model.id for model in client.models.list()}
    assert {"base", "ada", "bob"} <= names
    assert client.models.retrieve("ada").id == "ada"


def test_a_deployment_has_its_own_base_url(url: str) -> None:
    """Under `/d/NAME/v1` the model is implied."""
    with OpenAI(base_url=url.replace("/v1", "/d/ada/v1"), api_key=KEY, max_retries=0) as client:
        reply = client.chat.completions.create(model="whatever", messages=SAY_YES, max_tokens=2)
    assert reply.model == "whatever"


def test_errors_have_openais_classes(client: OpenAI) -> None:
    """What is wrong arrives as the client's own exception for it, with status, code and parameter."""
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody", messages=SAY_YES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as negative:
        client.chat.completions.create(model="base", messages=SAY_YES, temperature=-1)
    assert "temperature" in negative.value.message
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="base", messages=[{"role": "user", "content": "word " * 10_000}])
    assert "maximum context length" in long.value.message
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="base", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="base", input="x")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_errors_name_their_request(client: OpenAI) -> None:
    """An error carries a request id, and no internal name or address."""
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody", messages=SAY_YES)
    assert unknown.value.request_id
    assert ".sock" not in str(unknown.value)


@pytest.mark.parametrize(
    "script, status",
    [
        (Script(status=500), 500),
        (Script(status=503, body="<h1>no</h1>", content_type="text/html"), 503),
        (Script(reset_before_headers=True), 502),
        (Script(raw="garbage\r\n\r\n"), 502),
        (Script(content_type="text/html", body="<h1>hello</h1>"), 502),
    ],
)
async def test_a_broken_engine_is_a_status_not_a_lost_connection(fake: FakeEngine, script: Script, status: int) -> None:
    """Whatever an engine does instead of answering, the client sees a status in OpenAI's shape."""
    async with (
        open_gateway(fake.endpoint, "secret") as url,
        AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client,
    ):
        fake.script(script)
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model="base", messages=SAY_YES)
    assert failed.value.status_code == status
    assert isinstance(failed.value.body, dict)


async def test_a_stream_that_breaks_off_is_an_error(fake: FakeEngine) -> None:
    """A stream that the engine cuts never looks complete."""
    async with (
        open_gateway(fake.endpoint, "secret") as url,
        AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client,
    ):
        fake.script(Script(reset_after_chunks=3))
        stream = await client.chat.completions.create(model="base", messages=SAY_YES, stream=True)
        with pytest.raises(openai.APIError):
            await exhaust(stream)


async def exhaust(stream: AsyncStream[ChatCompletionChunk]) -> None:
    """Read a stream to its end."""
    async with stream:
        async for _ in stream:
            pass


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    """The text that a stream's chunks add up to."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
