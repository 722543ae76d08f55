"""What the audit log says of one event: who, what, when and with which end; never a prompt or an answer."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

__all__ = ["CONTROL", "MOST_DETAILS", "MOST_TEXT", "AuditEvent", "Detail", "EventKind", "encoded"]

CONTROL = "control"
"""The source of what control itself has to say."""
MOST_TEXT = 512
"""Characters of a text that are kept: clients choose some of them, as the name of a model that there is not."""
MOST_DETAILS = 32
"""How many details are kept of an event that has many."""

EventKind = Literal["admitted", "completed", "refused", "control", "read", "lost"]
Detail = str | int | float | bool | None


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. What is not known of it, or makes no sense for it, has its default and is not written.

    Attributes:
        source: Which journal it comes from, by a name that no other journal ever has, or `CONTROL`.
        seq: Its number there, from 1; 0 lets the log number it, for what has no journal.
        at: When it happened, Unix time in seconds, by its source's clock.
        event: `admitted`: a request may go to a replica. `completed`: it is over. `refused`: it was not let in.
            `control`: somebody changed something. `read`: somebody read the audit log. `lost`: `count` events of the
            source are not known.
        request_id: The request, as the client was told it.
        actor: Who, where it is no key: `local:NAME` for a user of the machine.
        tenant: Whose key it was.
        key_id: The key's public id, never the key.
        action: The route, or the operation of an admin.
        model: As the client named it.
        version: The digest of the adapter version that was used.
        base: The base model.
        replica: Which one got the request.
        region: Where that one runs.
        attempt: Which attempt at the request it was, from 1.
        decision: `allow` or `deny`.
        rule: What decided.
        status: The HTTP status.
        outcome: How it ended.
        prompt: Tokens of the prompt: how many, not which.
        completion: Tokens of the answer.
        estimated: Whether these numbers are a guess, because no engine has told them.
        count: How many events are lost, for `lost`.
        details: What else belongs to it.
    """

    source: str
    seq: int
    at: float
    event: EventKind
    request_id: str = ""
    actor: str = ""
    tenant: str = ""
    key_id: str = ""
    action: str = ""
    model: str = ""
    version: str = ""
    base: str = ""
    replica: str = ""
    region: str = ""
    attempt: int = 0
    decision: str = ""
    rule: str = ""
    status: int = 0
    outcome: str = ""
    prompt: int = 0
    completion: int = 0
    estimated: bool = False
    count: int = 0
    details: dict[str, Detail] = msgspec.field(default_factory=dict)


def encoded(event: AuditEvent) -> bytes:
    """The event as a JSON object; texts that are too long are cut, and what is no character becomes `?`.

    Raises:
        ValueError: Its time is no number, which only a mistake in our own code can cause.
    """
    if not math.isfinite(event.at):
        raise ValueError(f"event {event.seq} of {event.source} has no time")
    try:
        whole = msgspec.json.encode(event)
    except UnicodeEncodeError:
        return encoded(_repaired(event))
    return whole if len(whole) <= MOST_TEXT else msgspec.json.encode(_bounded(event))


def _texts(event: AuditEvent) -> list[tuple[str, str]]:
    return [(name, value) for name in event.__struct_fields__ if isinstance(value := getattr(event, name), str)]


def _bounded(event: AuditEvent) -> AuditEvent:
    texts = {name: text[:MOST_TEXT] for name, text in _texts(event)}
    kept = list(event.details.items())[:MOST_DETAILS]
    details = {name[:MOST_TEXT]: value[:MOST_TEXT] if isinstance(value, str) else value for name, value in kept}
    return msgspec.structs.replace(event, details=details, **texts)


def _repaired(event: AuditEvent) -> AuditEvent:
    """Text that is none would be refused for ever, and everything behind it with it."""
    texts = {name: _characters(text) for name, text in _texts(event)}
    details = {
        _characters(name): _characters(value) if isinstance(value, str) else value
        for name, value in event.details.items()
    }
    return msgspec.structs.replace(event, details=details, **texts)


def _characters(text: str) -> str:
    return text.encode(errors="replace").decode()
