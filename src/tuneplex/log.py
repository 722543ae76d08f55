"""What is logged: an event in words and values by name, in one line whatever they hold, and without secrets."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, cast

import structlog

__all__ = ["MASK", "Values", "get_logger", "line_of", "safe", "values_of"]

MASK = "********"

Values = dict[str, Any]
Scalar = str | int | float | bool | None

# What secrets look like, wherever they turn up. Nothing should ever hand one over: this is the last line of defence.
_SECRETS = (
    (re.compile(r"\b(tpx-[a-z0-9]{12}-)[A-Za-z0-9]{8,}"), rf"\1{MASK}"),  # the keys of tenants, up to their ids
    (re.compile(r"\b(bearer\s+)[^\s\"',;]{8,}", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(://[^\s/:@]{0,256}:)\S{1,512}@"), rf"\1{MASK}@"),  # a password may hold almost anything
    (re.compile(r"\b((?:password|passwd|api[_-]?key|secret)[\"']?\s*[=:]\s*)[^\s,;]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"\b(sk-|hf_)[A-Za-z0-9_-]{16,}"), rf"\1{MASK}"),
)
# What is never written, by the name that it comes under: secrets, and what clients and engines say.
_UNSAID = frozenset(
    {"api_key", "authorization", "body", "content", "input", "messages", "password", "prompt", "secret", "token", "url"}
)
_LONGEST = 16_384  # characters of one text
_PLAIN = re.compile(r"[^\s\"'=\\]+")
_ATTRIBUTES = "tuneplex_event", "tuneplex_values"


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module, whose events go where the standard library's logger of this name sends its records.

    So whoever has set up nothing but `logging` sees them, too. What is below the level costs one comparison.
    """
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _as_record],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast("structlog.stdlib.BoundLogger", logger)


def values_of(record: logging.LogRecord) -> tuple[str, Values]:
    """The event of a record and its values: of a record that is not ours, all of its message is the event."""
    event, values = (getattr(record, name, None) for name in _ATTRIBUTES)
    return (event, values) if event is not None and values is not None else (safe(record.getMessage()), {})


def line_of(event: str, values: Mapping[str, object]) -> str:
    """An event in words and values by name, for people; both have been made safe."""
    return " ".join((event, *(f"{name}={_quoted(value)}" for name, value in values.items())))


def safe(text: str) -> str:
    """Without secrets, and without characters that end a line, move the cursor or cannot be seen; cut if it is long."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _as_record(_logger: object, _method: str, event: structlog.typing.EventDict) -> tuple[tuple[str], Values]:
    """What the standard library's logger is called with. Its message is complete, whoever formats it."""
    options = {name: event.pop(name) for name in ("exc_info", "stack_info") if name in event}
    words = safe(str(event.pop("event")))
    values = {name: MASK if name in _UNSAID else _safe_value(value) for name, value in event.items()}
    options["extra"] = dict(zip(_ATTRIBUTES, (words, values), strict=True))
    return (line_of(words, values),), options


def _safe_value(value: object) -> Scalar:
    return value if value is None or isinstance(value, bool | int | float) else safe(str(value))


def _quoted(value: object) -> str:
    """As it is where its end can be seen, else in quotation marks."""
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
