"""Which streams can be continued on another replica, from their tokens, so that the client cannot tell the difference.

A stream goes on as a plain completion whose prompt is the first one's, in token ids, with those of the reply behind it.
That is exact only where the engine makes no difference between tokens of the prompt and of the reply, and where nothing
but the tokens is part of its state. So the fields that are understood are listed here, and a request with any other
field is not continued. What the lists are based on is vLLM's code:

- Chat and plain completions take the same sampling parameters, with the same defaults.
- Repetition penalties count prompt and reply alike; presence and frequency penalties count the reply only, and so do
  bad words of several tokens.
- A seed starts the random numbers anew with each request.
- Grammars, tools and parsers of thoughts keep a state of their own, and so do log-probabilities their offsets.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tuneplex.engines.usage import asking_aloud
from tuneplex.types import Route

__all__ = ["Terms", "asking_ids", "continuable"]

_IDS = "return_token_ids"
_TRUE = msgspec.Raw(b"true")
_NULL = msgspec.Raw(b"null")
_DEFAULT_LENGTH = 16  # of a plain completion that does not say how long it may be

# Sent with the continuation as they came.
_COPIED = frozenset(
    {
        "allowed_token_ids",
        "cache_salt",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "min_p",
        "model",
        "priority",
        "repetition_penalty",
        "session_id",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)
# Read here, done with once there is a prompt in token ids, or without any meaning to the engine.
_LEFT_OUT = frozenset({"max_tokens", "metadata", "min_tokens", "request_id", "service_tier", "store", _IDS})
_LEFT_OUT_OF_CHAT = frozenset(
    {
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "max_completion_tokens",
        "messages",
        "parallel_tool_calls",
        "reasoning_effort",
    }
)
_KNOWN = _COPIED | _LEFT_OUT | {"add_special_tokens", "prompt"}
_KNOWN_IN_CHAT = _COPIED | _LEFT_OUT | _LEFT_OUT_OF_CHAT
# Continued only where they say what would hold without them.
_NEUTRAL: Mapping[str, bytes] = {
    "bad_words": b"[]",
    "best_of": b"1",
    "echo": b"false",
    "frequency_penalty": b"0",
    "include_reasoning": b"true",
    "n": b"1",
    "presence_penalty": b"0",
    "tool_choice": b'"none"',
    "use_beam_search": b"false",
}
_NEUTRAL_IN_CHAT: Mapping[str, bytes] = {**_NEUTRAL, "logprobs": b"false", "top_logprobs": b"0"}
_LIST = ord("[")
_TEXT_FORMAT = {"type": "text"}


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request its continuation depends on.

    Attributes:
        chat: It came as a chat.
        fields: Those that the continuation has too, as they came.
        max_tokens: How long the reply may be; None for as long as the context lets it.
        min_tokens: It does not end before.
        stop: Strings that end it.
        include_stop: The string that ends it is part of it.
        skip_special: Special tokens are not part of its text.
        usage: The client wants to see the usage at the end.
        always: The client wants to see it in every event.
        shows_ids: The client wants to see the token ids.
    """

    chat: bool
    fields: dict[str, msgspec.Raw]
    max_tokens: int | None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    usage: bool = False
    always: bool = False
    shows_ids: bool = False

    @property
    def reach(self) -> int:
        """How many characters a stop string can have behind its first one."""
        return max(map(len, self.stop), default=1) - 1

    @property
    def hold(self) -> int:
        """How many characters the engine holds back, because a stop string may begin with them."""
        return 0 if self.include_stop else self.reach


class _Read(msgspec.Struct):
    """The fields that have to be understood. Who spells them in another way than JSON's is not continued."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    return_token_ids: bool | None = None


class _Message(msgspec.Struct):
    content: msgspec.Raw = _NULL


class _TextPart(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str


_messages = msgspec.json.Decoder(list[_Message])
_parts = msgspec.json.Decoder(list[_TextPart])
_prompts = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def asking_ids(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """The request's fields, with which the engine also tells the token ids."""
    return {**fields, _IDS: _TRUE}


def continuable(route: Route, fields: dict[str, msgspec.Raw]) -> Terms | None:
    """What a stream's continuation will need; None if there can be none.

    Args:
        route: By which the request came.
        fields: Of its body, as the client sent them.
    """
    if route not in {Route.CHAT, Route.COMPLETIONS} or fields.get("stream") != _TRUE:
        return None
    chat = route is Route.CHAT
    said = {name: raw for name, raw in fields.items() if raw != _NULL}
    try:
        if not _understood(said, chat=chat) or not _of_text(said, chat=chat):
            return None
        return _terms(said, chat=chat)
    except _BROKEN:
        return None


def _understood(said: dict[str, msgspec.Raw], *, chat: bool) -> bool:
    """Whether no field would make a difference that is not known here."""
    known, neutral = (_KNOWN_IN_CHAT, _NEUTRAL_IN_CHAT) if chat else (_KNOWN, _NEUTRAL)
    return all(name in known or _is_neutral(name, raw, said, neutral) for name, raw in said.items())


def _is_neutral(name: str, raw: msgspec.Raw, said: Mapping[str, msgspec.Raw], neutral: Mapping[str, bytes]) -> bool:
    if name == "tools":  # described in the prompt, but none is to be called
        return said.get("tool_choice") == msgspec.Raw(neutral["tool_choice"])
    if name == "response_format":
        return bool(_any.decode(raw) == _TEXT_FORMAT)
    if name not in neutral:
        return False
    value, wanted = _any.decode(raw), _any.decode(neutral[name])
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _of_text(said: Mapping[str, msgspec.Raw], *, chat: bool) -> bool:
    """Whether there is one prompt, and nothing in it but text: pictures have no token ids that say what they show."""
    if not chat:
        prompt = bytes(said.get("prompt", _NULL)).lstrip()
        if not prompt.startswith(b"["):
            return prompt.startswith(b'"')
        return prompt[1:].lstrip()[:1].isdigit() or len(_prompts.decode(prompt)) == 1
    contents = [message.content for message in _messages.decode(said["messages"])] if "messages" in said else []
    for content in contents:
        if memoryview(content)[0] == _LIST:
            _parts.decode(content)
    return bool(contents)


def _terms(said: dict[str, msgspec.Raw], *, chat: bool) -> Terms | None:
    names = _Read.__struct_fields__
    read = msgspec.convert({name: _any.decode(said[name]) for name in names if name in said}, _Read)
    wishes = asking_aloud(said)
    stop = (read.stop,) if isinstance(read.stop, str) else tuple(read.stop or ())
    most = _length(read, chat=chat)
    skip_special = read.skip_special_tokens is not False
    if wishes is None or "" in stop or (most is not None and most < 1):
        return None
    if not skip_special and read.spaces_between_special_tokens is False:
        return None  # vLLM leaves spaces out there that the tokenizer puts in
    return Terms(
        chat=chat,
        fields={name: raw.copy() for name, raw in said.items() if name in _COPIED},  # without the rest of the body
        max_tokens=most,
        min_tokens=max(0, read.min_tokens or 0),
        stop=stop,
        include_stop=read.include_stop_str_in_output is True,
        skip_special=skip_special,
        usage=wishes.usage,
        always=wishes.always,
        shows_ids=read.return_token_ids is True,
    )


def _length(read: _Read, *, chat: bool) -> int | None:
    if not chat:
        return _DEFAULT_LENGTH if read.max_tokens is None else read.max_tokens
    return read.max_tokens if read.max_completion_tokens is None else read.max_completion_tokens
