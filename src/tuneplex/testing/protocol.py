"""What requests to FakeEngine may say, read as strictly as vLLM reads them, and refused in vLLM's words."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

import msgspec

__all__ = ["Ask", "ChatRequest", "CompletionRequest", "Refusal", "ResponsesRequest", "bad", "decode"]

T = TypeVar("T")
Finding = tuple[str, str, str, Any]
_AT = re.compile(r"at `\$([^`]*)`")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_EXPECTED = re.compile(r"Expected `([^`]*)`")
_TYPES = {
    "array": ("list_type", "Input should be a valid list"),
    "bool": ("bool_parsing", "Input should be a valid boolean, unable to interpret input"),
    "float": ("float_parsing", "Input should be a valid number, unable to parse string as a number"),
    "int": ("int_parsing", "Input should be a valid integer, unable to parse string as an integer"),
    "object": ("dict_type", "Input should be a valid dictionary"),
    "str": ("string_type", "Input should be a valid string"),
}


class Refusal(Exception):
    """An answer in vLLM's error shape.

    Args:
        message: For the client.
        status: HTTP status.
        kind: The error's `type`.
        param: The field at fault.
        code: The error's `code`; vLLM's own errors repeat the status there.
        bare: In FastAPI's shape instead.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
        code: str | None = None,
        bare: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"detail": message}
        if not bare:
            self.body = {"error": {"message": message, "type": kind, "param": param, "code": code or status}}


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """The fields that chat and plain completions share."""

    model: str | None = None
    n: int | None = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    echo: bool | None = False
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = None
    request_id: str | None = None
    response_format: dict[str, Any] | None = None
    cache_salt: Any = None


class ChatRequest(Sampling, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class CompletionRequest(Sampling, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Any = None
    max_tokens: int | None = 16
    logprobs: int | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/responses`; the fields that are only echoed have no type of their own."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    request_id: str | None = None
    seed: int | None = None
    store: bool | None = True
    stream: bool | None = False
    temperature: float | None = None
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_p: float | None = None
    user: str | None = None
    ignore_eos: bool = False
    cache_salt: Any = None

    is_chat: ClassVar[bool] = True


class Ask(msgspec.Struct, kw_only=True):
    """One generating request, whatever route it came by.

    Attributes:
        model: The name it was sent to.
        prompts: Token ids; each gives `n` choices.
        n: Choices for each prompt.
        room: How many tokens a reply may have.
        recital: What the reply has to say, where that is prescribed (by a schema, a tool or a script).
        logprobs: How many alternatives to list for each token; None for no log-probabilities.
        prompt_logprobs: The same of the prompts' tokens.
    """

    model: str
    prompts: list[list[int]]
    n: int = 1
    room: int = 16
    recital: str | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    greedy: bool = False
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    echo: bool = False


def decode(kind: type[T], content_type: str, body: bytes) -> T:
    """Read a request body.

    Raises:
        Refusal: As vLLM refuses what is not JSON, or not the JSON that this route takes.
    """
    if content_type.lower().partition(";")[0].strip() != "application/json":
        raise invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    value = _json(body)
    if not isinstance(value, dict):
        words = "Input should be a valid dictionary or object to extract fields from"
        raise bad(("model_attributes_type", "body", words, value))
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _of_missing(kind, value) or _of_limits(kind, error, value) or _of_validation(error, value) from None


def invalid(detail: str, param: str | None, *, count: int = 1) -> Refusal:
    """A refusal as FastAPI's validation makes them, for one error or several."""
    head = f"{count} validation error{'s' if count > 1 else ''}:"
    return Refusal(f"{head}\n  {detail}", kind="Bad Request", param=param)


def _json(body: bytes) -> Any:  # noqa: ANN401 - whatever the client sent
    if not body:
        raise bad(("missing", "body", "Field required", "None"))
    try:
        return json.loads(body)
    except (UnicodeDecodeError, RecursionError):
        raise Refusal("There was an error parsing the body", bare=True) from None
    except json.JSONDecodeError as error:
        found: Finding = ("json_invalid", f"body.{error.pos}", "JSON decode error", {})
        raise bad(found, ctx={"error": error.msg}) from None


def _of_missing(kind: type[Any], value: dict[str, Any]) -> Refusal | None:
    missing = [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in value]
    return bad(*(("missing", f"body.{name}", "Field required", value) for name in missing)) if missing else None


def _of_limits(kind: type[Any], error: msgspec.ValidationError, value: dict[str, Any]) -> Refusal | None:
    """A refusal for a value of the right type that is not allowed there, or for a field that is not."""
    words = str(error)
    if unknown := _UNKNOWN.search(words):
        name = unknown[1]
        return bad(("extra_forbidden", f"body.{name}", "Extra inputs are not permitted", value[name]))
    at = _AT.search(words)
    name = at[1].lstrip(".") if at else ""
    if words.startswith("Invalid enum value"):
        allowed = " or ".join(map(repr, get_args(get_type_hints(kind)[name])))
        found: Finding = ("literal_error", f"body.{name}", f"Input should be {allowed}", value[name])
        return bad(found, ctx={"expected": allowed})
    if "of length >= 1" in words:
        found = ("string_too_short", f"body.{name}", "String should have at least 1 character", value[name])
        return bad(found, ctx={"min_length": 1})
    if ">= 0.0" in words:
        found = ("greater_than_equal", f"body.{name}", "Input should be greater than or equal to 0", value[name])
        return bad(found, ctx={"ge": 0.0})
    return None


def _of_validation(error: msgspec.ValidationError, value: dict[str, Any]) -> Refusal:
    at, expected = _AT.search(str(error)), _EXPECTED.search(str(error))
    path = re.sub(r"\[(\d+|\.\.\.)\]", r".\1", at[1]) if at else ""
    kind, words = _TYPES.get((expected[1] if expected else "").split(" | ")[0], ("value_error", str(error)))
    return bad((kind, f"body{path}", words, value.get(path.lstrip("."))))


def bad(*found: Finding, **more: Any) -> Refusal:  # noqa: ANN401 - as the client sent it
    """A refusal for what was found wrong: kind, place, words and the value there."""
    errors = []
    for kind, loc, words, value in found:
        shown = f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, dict | list) else str(value)
        errors.append(str({"type": kind, "loc": loc, "msg": words, "input": shown, **more}))
    return invalid("\n  ".join(errors), found[0][1], count=len(found))
