"""The lines that a fleet's processes write."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from tuneplex.app.logs import Lines
from tuneplex.log import MASK, get_logger

NAME = "tuneplex.control.watch"
FORGED = "boom\n2026-01-01T00:00:00.000Z info    control forged: x\x1b[2J"
SECRET = "tpx-abcdefghijkl-" + "A" * 43


def _fail(words: str) -> None:
    raise ValueError(words)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Records of ours, and of a library that says things with a secret and line ends in them."""
    with caplog.at_level(logging.INFO):
        get_logger(NAME).info("answers again", replica="default-0", process="forged", waited_s=1.5, why=None)
        logging.getLogger("library").warning("%s\nsays %s", "it", "Bearer 0123456789")
        try:
            _fail(f"{FORGED} {SECRET}")
        except ValueError:
            get_logger(NAME).exception("a request failed", request_id="r-1")
    return caplog.records


def test_text_is_for_people(told: list[logging.LogRecord]) -> None:
    """Time, level, process, logger, event and values; no line of a traceback can pass for one of these."""
    lines = [Lines("control", "text").format(record) for record in told]
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    first = rf"{time} info    control {NAME}: answers again replica=default-0 process=forged waited_s=1.5 why=None"
    assert re.fullmatch(first, lines[0])
    assert re.fullmatch(rf"{time} warning control library: it\\nsays Bearer {re.escape(MASK)}", lines[1])
    event, *trace = lines[2].split("\n")
    assert event.endswith("a request failed request_id=r-1")
    assert all(line.startswith("    ") for line in trace)
    assert any("boom" in line for line in trace)
    assert "\x1b" not in lines[2]
    assert SECRET not in lines[2]


def test_json_is_for_programs(told: list[logging.LogRecord]) -> None:
    """Each event is one object in one line, and values cannot take the place of what says where it comes from."""
    lines = [Lines("gateway-0", "json").format(record) for record in told]
    assert all(line.isprintable() for line in lines)
    first, second, third = (json.loads(line) for line in lines)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    head: dict[str, Any] = {"level": "info", "logger": NAME, "process": "gateway-0", "event": "answers again"}
    assert first == {**head, "replica": "default-0", "waited_s": 1.5, "why": None}
    assert (second["logger"], second["event"]) == ("library", f"it\\nsays Bearer {MASK}")
    assert (third["event"], third["request_id"]) == ("a request failed", "r-1")
    assert "ValueError: boom" in third["exception"]
    assert SECRET not in lines[2]


def test_a_stack_is_a_part_of_its_event() -> None:
    """Where an event comes from is told with it, if that was asked for."""
    record = logging.LogRecord("library", logging.INFO, "x", 1, "here", (), None, sinfo="Stack:\n  File x")
    assert Lines("control", "text").format(record).endswith("here\n    Stack:\n      File x")
    assert json.loads(Lines("control", "json").format(record))["exception"] == "Stack:\n  File x"
