"""What a request's headers say of its priority and of its deadline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from tuneplex.errors import BadRequest
from tuneplex.units import parse_duration

__all__ = ["SHARES", "Priority", "read_deadline", "read_priority"]


class Priority(StrEnum):
    """How a request stands to others of its own tenant; to those of other tenants it makes no difference."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


SHARES = {Priority.HIGH: 16.0, Priority.NORMAL: 4.0, Priority.LOW: 1.0}

_PRIORITIES = {priority.value.encode(): priority for priority in Priority}


def read_priority(headers: Mapping[bytes, bytes]) -> Priority:
    """By `x-tuneplex-priority`.

    Raises:
        BadRequest: It is none of the three.
    """
    given = headers.get(b"x-tuneplex-priority")
    if given is None:
        return Priority.NORMAL
    priority = _PRIORITIES.get(given.strip().lower())
    if priority is None:
        raise BadRequest("x-tuneplex-priority: must be high, normal or low.", code="invalid_priority")
    return priority


def read_deadline(headers: Mapping[bytes, bytes], since: float) -> float:
    """When the reply has to be complete, by `x-tuneplex-deadline`; infinite without one.

    Args:
        headers: Of the request.
        since: When it came, on any clock in seconds; the deadline is on the same one.

    Raises:
        BadRequest: It is no duration, or none at all.
    """
    given = headers.get(b"x-tuneplex-deadline")
    if given is None:
        return math.inf
    try:
        seconds = parse_duration(given.decode("latin-1"))
    except ValueError:
        seconds = 0.0
    if not seconds:
        raise BadRequest(
            "x-tuneplex-deadline: must be a duration of more than 0, for instance 30s or 1500ms.",
            code="invalid_deadline",
        )
    return since + seconds
