"""The events of chat and plain completions as vLLM writes them: read as far as a continuation needs, and written.

They are written byte for byte as vLLM writes them, so that a client finds no difference between one engine's events
and those that were translated from another's.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tuneplex.engines.meters import OPENS, payload_of

__all__ = ["CHAT", "COMPLETION", "DONE", "Chunk", "Form", "Writer", "envelope_of", "read_chunk", "without_ids"]

DONE = b"data: [DONE]\n\n"
_IDS = b'token_ids":['
_COUNTS = ("prompt_tokens", "total_tokens", "completion_tokens")
Json = dict[str, Any]


class Form(msgspec.Struct, frozen=True):
    """How an event looks that brings tokens and ends nothing.

    Attributes:
        opens: What comes before the text.
        closes: What comes between the text and the token ids, with the bracket that opens their list.
        ends: What comes after the ids.
    """

    opens: bytes
    closes: bytes
    ends: bytes = b"]}]}"


CHAT = Form(b'{"index":0,"delta":{"content":"', b'"},"logprobs":null,"finish_reason":null,"token_ids":[')
COMPLETION = Form(
    b'{"index":0,"text":"',
    b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[',
)


_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Delta(msgspec.Struct, forbid_unknown_fields=True):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct, forbid_unknown_fields=True):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[_Id] | None = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw()


class _Usage(msgspec.Struct):
    completion_tokens: int
    prompt_tokens_details: dict[str, Any] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    system_fingerprint: msgspec.Raw = msgspec.Raw()


class Chunk(msgspec.Struct, frozen=True):
    """What one event says.

    Attributes:
        text: New text of its choice; None if it has no choice.
        opening: It says who speaks.
        ids: The choice's new tokens; None if they are not told.
        prompt: The prompt's tokens, where they are told: numbers with commas between them. There can be very many.
        finish: Why the choice ends here; None if it does not.
        stop: What ended it.
        usage: Tokens of the reply, where they are told, and what is told in detail of the prompt's.
        fingerprint: As the engine writes it; empty for none.
    """

    text: str | None = None
    opening: bool = False
    ids: list[int] | None = None
    prompt: bytes = b""
    finish: str | None = None
    stop: str | int | None = None
    usage: tuple[int, dict[str, Any] | None] | None = None
    fingerprint: bytes = b""


_decoder = msgspec.json.Decoder(_Chunk)


def read_chunk(event: bytes) -> Chunk | None:
    """Read one event; None if it says anything that is not known here, or more than one choice."""
    try:
        read = _decoder.decode(payload_of(event))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    choice = read.choices[0] if read.choices else None
    if len(read.choices) > 1 or (choice is not None and choice.index):
        return None
    usage = None if read.usage is None else (read.usage.completion_tokens, read.usage.prompt_tokens_details)
    if choice is None:
        return Chunk(usage=usage, fingerprint=bytes(read.system_fingerprint))
    delta = choice.delta or _Delta()
    return Chunk(
        text=choice.text or delta.content or "",
        opening=delta.role is not None,
        ids=choice.token_ids,
        prompt=_numbers(read.prompt_token_ids) or _numbers(choice.prompt_token_ids),
        finish=choice.finish_reason,
        stop=choice.stop_reason,
        usage=usage,
        fingerprint=bytes(read.system_fingerprint),
    )


def _numbers(value: msgspec.Raw) -> bytes:
    numbers = bytes(value)[1:-1]
    return b"" if numbers.translate(None, b"0123456789,") else numbers


def envelope_of(event: bytes) -> bytes:
    """What all events of a stream begin with: its id, its time, the model; empty if there is no such thing."""
    at = event.find(OPENS)
    return event[:at] if at >= 0 else b""


def without_ids(event: bytes) -> bytes:
    """The event as it would have come if nobody had asked for the token ids.

    Text cannot be taken for them: in a JSON string every quote is written with a backslash before it.
    """
    while (at := event.find(_IDS)) >= 0:
        end = event.find(b"]", at)
        event = event[: at + len(_IDS) - 1] + b"null" + event[end + 1 :]
    return event


class Writer:
    """Writes the events of one stream.

    Args:
        envelope: See `envelope_of`.
        chat: As a chat; otherwise as a plain completion.
        prompt: How many tokens the prompt has.
        ids: The token ids are told.
    """

    def __init__(self, envelope: bytes, *, chat: bool, prompt: int, ids: bool) -> None:
        self._envelope = envelope
        self._chat = chat
        self._prompt = prompt
        self._ids = ids

    def choice(self, chunk: Chunk, said: int) -> bytes:
        """An event with tokens.

        Args:
            chunk: What it says.
            said: How many tokens the reply has with it.
        """
        if self._chat:
            written: Json = {"index": 0, "delta": {"content": chunk.text}, "logprobs": None}
        else:
            written = {"index": 0, "text": chunk.text, "logprobs": None}
        written["finish_reason"] = chunk.finish
        if not self._chat or chunk.finish is not None:
            written["stop_reason"] = chunk.stop
        if not self._chat:
            written["prompt_token_ids"] = None
        written["token_ids"] = chunk.ids if self._ids else None
        more: Json = {}
        if chunk.usage is not None:
            more["usage"] = self._counts(said) | ({"completion_tokens_details": None} if self._chat else {})
        return self._event([written], more, chunk.fingerprint)

    def usage(self, said: int, details: dict[str, Any] | None = None, fingerprint: bytes = b"") -> bytes:
        """The event with the whole usage.

        Args:
            said: How many tokens the reply has.
            details: What is told in detail of the prompt's tokens; the prompt was longer than the client's.
            fingerprint: As the engine writes it.
        """
        usage: Json = self._counts(said)
        if details is not None:
            cached = details.get("cached_tokens")
            known = {"cached_tokens": min(cached, self._prompt)} if isinstance(cached, int) else {}
            usage["prompt_tokens_details"] = details | known
        return self._event([], {"usage": usage}, fingerprint)

    def _counts(self, said: int) -> Json:
        return dict(zip(_COUNTS, (self._prompt, self._prompt + said, said), strict=True))

    def _event(self, choices: list[Json], more: Json, fingerprint: bytes) -> bytes:
        rest: Json = {"choices": choices, **more}
        if fingerprint:
            rest["system_fingerprint"] = msgspec.Raw(fingerprint)
        return self._envelope + msgspec.json.encode(rest)[1:] + b"\n\n"
