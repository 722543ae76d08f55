"""Meters: they see every event of a stream, count its tokens, and hide what only the gateway has asked for.

A meter reads nothing of the usual event: one search tells that it is one. The events that matter are few, the first
ones and the last ones, and only those are looked at closely.

An engine that is asked for the usage sends one more event, with it and without choices. It also changes others: vLLM
leaves `system_fingerprint` out of the event that ends a choice, because the last event has it, and OpenAI's own API
writes `"usage":null` into each. `HiddenUsage` takes all of that back.
"""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from tuneplex.engines.usage import Telling, Usage, read_usage

__all__ = ["OPENS", "HiddenUsage", "Meter", "Pattern", "ResponseUsage", "ShownUsage", "payload_of", "split_events"]

OPENS = b'"choices":['

_BORDERS = (b"\n\n", b"\r\n\r\n")
_LINES = 2  # its own and the empty one behind it
_DATA = b"data:"
_DONE = b"[DONE]"
_ORDINARY = b'"finish_reason":null'  # an event that ends no choice; the one with the usage has no such field
_USAGE = b'"usage"'
_CHOICES = b'"choices"'
_NULL = re.compile(rb',\s*"usage"\s*:\s*null')
_ENDS_CHOICE = re.compile(rb'"finish_reason"\s*:\s*"')
_FINGERPRINT = re.compile(rb',\s*"system_fingerprint"\s*:\s*"(?:[^"\\]|\\.)*"')
_FINGERPRINT_KEY = b'"system_fingerprint"'
# vLLM and OpenAI say first, for each choice, who speaks; no token has been said by that.
_OPENING = re.compile(rb'"role"\s*:\s*"\w+"\s*,\s*"content"\s*:\s*(?:""|null)')
_DELTA = re.compile(rb"^event: response\.\S+\.delta\r?$", re.MULTILINE)
_DELTA_ALONE = b'.delta"'
_MOST_HELD = 4096


class Pattern(msgspec.Struct, frozen=True):
    """How nearly all events of a stream begin and end: those that bring a token and nothing else.

    Attributes:
        begins: Up to where they differ.
        ends: From there on they are alike again; each of them ends no choice, and is one line.
        shown: What the client sees instead of `begins`, before the model's name is put in.
    """

    begins: bytes
    ends: bytes
    shown: bytes


class Meter(Protocol):
    """Counts one stream.

    Attributes:
        last: The events of the last call, as they came.
    """

    last: bytes

    def one(self, event: bytes) -> bytes:
        """Take one event of one line; what the client sees of it."""

    def many(self, events: bytes) -> bytes:
        """Take any number of whole events; what the client sees of them."""

    def pattern(self, event: bytes) -> Pattern | None:
        """How other events like this one look, which was taken; None if each has to be looked at."""

    def between(self, event: bytes) -> bytes:
        """Take one event of this pattern; what the client sees of it after its beginning. Empty: it is not of that."""

    def rest(self) -> bytes:
        """What was kept back, once nothing more comes."""

    def used(self) -> Usage:
        """What the stream has used up to now; without its prompt where that was not told (`Usage.exact`)."""


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw()


class _Told(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw()


class _ResponseEvent(msgspec.Struct):
    response: _Told | None = None


_chunk = msgspec.json.Decoder(_Chunk)
_response_event = msgspec.json.Decoder(_ResponseEvent)


class ShownUsage:
    """A stream whose usage the client sees: it has asked for it, or the engine cannot be asked."""

    __slots__ = ("_before", "_events", "_opening", "_start", "last")

    def __init__(self) -> None:
        self.last = b""
        self._before = b""
        self._start = 0
        self._events = 0
        self._opening = True

    def one(self, event: bytes) -> bytes:
        """Pass it on; see `Meter`."""
        self._before, self.last = self.last, event
        self._events += _CHOICES in event  # a comment, or `[DONE]`, has none
        if self._opening:
            self._open(event)
        return event

    def many(self, events: bytes) -> bytes:
        """Pass them on; see `Meter`."""
        if events:
            self._before, self.last = self.last, events
            self._events += events.count(_CHOICES)
            if self._opening:
                self._open(events)
        return events

    def pattern(self, event: bytes) -> Pattern | None:
        """By the last event; see `Meter`."""
        found = None if self._opening else _pattern_of(event)
        self._start = 0 if found is None else len(found.begins)
        return found

    def between(self, event: bytes) -> bytes:
        """Pass it on; see `Meter`."""
        self._before, self.last = self.last, event
        self._events += 1
        return event[self._start :]

    def rest(self) -> bytes:
        """Nothing is kept back."""
        return b""

    def used(self) -> Usage:
        """As the last events tell it, or by the events; see `Meter`."""
        done = self.last.rstrip().endswith(_DONE)
        counted = Usage(0, max(0, self._events), exact=False)
        for events in (self.last, self._before):
            for event in reversed(split_events(events)) if _USAGE in events else ():
                usage, choices = _read(event)
                if usage is None:
                    continue
                if done or choices == 0:
                    return usage
                # `continuous_usage_stats`: what this choice has used up to now
                return Usage(usage.prompt, max(usage.completion, counted.completion), usage.cached, exact=False)
        return counted

    def _open(self, events: bytes) -> None:
        roles = len(_OPENING.findall(events))
        self._events -= roles
        self._opening = bool(roles)


class HiddenUsage:
    """A stream that tells its usage because the gateway wants to know it: the client sees what it would have seen.

    Args:
        telling: What is known of the engine; it learns from this stream.
    """

    __slots__ = (
        "_careful",
        "_events",
        "_held",
        "_hides",
        "_null",
        "_opening",
        "_so_far",
        "_start",
        "_telling",
        "_told",
        "last",
    )

    def __init__(self, telling: Telling) -> None:
        self.last = b""
        self._telling = telling
        self._start = 0
        self._events = 0
        self._opening = True
        self._careful = True  # each event has to be looked at
        self._hides = True
        self._null = b""
        self._held: list[bytes] | None = None
        self._told: Usage | None = None
        self._so_far: Usage | None = None

    def one(self, event: bytes) -> bytes:
        """Pass it on, unless it is the one to hide; see `Meter`."""
        self.last = event
        if self._careful or event.rfind(_ORDINARY) < 0:  # it stands near the end, so this finds it soonest
            return self._look(event)
        self._events += 1
        return event

    def many(self, events: bytes) -> bytes:
        """Pass them on without the one to hide; see `Meter`."""
        if not events:
            return b""
        self.last = events
        count = _count(events)
        if self._careful or events.count(_ORDINARY) != count or _USAGE in events:
            return b"".join(map(self._look, split_events(events)))
        self._events += count
        return events

    def pattern(self, event: bytes) -> Pattern | None:
        """By the last event; see `Meter`."""
        found = None if self._careful else _pattern_of(event)
        self._start = 0 if found is None else len(found.begins)
        return found

    def between(self, event: bytes) -> bytes:
        """Pass it on; see `Meter`."""
        self.last = event
        self._events += 1
        return event[self._start :]

    def rest(self) -> bytes:
        """Events that wait for a fingerprint, which has not come."""
        return b"".join(self._unhold())

    def used(self) -> Usage:
        """As the hidden event tells it, or by the events; see `Meter`."""
        if self._told is not None:
            return self._told
        told = self._so_far or Usage(0, 0)
        return Usage(told.prompt, max(told.completion, self._events), told.cached, exact=False)

    def _look(self, event: bytes) -> bytes:
        """Look closely at one event."""
        if _CHOICES not in event:
            return self._other(event)
        if _USAGE in event and self._hide(event):
            return self._release()
        self._events += 1
        if self._opening:
            self._open(event)
        if self._null:
            event = event.replace(self._null, b"")
        if self._hides:
            event = self._end_choice(event)
        return event if self._held is None else self._hold(event)

    def _other(self, event: bytes) -> bytes:
        """`[DONE]`, or something strange."""
        if event.rstrip().endswith(_DONE):
            self._told = self._told or self._so_far
            if self._held is not None:
                self._telling.fingerprint = b""  # it has none to give
                return self.rest() + event
        return event if self._held is None else self._hold(event)

    def _hide(self, event: bytes) -> bool:
        """Read the usage; whether the event came for that reason only."""
        usage, choices = _read(event)
        if usage is None:
            return False
        if choices:  # the engine tells it without being asked, so the client would see it without us too
            self._so_far = usage
            self._hides = False
            return False
        self._told = usage
        if self._hides:
            found = _FINGERPRINT.search(event)
            self._telling.fingerprint = b"" if found is None else found[0]
        return self._hides

    def _open(self, event: bytes) -> None:
        self._opening = _OPENING.search(event) is not None
        self._events -= self._opening
        null = _NULL.search(event)
        if null is not None and self._hides:
            self._null = null[0]
        self._relax()

    def _relax(self) -> None:
        """Look only at what a search finds, unless there is a reason to look at everything."""
        self._careful = self._opening or bool(self._null) or self._held is not None

    def _end_choice(self, event: bytes) -> bytes:
        """Put the fingerprint back that would be there if nobody had asked for the usage."""
        if not _lacks_fingerprint(event):
            return event
        fingerprint = self._telling.fingerprint
        if fingerprint is not None:
            return _with(fingerprint, event)
        self._held = self._held or []
        self._careful = True
        return event

    def _hold(self, event: bytes) -> bytes:
        """Keep it until the fingerprint is known, which happens once for an engine."""
        held = self._held = self._held or []
        held.append(event)
        return self.rest() if len(held) > _MOST_HELD else b""

    def _unhold(self) -> list[bytes]:
        held, self._held = self._held or [], None
        self._relax()
        return held

    def _release(self) -> bytes:
        """What has waited, now that the fingerprint is known."""
        fingerprint = self._telling.fingerprint or b""
        return b"".join(_with(fingerprint, event) if _lacks_fingerprint(event) else event for event in self._unhold())


class ResponseUsage:
    """A stream of the Responses API, which tells its usage to everybody, in its last event."""

    __slots__ = ("_before", "_deltas", "last")

    def __init__(self) -> None:
        self.last = b""
        self._before = b""
        self._deltas = 0

    def one(self, event: bytes) -> bytes:
        """Pass it on; see `Meter`."""
        self._before, self.last = self.last, event
        self._deltas += _DELTA_ALONE in event
        return event

    def many(self, events: bytes) -> bytes:
        """Pass them on; see `Meter`."""
        if events:
            self._before, self.last = self.last, events
            self._deltas += len(_DELTA.findall(events))
        return events

    def pattern(self, event: bytes) -> Pattern | None:  # noqa: ARG002 - see `Meter`
        """None: its events have two lines."""
        return None

    def between(self, event: bytes) -> bytes:  # noqa: ARG002 - see `Meter`
        """There is no pattern."""
        return b""

    def rest(self) -> bytes:
        """Nothing is kept back."""
        return b""

    def used(self) -> Usage:
        """As the last event tells it, or by the pieces of text; see `Meter`."""
        for event in reversed(split_events(self._before + self.last)):
            try:
                response = _response_event.decode(payload_of(event)).response
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            usage = None if response is None else read_usage(response.usage)
            if usage is not None:
                return usage
        return Usage(0, self._deltas, exact=False)


def _pattern_of(event: bytes) -> Pattern | None:
    """By an event that ends no choice, or several of them."""
    start, end = event.find(OPENS) + len(OPENS), event.rfind(_ORDINARY)
    if not len(OPENS) <= start < end:
        return None
    return Pattern(event[:start], event[end:], event[:start])


def _count(events: bytes) -> int:
    return sum(map(events.count, _BORDERS))


def split_events(events: bytes) -> list[bytes]:
    """The events one by one, each with its border; an engine uses one kind of line ends."""
    border = _BORDERS[1] if events.endswith(_BORDERS[1]) else _BORDERS[0]
    return [event + border for event in events.split(border)[:-1]]


def payload_of(event: bytes) -> bytes:
    """What follows `data:`."""
    if event.startswith(_DATA) and event.endswith(_BORDERS) and event.count(b"\n") == _LINES:  # one line
        return event[len(_DATA) :]
    return next((line[5:] for line in event.splitlines() if line.startswith(b"data:")), b"")


def _read(event: bytes) -> tuple[Usage | None, int]:
    """The usage in an event, if there is one, and how many choices it has besides."""
    if _USAGE not in event:
        return None, 0
    try:
        chunk = _chunk.decode(payload_of(event))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, 0
    return read_usage(chunk.usage), len(chunk.choices or ())


def _lacks_fingerprint(event: bytes) -> bool:
    """Whether an event ends a choice and has no fingerprint."""
    return _ORDINARY not in event and _FINGERPRINT_KEY not in event and _ENDS_CHOICE.search(event) is not None


def _with(fingerprint: bytes, event: bytes) -> bytes:
    """The event with the fingerprint as the last field of its object, which is where vLLM has it."""
    end = event.rfind(b"}")
    return event[:end] + fingerprint + event[end:]
