"""The body and the events of the Responses API, field by field as vLLM writes them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from tuneplex.testing.generation import Reply, Step
from tuneplex.testing.protocol import Ask, ResponsesRequest

__all__ = ["ResponsesAnswer"]

Json = dict[str, Any]
_TOOL_FIELDS = ("strict", "type", "allowed_callers", "async", "defer_loading", "description", "output_schema")


class ResponsesAnswer:
    """`POST /v1/responses`: one message, or one call of `tool`.

    Args:
        ask: What was asked.
        request: Much of it is echoed.
        tool: The function to call, or None.
    """

    def __init__(self, ask: Ask, request: ResponsesRequest, *, tool: str | None = None) -> None:
        self._ask = ask
        self._request = request
        self._tool = tool
        self._id = request.request_id or f"resp_{uuid.uuid4().hex[:16]}"
        self._item_id = f"{'fc' if tool else 'msg'}_{uuid.uuid4().hex[:16]}"
        self._call_id = f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"
        self._created = int(time.time())
        self._number = 0
        self._reply = Reply()

    def opening(self) -> list[bytes]:
        """The response exists, and one output item with nothing in it yet."""
        begun = self._body([], "in_progress")
        events = [self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")]
        events.append(self._event("response.output_item.added", item=self._item("in_progress"), output_index=0))
        if self._tool is None:
            part = {**_part(""), "logprobs": []}
            events.append(self._event("response.content_part.added", **self._place(), content_index=0, part=part))
        return events

    def step(self, choice: int, step: Step) -> list[bytes]:
        """One token's text, if it has any."""
        del choice
        self._reply.add(step)
        if not step.text:
            return []
        if self._tool:
            return [self._event("response.function_call_arguments.delta", **self._place(), delta=step.text)]
        more = {"content_index": 0, "delta": step.text, "logprobs": []}
        return [self._event("response.output_text.delta", **self._place(), **more)]

    def closing(self) -> list[bytes]:
        """The item is complete, and so is the response."""
        done = self._call_done() if self._tool else self._text_done()
        item = self._item("completed")
        done.append(self._event("response.output_item.done", item=item, output_index=0))
        return [*done, self._event("response.completed", response=self.whole([self._reply]))]

    def whole(self, replies: Sequence[Reply]) -> Json:
        """The body when nothing is streamed."""
        self._reply = replies[0]
        cut = self._reply.finish_reason == "length"
        body = self._body([self._item("completed")], "incomplete" if cut else "completed")
        body["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        body["usage"] = _usage(len(self._ask.prompts[0]), len(self._reply.token_ids))
        return body

    def _text_done(self) -> list[bytes]:
        text, place = self._reply.text, {**self._place(), "content_index": 0}
        return [
            self._event("response.output_text.done", **place, logprobs=[], text=text),
            self._event("response.content_part.done", **place, part=_part(text)),
        ]

    def _call_done(self) -> list[bytes]:
        more = {"arguments": self._reply.text, "name": self._tool}
        return [self._event("response.function_call_arguments.done", **self._place(), **more)]

    def _place(self) -> Json:
        return {"item_id": self._item_id, "output_index": 0}

    def _item(self, status: str) -> Json:
        done = status == "completed"
        if self._tool is None:
            content = [_part(self._reply.text)] if done else []
            more = {"content": content, "role": "assistant", "type": "message", "phase": None}
        else:
            more = {"arguments": self._reply.text if done else "", "call_id": self._call_id, "name": self._tool}
            more |= {"type": "function_call", "async": None, "caller": None, "namespace": None}
        return {"id": self._item_id, "status": status, **more}

    def _event(self, kind: str, **more: Any) -> bytes:  # noqa: ANN401 - the event's own JSON fields
        value = {**more, "sequence_number": self._number, "type": kind}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(value))

    def _body(self, output: list[Json], status: str) -> Json:
        asked = self._request
        return {
            "id": self._id,
            "created_at": self._created,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "metadata": asked.metadata,
            "model": self._ask.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": asked.parallel_tool_calls,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "tool_choice": asked.tool_choice if asked.tools else "none",
            "tools": [{**dict.fromkeys(_TOOL_FIELDS), **tool} for tool in asked.tools],
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "background": False,
            "max_output_tokens": self._ask.room,
            "service_tier": "auto",
            "status": status,
            "text": _text_config(asked.text),
            "truncation": "disabled",
            "usage": None,
            "user": asked.user,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            **dict.fromkeys(_EMPTY),
        }


_EMPTY = (
    "max_tool_calls",
    "previous_response_id",
    "prompt",
    "reasoning",
    "top_logprobs",
    "kv_transfer_params",
    "ec_transfer_params",
    "input_messages",
    "output_messages",
)


def _part(text: str) -> Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _text_config(text: Json | None) -> Json | None:
    if text is None:
        return None
    form = text.get("format")
    return {"verbosity": None, "format": form and {"description": None, "strict": None, **form}}


def _usage(prompt: int, completion: int) -> Json:
    turns = {"cached_tokens": 0, "cache_write_tokens": 0, "input_tokens_per_turn": [], "cached_tokens_per_turn": []}
    spent = {"reasoning_tokens": 0, "tool_output_tokens": 0}
    return {
        "input_tokens": prompt,
        "input_tokens_details": turns,
        "output_tokens": completion,
        "output_tokens_details": {**spent, "output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
        "total_tokens": prompt + completion,
    }
