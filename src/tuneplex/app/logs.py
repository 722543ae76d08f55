"""How the processes of a fleet write their logs: one line for each event, as text for people or as JSON."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.errors import TuneplexError
from tuneplex.log import Values, get_logger, line_of, safe, values_of
from tuneplex.types import Logs

__all__ = ["Lines", "log_as", "log_to"]

_LARGEST = 4 * 1024 * 1024
_OLDER = 3
_CHATTY = ("alembic", "httpx2", "httpcore2")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_as(process: str, state: StateDir) -> None:
    """Write to standard error from now on, in the way of the fleet that is described in this directory."""
    logs = Logs()
    with contextlib.suppress(TuneplexError, OSError):  # whoever needs the description says what is wrong with it
        logs = state.read_spec().logs
    _set_up(logging.StreamHandler(), process, logs)


def log_to(path: Path, process: str, logs: Logs) -> None:
    """Write to a file from now on, which begins anew before it is too large."""
    _set_up(RotatingFileHandler(path, maxBytes=_LARGEST, backupCount=_OLDER), process, logs)


def _set_up(handler: logging.Handler, process: str, logs: Logs) -> None:
    level = _LEVELS.get(logs.level, logging.INFO)
    handler.setFormatter(Lines(process, logs.format))
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler], force=True)
    logging.getLogger("tuneplex").setLevel(level)  # what libraries have to say for debugging may be anything
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # of each batch that is lost; ours says it once
    logging.captureWarnings(capture=True)
    sys.excepthook = _last_words


def _last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What ends a process is an event like any other."""
    get_logger(__name__).critical("the process ends by an error", exc_info=(kind, error, trace))


class Lines(logging.Formatter):
    """Makes lines of records, of ours and of any library's.

    Args:
        process: Who writes: `supervisor`, `control`, or the name of a gateway.
        form: `text` or `json`.
    """

    def __init__(self, process: str, form: str) -> None:
        super().__init__()
        self._process = process
        self._write: Callable[[Values, Values, str], str] = _json if form == "json" else _text

    def format(self, record: logging.LogRecord) -> str:
        """One line; in text, a traceback follows in lines that are indented."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event, values = values_of(record)
        head = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "event": event,
        }
        return self._write(head, values, self._trace(record))

    def _trace(self, record: logging.LogRecord) -> str:
        parts = (
            self.formatException(record.exc_info) if record.exc_info else "",
            self.formatStack(record.stack_info) if record.stack_info else "",
        )
        return "\n".join(filter(None, parts))


def _text(head: Values, values: Values, trace: str) -> str:
    line = "{time} {level:<7} {process} {logger}: ".format_map(head) + line_of(head["event"], values)
    # A message in the traceback may have lines of its own: none of them must look like one of ours.
    return "\n".join((line, *(f"    {safe(one)}" for one in trace.splitlines())))


def _json(head: Values, values: Values, trace: str) -> str:
    more = {"exception": "\n".join(map(safe, trace.splitlines()))} if trace else {}
    return msgspec.json.encode({**head, **more, **{name: values[name] for name in values if name not in head}}).decode()
