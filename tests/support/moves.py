"""Streams of the fake's own making that are moved from engine to engine, without any network between."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import msgspec
from tokenizers import Tokenizer as BaseTokenizer

from tuneplex.engines.continuing import asking_ids, continuable
from tuneplex.engines.journal import Journal
from tuneplex.engines.meters import HiddenUsage, Meter, Pattern, ShownUsage
from tuneplex.engines.usage import OPTIONS, Telling, asking
from tuneplex.testing import Tokenizer
from tuneplex.testing.answers import ChatAnswer, CompletionAnswer
from tuneplex.testing.asks import Asker
from tuneplex.testing.generation import steps
from tuneplex.testing.protocol import ChatRequest, CompletionRequest
from tuneplex.types import Route

__all__ = [
    "CONTEXT",
    "DONE",
    "FINGERPRINT",
    "Heard",
    "Reader",
    "base_tokenizer",
    "events",
    "journal_of",
    "raw",
    "unbroken",
]

CONTEXT = 400
DONE = b"data: [DONE]\n\n"
FINGERPRINT = b',"system_fingerprint":"vllm-0.32.0-fake"'
TOKENIZER = Tokenizer()
Fields = dict[str, msgspec.Raw]


@cache
def base_tokenizer() -> BaseTokenizer:
    """The fake's tokenizer, as the gateway has it."""
    return BaseTokenizer.from_str(TOKENIZER.as_json())


def raw(**fields: object) -> Fields:
    """A request's fields."""
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in {"stream": True, **fields}.items()}


def events(route: Route, fields: Fields, *, groups: Sequence[int] = (1,), number: int = 1) -> Iterator[bytes]:
    """What a vLLM sends, so many tokens in an event, one number after another.

    Args:
        route: By which the request came.
        fields: Of its body.
        groups: Tokens of the first event, of the second, and so on, from the start again at the end.
        number: Of the engine; each has ids and times of its own.
    """
    body = {name: msgspec.json.decode(value) for name, value in fields.items()} | {"model": "base"}
    asker = Asker(TOKENIZER, CONTEXT)
    answer: ChatAnswer | CompletionAnswer
    if route is Route.CHAT:
        ask = asker.chat(msgspec.convert(body, ChatRequest), "base")
        answer = ChatAnswer(TOKENIZER, ask, f"r{number}")
    else:
        ask = asker.completion(msgspec.convert(body, CompletionRequest), "base")
        answer = CompletionAnswer(TOKENIZER, ask, f"r{number}")
    answer._created = 1700000000 + number
    yield from answer.opening()
    said = steps(TOKENIZER, ask, 0, "")
    sizes = cycle(groups)
    some: list[bytes] = []
    size = next(sizes)
    for step in said:
        some += answer.step(0, step)
        if step.finish_reason is not None or len(some) == size:
            yield _joined(some)
            some, size = [], next(sizes)
    yield from answer.closing()
    yield DONE


def _joined(some: list[bytes]) -> bytes:
    """One event for several tokens, as vLLM makes it when its front end is busy."""
    if len(some) == 1:
        return some[0]
    read = [json.loads(event[6:]) for event in some]
    whole = read[-1]
    choices = [chunk["choices"][0] for chunk in read]
    last = choices[-1]
    if "delta" in last:
        last["delta"]["content"] = "".join(choice["delta"]["content"] for choice in choices)
    else:
        last["text"] = "".join(choice["text"] for choice in choices)
        last["prompt_token_ids"] = choices[0]["prompt_token_ids"]
    if last["token_ids"] is not None:
        last["token_ids"] = [token_id for choice in choices for token_id in choice["token_ids"]]
    return b"data: %b\n\n" % msgspec.json.encode(whole)


def asked(fields: Fields) -> tuple[Fields, bool]:
    """The fields with which the usage is told, and whether the client has not asked for it."""
    options = asking(fields)
    return (fields, False) if options is None else ({**fields, OPTIONS: options}, True)


def _meter(*, hides: bool) -> Meter:
    return HiddenUsage(Telling(True, FINGERPRINT)) if hides else ShownUsage()


def journal_of(route: Route, fields: Fields) -> tuple[Journal, Fields]:
    """The journal of a stream, and the fields that the first engine gets."""
    terms = continuable(route, fields)
    assert terms is not None
    sent, hides = asked(asking_ids(fields))
    return Journal(terms, _meter(hides=hides), context=CONTEXT), sent


class Reader:
    """Has a meter look at the events of one engine as the gateway does: only at those that do not look like others."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._pattern: Pattern | None = None

    def one(self, event: bytes) -> bytes:
        """What the client sees of it."""
        pattern = self._pattern
        if pattern and event.startswith(pattern.begins) and event.endswith(pattern.ends):
            between = self._meter.between(event)
            if between:
                return pattern.shown + between
        shown = self._meter.one(event)
        self._pattern = self._meter.pattern(event)
        return shown


def unbroken(route: Route, fields: Fields, *, groups: Sequence[int] = (1,)) -> list[bytes]:
    """What the client gets of one engine that nobody asks for token ids."""
    sent, hides = asked(fields)
    meter = _meter(hides=hides)
    return [shown for event in events(route, sent, groups=groups) if (shown := meter.one(event))]


@dataclass
class Heard:
    """What a client has got."""

    events: list[bytes]

    def chunks(self) -> list[dict[str, Any]]:
        """Its events but the last, as JSON."""
        whole = b"".join(self.events)
        assert whole.endswith(DONE)
        assert whole.count(DONE) == 1
        return [json.loads(event[6:]) for event in whole[: -len(DONE)].split(b"\n\n")[:-1]]

    def summary(self) -> dict[str, Any]:
        """All that does not depend on how the tokens were divided among events."""
        chunks = self.chunks()
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        deltas = [choice["delta"] if "delta" in choice else {"content": choice["text"]} for choice in choices]
        return {
            "envelopes": {tuple(chunk[name] for name in ("id", "object", "created", "model")) for chunk in chunks},
            "text": "".join(delta.get("content") or "" for delta in deltas),
            "roles": [number for number, delta in enumerate(deltas) if "role" in delta],
            "ids": [token_id for choice in choices for token_id in choice.get("token_ids") or []],
            "prompt": [chunk.get("prompt_token_ids") for chunk in chunks if chunk.get("prompt_token_ids")],
            "finish": [
                (choice["finish_reason"], choice["stop_reason"]) for choice in choices if choice["finish_reason"]
            ],
            "ends": choices[-1]["finish_reason"] is not None,
            "usage": chunks[-1].get("usage") if not chunks[-1]["choices"] else None,
            "shapes": {(*chunk, *choice) for chunk in chunks for choice in chunk["choices"]},
        }
