"""The bodies and events of chat and plain completions, field by field as vLLM writes them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tuneplex.testing.generation import LogProb, Reply, Step, read
from tuneplex.testing.protocol import Ask
from tuneplex.testing.tokens import Tokenizer

__all__ = ["Answer", "ChatAnswer", "CompletionAnswer", "data_event", "usage_of"]

FINGERPRINT = "vllm-0.32.0-fake"
_COUNTS = ("prompt_tokens", "total_tokens", "completion_tokens")
Json = dict[str, Any]


class Answer(Protocol):
    """One route's way of writing down what was generated."""

    def opening(self) -> list[bytes]:
        """The events before the first token."""

    def step(self, choice: int, step: Step) -> list[bytes]:
        """The events of one token of one choice."""

    def closing(self) -> list[bytes]:
        """The events after the last token, without `[DONE]`."""

    def whole(self, replies: Sequence[Reply]) -> Json:
        """The body when nothing is streamed."""


def data_event(value: Json) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


def usage_of(prompt: int, completion: int) -> Json:
    """`usage`, with all that vLLM puts in it."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


class _Counting:
    """What the two kinds of completions have in common."""

    prefix: str
    stream_object: str
    running_usage: tuple[str, ...]

    def __init__(self, tokenizer: Tokenizer, ask: Ask, request_id: str | None, *, voice: str = "") -> None:
        self._tokenizer = tokenizer
        self._ask = ask
        self._voice = voice
        self._id = f"{self.prefix}-{request_id or uuid.uuid4().hex[:16]}"
        self._created = int(time.time())
        self._said = [0] * (len(ask.prompts) * ask.n)
        self._offsets = [0] * len(self._said)
        self._prompt_tokens = sum(map(len, ask.prompts))

    def closing(self) -> list[bytes]:
        """The event with the whole usage, where it was asked for."""
        if not self._ask.include_usage:
            return []
        usage = {
            key: value for key, value in usage_of(self._prompt_tokens, sum(self._said)).items() if value is not None
        }
        return [data_event({**self._envelope([]), "usage": usage, "system_fingerprint": FINGERPRINT})]

    def _envelope(self, choices: list[Json]) -> Json:
        return {
            "id": self._id,
            "object": self.stream_object,
            "created": self._created,
            "model": self._ask.model,
            "choices": choices,
        }

    def _chunk(self, choice: Json, index: int, **more: Any) -> bytes:  # noqa: ANN401 - further JSON fields
        chunk = self._envelope([choice])
        if self._ask.continuous_usage:
            usage = usage_of(len(self._ask.prompts[index // self._ask.n]), self._said[index])
            chunk["usage"] = {key: usage[key] for key in self.running_usage}
        if choice.get("finish_reason") and not self._ask.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return data_event({**chunk, **more})

    def _ids(self, ids: list[int]) -> list[int] | None:
        return ids if self._ask.return_token_ids else None

    def _read(self, prompt: list[int]) -> list[Json | None] | None:
        """How likely each token of a prompt is after those before it, where that was asked for."""
        alternatives = self._ask.prompt_logprobs
        if alternatives is None:
            return None
        entries: list[Json | None] = [None]
        for token_id, one in zip(prompt[1:], read(self._tokenizer, prompt, alternatives, self._voice), strict=True):
            listed = dict(((token_id, one.logprob), *one.top))
            entries.append(
                {str(key): self._entry(key, rank, likely) for rank, (key, likely) in enumerate(listed.items(), 1)}
            )
        return entries

    def _entry(self, token_id: int, rank: int, logprob: float) -> Json:
        return {"logprob": logprob, "rank": rank, "decoded_token": self._tokenizer.name(token_id)}


class ChatAnswer(_Counting):
    """`POST /v1/chat/completions`; with `tool`, the reply becomes a call of that tool.

    Args:
        tokenizer: Whose ids are written down.
        ask: What was asked.
        request_id: Taken into the answer's id.
        tool: The function to call, or None.
        required: A tool was required, but none in particular.
        quiet: Tokens without text make no event, unless their ids or log-probabilities were asked for.
        voice: Whose log-probabilities those of a prompt are.
    """

    prefix = "chatcmpl"
    stream_object = "chat.completion.chunk"
    running_usage = (*_COUNTS, "completion_tokens_details")

    def __init__(
        self,
        tokenizer: Tokenizer,
        ask: Ask,
        request_id: str | None,
        *,
        tool: str | None = None,
        required: bool = False,
        quiet: bool = False,
        voice: str = "",
    ) -> None:
        super().__init__(tokenizer, ask, request_id, voice=voice)
        self._tool = tool
        self._required = required
        self._quiet = quiet or tool is not None

    def opening(self) -> list[bytes]:
        """The role of each choice, and the tool's name."""
        more = {"prompt_token_ids": self._ids(self._ask.prompts[0]), "prompt_text": None}
        ends = {"logprobs": None, "finish_reason": None}
        delta = {"role": "assistant", "content": ""}
        events = [self._chunk({"index": i, "delta": delta, **ends}, i, **more) for i in range(self._ask.n)]
        for index in range(self._ask.n if self._tool else 0):
            call = {"id": _tool_id(), "type": "function", "index": 0, "function": {"name": self._tool}}
            named = {"index": index, "delta": {"content": None, "tool_calls": [call]}, **ends, "token_ids": None}
            events.append(self._chunk(named, index))
        return events

    def step(self, choice: int, step: Step) -> list[bytes]:
        """One token's delta."""
        self._said[choice] += 1
        wanted = self._ask.return_token_ids or step.logprob is not None or step.finish_reason is not None
        if self._quiet and not step.text and not wanted:
            return []
        written = {"index": choice, "delta": self._delta(step.text), "logprobs": self._logprobs([step.logprob])}
        written["finish_reason"] = self._finish(step.finish_reason)
        if step.finish_reason is not None:
            written["stop_reason"] = step.stop_reason
        return [self._chunk({**written, "token_ids": self._ids([step.token_id])}, choice)]

    def _delta(self, text: str) -> Json:
        if self._quiet and not text:
            return {}
        if self._tool is None:
            return {"content": text}
        return {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": text}}]}

    def _finish(self, reason: str | None) -> str | None:
        return "tool_calls" if self._tool and self._required and reason == "stop" else reason

    def whole(self, replies: Sequence[Reply]) -> Json:
        """The body when nothing is streamed."""
        completion = sum(len(reply.token_ids) for reply in replies)
        return {
            **self._envelope([self._choice(index, reply) for index, reply in enumerate(replies)]),
            "object": "chat.completion",
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage_of(self._prompt_tokens, completion),
            "prompt_logprobs": self._read(self._ask.prompts[0]),
            "prompt_token_ids": self._ids(self._ask.prompts[0]),
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int, reply: Reply) -> Json:
        message: Json = {"role": "assistant", "content": "" if self._tool else reply.text}
        message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
        if self._tool:
            call = {"name": self._tool, "arguments": reply.text}
            message["tool_calls"] = [{"id": _tool_id(), "type": "function", "function": call}]
        return {
            "index": index,
            "message": {**message, "reasoning": None},
            "logprobs": self._logprobs(reply.logprobs),
            "finish_reason": self._finish(reply.finish_reason),
            "stop_reason": reply.stop_reason,
            "token_ids": self._ids(reply.token_ids),
            "routed_experts": None,
        }

    def _logprobs(self, logprobs: Sequence[LogProb | None]) -> Json | None:
        if self._ask.logprobs is None:
            return None
        return {"content": [self._logprob(logprob) for logprob in logprobs if logprob is not None]}

    def _logprob(self, logprob: LogProb) -> Json:
        top = [self._named(token_id, likely) for token_id, likely in logprob.top[: self._ask.logprobs]]
        return {**self._named(logprob.token_id, logprob.logprob), "top_logprobs": top}

    def _named(self, token_id: int, logprob: float) -> Json:
        token = self._tokenizer.name(token_id)
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


class CompletionAnswer(_Counting):
    """`POST /v1/completions`."""

    prefix = "cmpl"
    stream_object = "text_completion"
    running_usage = _COUNTS

    def opening(self) -> list[bytes]:
        """Nothing comes before the first token."""
        return []

    def step(self, choice: int, step: Step) -> list[bytes]:
        """One token's text."""
        first = self._said[choice] == 0
        prompt = self._ask.prompts[choice // self._ask.n]
        echoed = self._tokenizer.decode(prompt) if first and self._ask.echo else ""
        written = {"index": choice, "text": echoed + step.text, "logprobs": self._logprobs([step.logprob], choice)}
        self._said[choice] += 1
        written |= {"finish_reason": step.finish_reason, "stop_reason": step.stop_reason}
        written |= {"prompt_token_ids": self._ids(prompt) if first else None, "token_ids": self._ids([step.token_id])}
        return [self._chunk(written, choice)]

    def whole(self, replies: Sequence[Reply]) -> Json:
        """The body when nothing is streamed."""
        completion = sum(len(reply.token_ids) for reply in replies)
        return {
            **self._envelope([self._choice(index, reply) for index, reply in enumerate(replies)]),
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage_of(self._prompt_tokens, completion),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int, reply: Reply) -> Json:
        prompt = self._ask.prompts[index // self._ask.n]
        return {
            "index": index,
            "text": (self._tokenizer.decode(prompt) if self._ask.echo else "") + reply.text,
            "logprobs": self._logprobs(reply.logprobs, index),
            "finish_reason": reply.finish_reason,
            "stop_reason": reply.stop_reason,
            "token_ids": self._ids(reply.token_ids),
            "prompt_logprobs": self._read(prompt),
            "prompt_token_ids": self._ids(prompt),
            "routed_experts": None,
        }

    def _logprobs(self, logprobs: Sequence[LogProb | None], choice: int) -> Json | None:
        if self._ask.logprobs is None:
            return None
        listed = [logprob for logprob in logprobs if logprob is not None]
        names = [self._tokenizer.name(logprob.token_id) for logprob in listed]
        offsets = [self._offsets[choice] + sum(map(len, names[:number])) for number in range(len(names))]
        self._offsets[choice] += sum(map(len, names))
        tops = [{self._tokenizer.name(token_id): likely for token_id, likely in one.top} for one in listed]
        likely = [one.logprob for one in listed]
        return {"text_offset": offsets, "token_logprobs": likely, "tokens": names, "top_logprobs": tops}


def _tool_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"
