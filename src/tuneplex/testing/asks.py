"""From a request body to an `Ask`: renders the prompt, checks what vLLM checks, finds what the reply must say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tuneplex.testing.instances import instance
from tuneplex.testing.protocol import Ask, ChatRequest, CompletionRequest, Refusal, ResponsesRequest, Sampling, bad
from tuneplex.testing.tokens import Tokenizer

__all__ = ["Asker", "named_tool"]

_SAID = "sunny"
_MOST_LOGPROBS = 20
_LONGEST_SALT = 128
_NOT_IN_SALTS = frozenset("@/\\\0")


class Asker:
    """Reads requests for one engine.

    Args:
        tokenizer: Renders prompts.
        max_model_len: Prompt and reply together have no more tokens.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def chat(self, request: ChatRequest, model: str) -> Ask:
        """What a chat completion asks for."""
        _check_salt(request.cache_salt)
        _check_chat(request)
        prompt = self._tokenizer.chat(
            [(str(turn.get("role")), text_of(turn.get("content"))) for turn in request.messages]
        )
        limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        return self._sampled(
            request,
            model=model,
            prompts=[prompt],
            room=self._room(prompt, limit, from_text=True),
            recital=self._recital(request),
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        )

    def completion(self, request: CompletionRequest, model: str) -> Ask:
        """What a plain completion asks for."""
        _check_salt(request.cache_salt)
        if request.prompt == []:
            raise Refusal("You must pass at least one prompt")
        if request.prompt is None or request.prompt == "":
            raise _wrong("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        prompts = self._prompts(request.prompt)
        from_text = not isinstance(request.prompt, list) or isinstance(request.prompt[0], str)
        rooms = [self._room(prompt, request.max_tokens, from_text=from_text) for prompt in prompts]
        recital = _structured(request.response_format)
        return self._sampled(
            request, model=model, prompts=prompts, room=min(rooms), recital=recital, logprobs=request.logprobs
        )

    def responses(self, request: ResponsesRequest, model: str) -> Ask:
        """What a request to the Responses API asks for."""
        _check_salt(request.cache_salt)
        turns = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
        if request.instructions:
            turns = [{"role": "system", "content": request.instructions}, *turns]
        prompt = self._tokenizer.chat([(str(turn.get("role")), text_of(turn.get("content"))) for turn in turns])
        form = (request.text or {}).get("format") or {}
        _check_tools_of_response(request)
        tool = named_tool(request.tools, request.tool_choice)
        schema = tool["parameters"] if tool else form.get("schema")
        return Ask(
            model=model,
            prompts=[prompt],
            room=self._room(prompt, request.max_output_tokens, from_text=True),
            recital=_said(schema) if schema else None,
            greedy=request.temperature == 0,
            seed=request.seed,
            ignore_eos=request.ignore_eos,
            stream=bool(request.stream),
        )

    def _sampled(self, request: Sampling, *, prompts: list[list[int]], **given: Any) -> Ask:  # noqa: ANN401 - Ask's fields
        _check_sampling(request)
        options = request.stream_options
        stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
        return Ask(
            prompts=prompts,
            n=request.n or 1,
            stop=stop,
            stop_token_ids=request.stop_token_ids or [],
            include_stop=request.include_stop_str_in_output,
            ignore_eos=request.ignore_eos,
            min_tokens=request.min_tokens,
            greedy=request.temperature == 0,
            seed=request.seed,
            stream=bool(request.stream),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
            return_token_ids=bool(request.return_token_ids),
            prompt_logprobs=request.prompt_logprobs,
            echo=bool(request.echo),
            **given,
        )

    def _prompts(self, prompt: Any) -> list[list[int]]:  # noqa: ANN401 - whatever the client sent
        if isinstance(prompt, str):
            return [self._tokenizer.encode(prompt)]
        if isinstance(prompt, list) and all(isinstance(part, str) for part in prompt):
            return [self._tokenizer.encode(part) for part in prompt]
        if isinstance(prompt, list) and all(isinstance(part, int) for part in prompt):
            return [self._known(prompt)]
        if isinstance(prompt, list) and all(isinstance(part, list) for part in prompt):
            return [self._known(part) for part in prompt]
        raise bad(("list_type", "body.prompt", "Input should be a valid list", prompt))

    def _known(self, ids: list[int]) -> list[int]:
        if not all(isinstance(token_id, int) for token_id in ids):
            raise bad(("int_type", "body.prompt", "Input should be a valid integer", ids))
        if any(token_id < 0 for token_id in ids):
            raise bad(("greater_than_equal", "body.prompt", "Input should be greater than or equal to 0", ids))
        if not ids:
            raise Refusal("The decoder prompt cannot be empty")
        if max(ids) >= self._tokenizer.size:
            raise Refusal(f"Token id {max(ids)} is out of vocabulary")
        return ids

    def _room(self, prompt: list[int], wanted: int | None, *, from_text: bool) -> int:
        longest, length = self._max_model_len, len(prompt)
        if wanted is not None and wanted > longest:
            words = f"max_tokens={wanted} cannot be greater than max_model_len={longest}."
            raise _wrong(f"{words} Please request fewer output tokens.", "max_tokens", wanted)
        if length > longest:
            raise _too_long(longest, longest + 1 if from_text else length, "at least " if from_text else "")
        room = longest - length if wanted is None else min(wanted, longest - length)
        if room < 1:
            raise _wrong(f"max_tokens must be at least 1, got {room}.", "max_tokens", room)
        return room

    def _recital(self, request: ChatRequest) -> str | None:
        tool = named_tool(request.tools or [], request.tool_choice)
        if tool is not None:
            return _said(tool["function"].get("parameters") or {"type": "object"})
        return _structured(request.response_format)


def named_tool(tools: list[dict[str, Any]], choice: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """The tool that has to be called: the one named, or the first if one is required."""
    if choice == "required":
        return tools[0]
    if not isinstance(choice, dict):
        return None
    name = choice.get("function", choice).get("name")
    return next((tool for tool in tools if tool.get("function", tool).get("name") == name), None)


def text_of(content: Any) -> str:  # noqa: ANN401 - whatever the client sent
    """The text of a message, which may come in parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""


def _said(schema: Mapping[str, Any]) -> str:
    return msgspec.json.encode(instance(schema, _SAID)).decode()


def _structured(response_format: dict[str, Any] | None) -> str | None:
    if response_format is None:
        return None
    match response_format.get("type"):
        case "json_object":
            return _said({"properties": {"answer": {"type": "string"}}})
        case "json_schema":
            given = response_format.get("json_schema")
            if given is None:
                words = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
                raise _wrong(words, "response_format")
            return _said(given.get("schema") or {})
        case _:
            return None


def _check_salt(salt: object) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise _wrong("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > _LONGEST_SALT or not _NOT_IN_SALTS.isdisjoint(salt):
        words = "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
        raise _wrong(words, "cache_salt")


def _check_sampling(request: Sampling) -> None:
    if request.stream_options and not request.stream:
        raise _wrong("Stream options can only be defined when `stream=True`.", "stream_options")
    if request.temperature is not None and request.temperature < 0:
        words = f"temperature must be non-negative, got {request.temperature}."
        raise _wrong(words, "temperature", request.temperature)
    if request.n is not None and request.n < 1:
        raise Refusal(f"n must be at least 1, got {request.n}.")
    if request.temperature == 0 and (request.n or 1) > 1:
        raise Refusal(f"n must be 1 when using greedy sampling, got {request.n}.")


def _check_chat(request: ChatRequest) -> None:
    if not request.messages:
        raise Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
    _check_tools(request.tools, request.tool_choice)
    if request.top_logprobs and not request.logprobs:
        raise _wrong("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if (request.top_logprobs or 0) > _MOST_LOGPROBS:
        words = (
            f"Requested sample logprobs of {request.top_logprobs}, which is greater than max allowed: {_MOST_LOGPROBS}"
        )
        raise _wrong(words, "logprobs", request.top_logprobs)


def _check_tools(tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None) -> None:
    if tools == []:
        words = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise _wrong(words, "tools")
    if choice not in (None, "none") and not tools:
        raise _wrong("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict) and named_tool(tools or [], choice) is None:
        raise _wrong("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice")


def _check_tools_of_response(request: ResponsesRequest) -> None:
    choice = request.tool_choice
    if choice == "required" and not request.tools:
        raise _wrong("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
    if isinstance(choice, dict) and named_tool(request.tools, choice) is None:
        raise _wrong("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")


def _too_long(longest: int, tokens: int, qualifier: str) -> Refusal:
    return _wrong(
        f"This model's maximum context length is {longest} tokens. However, your prompt contains {qualifier}{tokens} "
        "input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
        tokens,
    )


def _wrong(words: str, param: str, value: float | None = None) -> Refusal:
    shown = "" if value is None else f", value={value}"
    return Refusal(f"{words} (parameter={param}{shown})", param=param)
