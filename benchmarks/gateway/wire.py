"""What travels in the benchmark: requests, replies and the bytes that each side expects to see."""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec

__all__ = ["CHUNKS", "KEY", "Asked", "Script", "client_request", "script"]

# The size of everything is fixed, so that figures of different runs can be compared.
CHUNKS = 50
_PROMPT_TOKENS = 300
_FIRST_ID = 1000
_CREATED = 1_700_000_000
_PROMPT = (
    "You are given a short e-mail. Find the name, the company and the telephone number of the sender and answer "
    "with one JSON object and nothing else; a field that the e-mail does not state is null. "
)
_WORDS = (" the", " contact", " is", " Ada", " Lovelace", " of", " Analytical", " Engines", ",", " London")
KEY = "sk-benchmark-0123456789abcdef0123456789abcdef"


class Asked(msgspec.Struct):
    """The fields of a request that the upstream looks at; `user` carries the number of the client's slot."""

    model: str
    user: str
    messages: list[dict[str, str]]
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    return_token_ids: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """One whole reply, cut where the upstream cuts it.

    Attributes:
        head: The HTTP head, which leaves together with the first piece.
        events: The payload of each piece: SSE events, or one JSON body.
        frames: The same pieces in the transfer coding that the head announces; the last one ends the reply.
    """

    head: bytes
    events: tuple[bytes, ...]
    frames: tuple[bytes, ...]


def client_request(slot: int, model: str, *, stream: bool) -> bytes:
    """A whole HTTP request of about 1.5 KB of JSON, for one slot of the load generator."""
    fields: dict[str, object] = {
        "model": model,
        "messages": [
            {"role": "system", "content": _PROMPT * 3},
            {"role": "user", "content": "Dear all, please call me back. " * 23},
        ],
        "max_tokens": CHUNKS,
        "temperature": 0.0,
        "stream": stream,
        "user": f"slot-{slot}",
    }
    if stream:
        fields["stream_options"] = {"include_usage": True}
    body = json.dumps(fields).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: benchmark\r\naccept: */*\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def script(slot: int, model: str, *, stream: bool, ids: bool = False) -> Script:
    """What the upstream answers to `slot` when it is asked for `model`; each slot and each chunk is different.

    Args:
        slot: Of the load generator.
        model: Whose name stands in the reply.
        stream: Events instead of one document.
        ids: With the ids of the tokens, as vLLM sends them when it is asked with `return_token_ids`.
    """
    return _stream_script(slot, model, ids=ids) if stream else _unary_script(slot, model)


def _stream_script(slot: int, model: str, *, ids: bool) -> Script:
    chunks = [_first_chunk(slot, model, ids=ids), *(_chunk(slot, model, index, ids=ids) for index in range(1, CHUNKS))]
    usage = {
        "prompt_tokens": _PROMPT_TOKENS,
        "completion_tokens": CHUNKS,
        "total_tokens": _PROMPT_TOKENS + CHUNKS,
    }
    chunks.append({**_envelope(slot, model, "chat.completion.chunk"), "choices": [], "usage": usage})
    events = (*(b"data: " + _json(chunk) + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n")
    head = (
        b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\nserver: uvicorn\r\n"
        b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    frames = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    frames[-1] += b"0\r\n\r\n"
    return Script(head, events, tuple(frames))


def _unary_script(slot: int, model: str) -> Script:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(_WORDS) * 2 + f" (slot {slot})", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": None,
    }
    body = _json(
        {
            **_envelope(slot, model, "chat.completion"),
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": {
                "prompt_tokens": 300,
                "total_tokens": 312,
                "completion_tokens": 12,
                "prompt_tokens_details": None,
            },
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "kv_transfer_params": None,
        }
    )
    head = (
        "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\nserver: uvicorn\r\n"
        f"content-length: {len(body)}\r\ncontent-type: application/json\r\n\r\n"
    )
    return Script(head.encode(), (body,), (body,))


def _envelope(slot: int, model: str, kind: str) -> dict[str, object]:
    return {"id": f"chatcmpl-{slot:032x}", "object": kind, "created": _CREATED, "model": model}


def _first_chunk(slot: int, model: str, *, ids: bool) -> dict[str, object]:
    """The one with the role; the prompt's ids come with it, as vLLM writes them."""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    prompt = [_FIRST_ID + number for number in range(_PROMPT_TOKENS)] if ids else None
    envelope = _envelope(slot, model, "chat.completion.chunk")
    return {**envelope, "choices": [choice], "prompt_token_ids": prompt, "prompt_text": None}


def _chunk(slot: int, model: str, index: int, *, ids: bool) -> dict[str, object]:
    delta = {"content": f"{_WORDS[index % len(_WORDS)]}{index}"}
    choice: dict[str, object] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    if index == CHUNKS - 1:
        choice |= {"finish_reason": "length", "stop_reason": None}
    choice["token_ids"] = [_FIRST_ID + index] if ids else None
    return {**_envelope(slot, model, "chat.completion.chunk"), "choices": [choice]}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
