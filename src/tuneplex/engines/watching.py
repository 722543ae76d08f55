"""Meters for streams that may be ended early: what each has used up to now, and how it is brought to a proper end.

They read every event, so only streams with such a limit have one. What the client sees is up to the meter that such a
stream would have had otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from tuneplex.engines.meters import Meter, Pattern, payload_of, split_events
from tuneplex.engines.usage import Usage, read_usage

__all__ = ["Watch", "WatchedChoices", "WatchedResponse"]

_MOST_CHOICES = 1024  # no engine makes more at a time
_DONE = b"data: [DONE]\n\n"
_CHAT = "chat.completion.chunk"
_USAGE_FIELD = re.compile(rb',\s*"usage"\s*:\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}')
_ADDED, _DELTA, _FINISHED = ".added", ".delta", ".done"

Json = dict[str, Any]


class Watch(Meter, Protocol):
    """A meter that also knows what is not over yet."""

    @property
    def open(self) -> bool:
        """Whether more is to come."""

    def so_far(self) -> Usage:
        """What the stream has used up to now; without its prompt where that was not told."""

    def ending(self, note: Mapping[str, str], usage: Usage | None) -> bytes:
        """Events that end it as a limit on its length would, with the engine's name of the model.

        Args:
            note: Why, for the field `tuneplex`.
            usage: To be told to the client; None if it has not asked for it.
        """


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    choices: list[_Choice] = []
    usage: msgspec.Raw = msgspec.Raw()


_chunk = msgspec.json.Decoder(_Chunk)
_event = msgspec.json.Decoder(Json)
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class WatchedChoices:
    """A stream of chat or plain completions, which may tell in each event what its choice has used up to then.

    Args:
        inner: Decides what the client sees.
        choices: How many are to be generated.
        prompts: For how many prompts; each has as many choices.
        shown: The client itself has asked for the usage in each event.
    """

    __slots__ = ("_choices", "_completion", "_finished", "_head", "_inner", "_of_a_prompt", "_prompt", "_shown", "last")

    def __init__(self, inner: Meter, *, choices: int, prompts: int, shown: bool) -> None:
        self.last = b""
        self._inner = inner
        self._choices = min(choices, _MOST_CHOICES)
        self._of_a_prompt = max(1, choices // max(1, prompts))
        self._shown = shown
        self._head: _Chunk | None = None
        self._finished: set[int] = set()
        self._completion: dict[int, int] = {}  # by choice
        self._prompt: dict[int, int] = {}  # by prompt

    def one(self, event: bytes) -> bytes:
        """Read it and pass on what the inner meter does; see `Meter`."""
        event = self.last = self._read(event)
        return self._inner.one(event)

    def many(self, events: bytes) -> bytes:
        """Read them and pass on what the inner meter does; see `Meter`."""
        if not events:
            return b""
        events = self.last = b"".join(map(self._read, split_events(events)))
        return self._inner.many(events)

    def pattern(self, event: bytes) -> Pattern | None:  # noqa: ARG002 - see `Meter`
        """None: each event is read."""
        return None

    def between(self, event: bytes) -> bytes:  # noqa: ARG002 - see `Meter`
        """There is no pattern."""
        return b""

    def rest(self) -> bytes:
        """What the inner meter has kept back."""
        return self._inner.rest()

    def used(self) -> Usage:
        """As the stream tells it at its end, or else with each event, or by the events; see `Meter`."""
        told = self._inner.used()
        return told if told.exact else self.so_far()

    @property
    def open(self) -> bool:
        """See `Watch`."""
        return len(self._finished) < self._choices

    def so_far(self) -> Usage:
        """See `Watch`."""
        if not self._prompt:
            return self._inner.used()
        return Usage(sum(self._prompt.values()), sum(self._completion.values()))

    def ending(self, note: Mapping[str, str], usage: Usage | None) -> bytes:
        """See `Watch`."""
        head = self._head or _Chunk()
        frame = {"id": head.id, "object": head.object, "created": head.created, "model": head.model}
        nothing: Json = {"delta": {}} if head.object == _CHAT else {"text": ""}
        chunks: list[Json] = [
            {
                **frame,
                "choices": [{"index": index, **nothing, "logprobs": None, "finish_reason": "length"}],
                "tuneplex": note,
            }
            for index in range(self._choices)
            if index not in self._finished
        ]
        if usage is not None:
            told = {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion}
            total = usage.prompt + usage.completion
            chunks.append({**frame, "choices": [], "usage": {**told, "total_tokens": total}})
        return b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks) + _DONE

    def _read(self, event: bytes) -> bytes:
        """Note what an event says; without the usage that only we have asked for."""
        try:
            chunk = _chunk.decode(payload_of(event))
        except _BROKEN:
            return event
        self._head = self._head or chunk
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                self._finished.add(choice.index)
        usage = read_usage(chunk.usage) if len(chunk.choices) == 1 else None
        if usage is None:
            return event
        index = chunk.choices[0].index
        self._completion[index] = usage.completion
        self._prompt[index // self._of_a_prompt] = usage.prompt
        return event if self._shown else _USAGE_FIELD.sub(b"", event, count=1)


class WatchedResponse:
    """A stream of the Responses API: its text is kept, because its last event has to repeat all of it.

    Args:
        inner: Counts it.
    """

    __slots__ = ("_closed", "_inner", "_items", "_number", "_over", "_parts", "_response", "_texts", "last")

    def __init__(self, inner: Meter) -> None:
        self.last = b""
        self._inner = inner
        self._response: Json = {}
        self._items: dict[int, Json] = {}  # by output index
        self._closed: set[int] = set()
        self._parts: dict[_Place, Json] = {}
        self._texts: dict[tuple[str, _Place], list[str]] = {}
        self._number = 0
        self._over = False

    def one(self, event: bytes) -> bytes:
        """Read it and pass it on; see `Meter`."""
        self.last = event
        self._read(event)
        return self._inner.one(event)

    def many(self, events: bytes) -> bytes:
        """Read them and pass them on; see `Meter`."""
        if events:
            self.last = events
            for event in split_events(events):
                self._read(event)
        return self._inner.many(events)

    def pattern(self, event: bytes) -> Pattern | None:  # noqa: ARG002 - see `Meter`
        """None: each event is read."""
        return None

    def between(self, event: bytes) -> bytes:  # noqa: ARG002 - see `Meter`
        """There is no pattern."""
        return b""

    def rest(self) -> bytes:
        """What the inner meter has kept back."""
        return self._inner.rest()

    def used(self) -> Usage:
        """See `Meter`."""
        return self._inner.used()

    @property
    def open(self) -> bool:
        """See `Watch`."""
        return not self._over

    def so_far(self) -> Usage:
        """See `Watch`."""
        return self._inner.used()

    def ending(self, note: Mapping[str, str], usage: Usage | None) -> bytes:
        """See `Watch`: everything that is open is done as far as it is, and then the response is incomplete."""
        events = [event for index in sorted(self._items) for event in self._item_ending(index)]
        told = None if usage is None else _usage_of_response(usage)
        response = {
            **self._response,
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": [self._items[index] for index in sorted(self._items)],
            "usage": told,
            "tuneplex": note,
        }
        events.append(("response.incomplete", {"response": response}))
        return b"".join(self._written(kind, fields) for kind, fields in events)

    def _item_ending(self, index: int) -> Iterator[tuple[str, Json]]:
        """What ends one item of the output that is not done."""
        if index in self._closed:
            return
        item = self._items[index]
        for (kind, place), pieces in self._texts.items():
            if place[0] == index:
                where = {"item_id": item.get("id"), "output_index": index, **_content(place)}
                name = "arguments" if kind.endswith("arguments") else "text"
                yield kind + _FINISHED, {**where, name: "".join(pieces)}
        content = []
        for place, part in self._parts.items():
            if place[0] == index:
                where = {"item_id": item.get("id"), "output_index": index, **_content(place)}
                done = {**part["part"], "text": self._text(place)}
                content.append(done)
                yield part["kind"] + _FINISHED, {**where, "part": done}
        item |= {"status": "incomplete"}
        if content:
            item["content"] = content
        elif "arguments" in item:
            item["arguments"] = self._text((index, None))
        yield "response.output_item.done", {"output_index": index, "item": item}

    def _text(self, place: _Place) -> str:
        return "".join(piece for (_, where), pieces in self._texts.items() if where == place for piece in pieces)

    def _written(self, kind: str, fields: Json) -> bytes:
        self._number += 1
        event = {"type": kind, "sequence_number": self._number, **fields}
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(event))

    def _read(self, event: bytes) -> None:
        try:
            fields = _event.decode(payload_of(event))
        except _BROKEN:
            return
        kind = str(fields.get("type", ""))
        if isinstance(number := fields.get("sequence_number"), int):
            self._number = number
        place: _Place = (fields.get("output_index", 0), fields.get("content_index"))
        match kind:
            case "response.created":
                self._response = fields.get("response", {})
            case "response.completed" | "response.incomplete" | "response.failed":
                self._over = True
            case "response.output_item.added":
                self._items[place[0]] = fields.get("item", {})
            case "response.output_item.done":
                self._items[place[0]] = fields.get("item", {})
                self._closed.add(place[0])
            case _:
                self._read_part(kind, place, fields)

    def _read_part(self, kind: str, place: _Place, fields: Json) -> None:
        if kind.endswith(_DELTA):
            self._texts.setdefault((kind.removesuffix(_DELTA), place), []).append(str(fields.get("delta", "")))
        elif kind.endswith(_ADDED) and isinstance(part := fields.get("part"), dict):
            self._parts[place] = {"kind": kind.removesuffix(_ADDED), "part": part}


_Place = tuple[int, int | None]
"""Index of the output, and of the content within it."""


def _content(place: _Place) -> Json:
    return {} if place[1] is None else {"content_index": place[1]}


def _usage_of_response(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }
