"""What the commands show of the audit log."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest

from tuneplex.cli.render_audit import COLUMNS, csv_head, csv_row, instant_text, report
from tuneplex.cli.times import instant
from tuneplex.errors import UserError
from tuneplex.records.audit import AuditEvent, Finding, Picked, Report

WHOLE = Report(
    ok=True,
    proven=7,
    head="7:ab",
    at=100.0,
    key_id="k",
    unsigned=0,
    records=7,
    segments=1,
    dropped=0,
    incomplete="",
)


def test_whole_log_in_words() -> None:
    """A person reads how far the log is proven, since when, and by which key."""
    proven = "proven up to record 7, which was signed at 1970-01-01T00:01:40.000Z (2 minutes ago) with the key k"
    assert list(report(WHOLE, 220.0)) == [proven, "head 7:ab"]


def test_other_log_in_words() -> None:
    """What is wrong comes first; what is not signed and what is gone by retention is said."""
    finding = Finding("changed", "000001.jsonl", 9, 9, "record 9 was changed")
    found = msgspec.structs.replace(WHOLE, ok=False, unsigned=3, dropped=2, findings=(finding,), more=4)
    lines = list(report(found, 220.0))
    assert lines[:2] == ["record 9 was changed", "… and 4 more"]
    assert lines[-2:] == ["3 records behind it are not signed", "the records up to 2 are gone by retention"]
    nothing = list(report(msgspec.structs.replace(found, proven=0, head=""), 220.0))
    assert "nothing is proven" in nothing[2]


def cells(event: AuditEvent) -> dict[str, str]:
    """An event's line, by column."""
    (row,) = csv.DictReader(io.StringIO(csv_head() + csv_row(Picked(3, event, b""))))
    return row


def test_table_has_all_members() -> None:
    """Each member of an event is a column, and what is not known is empty."""
    row = cells(AuditEvent(source="g", seq=1, at=0.5, event="completed", estimated=True, details={"a": 1}))
    assert tuple(row) == COLUMNS
    assert {name: value for name, value in row.items() if value} == {
        "n": "3",
        "source": "g",
        "seq": "1",
        "at": "1970-01-01T00:00:00.500Z",
        "event": "completed",
        "estimated": "true",
        "details": '{"a":1}',
    }


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1"])
def test_formulas_are_texts(text: str) -> None:
    """A name that a client chose runs in nobody's spreadsheet; commas and quotes and newlines do no harm either."""
    assert cells(AuditEvent(source="g", seq=1, at=0, event="refused", model=text))["model"] == f"'{text}"
    odd = f'a,"b"\n{text}'
    assert cells(AuditEvent(source="g", seq=1, at=0, event="refused", model=odd))["model"] == odd


def test_terminals_are_not_given_orders() -> None:
    """Characters that a terminal would obey are exchanged: clients chose the text."""
    row = cells(AuditEvent(source="g", seq=1, at=0, event="refused", model="\x1b[2Jm\x9b\u202e"))
    assert row["model"] == "\ufffd[2Jm\ufffd\ufffd"


def test_time_that_no_calendar_has() -> None:
    """A source's clock may say anything; the number is shown then."""
    assert instant_text(1e300) == "1e+300"


@pytest.mark.parametrize(
    "text, end, at",
    [
        ("1970-01-02", False, 86400),
        ("1970-01-02", True, 2 * 86400),
        ("1970-01-02T01:00", True, 90000),
        ("1970-01-02 01:00:00Z", False, 90000),
        ("1970-01-02T01:00+01:00", False, 86400),
    ],
)
def test_dates_and_times(text: str, end: bool, at: int) -> None:  # noqa: FBT001 - a row of the table
    """A date is a whole day, a time is a moment, and both are in UTC unless they say otherwise."""
    assert instant(text, "--from", end=end) == at


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "9999-12-31"])
def test_what_is_no_time(text: str) -> None:
    """The option is named, and an example is shown."""
    with pytest.raises(UserError, match=r"--to: .* is not a date or a time") as refused:
        instant(text, "--to", end=True)
    assert "2026-12-01T08:30" in refused.value.hint
