"""Server-sent events as bytes: cut a stream at the borders of its events."""

from __future__ import annotations

__all__ = ["EventFramer", "EventTooLargeError", "end_of_events"]

_BORDERS = (b"\n\n", b"\r\n\r\n")
_LONGEST_BORDER = 4


class EventTooLargeError(Exception):
    """One event is larger than the framer may hold."""


class EventFramer:
    """Gives back whole events and keeps what is not yet complete.

    Args:
        limit: The most bytes to keep for one event.
    """

    __slots__ = ("_limit", "held")

    def __init__(self, limit: int = 8 * 1024 * 1024) -> None:
        self._limit = limit
        self.held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the stream and return all events that are complete with them.

        Raises:
            EventTooLargeError: The incomplete event has grown over the limit.
        """
        if not self.held and data.endswith(_BORDERS):
            return data
        known = max(0, len(self.held) - _LONGEST_BORDER)
        self.held += data
        end = end_of_events(self.held, known, len(self.held))
        whole = bytes(self.held[:end])
        del self.held[:end]
        if len(self.held) > self._limit:
            raise EventTooLargeError
        return whole


def end_of_events(data: bytes | bytearray, start: int, end: int) -> int:
    """Where the last event in `data[start:end]` is over; 0 when none is."""
    return max(_end_of_last(border, data, start, end) for border in _BORDERS)


def _end_of_last(border: bytes, data: bytes | bytearray, start: int, end: int) -> int:
    at = data.rfind(border, start, end)
    return at + len(border) if at >= 0 else 0
