"""What a client can see of one fault: values only."""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = ["End", "Reply", "Seen"]


class End(StrEnum):
    """How a reply ended, in the words of the table."""

    WHOLE = "the whole answer"
    FALSE = "looks whole, and is not"
    REFUSED = "error"
    EVENT = "an error event"
    EVENT_DONE = "an error event, then `[DONE]`"
    SHORT = "a proper end without `[DONE]`"
    CUT = "a cut connection"
    SILENCE = "nothing"
    LEFT = "the client left"


class Reply(msgspec.Struct, kw_only=True):
    """One reply as its client saw it.

    Attributes:
        end: How it ended.
        seconds: From the request to its end, or until the client gave up.
        status: Of its head; None if there was none.
        code: Of the error in it, where it says one.
        openai: The error has OpenAI's shape.
        retry_after: Of its head, seconds.
        leaks: The address of an engine can be read in it.
        events: How many events with `data` there were.
        doubled: What came twice and must not: role, usage, finish_reason, or different ids.
        text: What it says.
        size: Of the body, bytes.
    """

    end: End = End.SILENCE
    seconds: float = 0.0
    status: int | None = None
    code: str = ""
    openai: bool = False
    retry_after: int | None = None
    leaks: bool = False
    events: int = 0
    doubled: tuple[str, ...] = ()
    text: str = ""
    size: int = 0


class Seen(msgspec.Struct, kw_only=True):
    """All that was seen of one fault.

    Attributes:
        replies: In the order in which their requests were sent.
        tries: How many requests for them the engines got.
        began: No gateway served what the fault needs, so nothing was asked.
        closed_s: How soon the engine's side was closed after the client had left; None if it was not, for all patience.
        held_mb: How much the gateway took from the engine while its client read nothing.
        grown_mb: By how much the gateway's memory grew meanwhile; None where it has no process of its own.
        well_s: How long it took from the last fault of the engine to the next whole answer.
    """

    replies: tuple[Reply, ...] = ()
    tries: int = 0
    began: bool = True
    closed_s: float | None = None
    held_mb: float | None = None
    grown_mb: float | None = None
    well_s: float | None = None
