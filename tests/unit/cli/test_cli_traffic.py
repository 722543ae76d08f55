"""Days and moments that people type, tables of usage, and traces without names."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest

from tuneplex.cli import render_reconcile, render_usage, traffic
from tuneplex.cli.days import first_day, last_day, moment_of
from tuneplex.cli.terminal import Terminal, plain
from tuneplex.cli.trace import trace
from tuneplex.cli.usage import question
from tuneplex.control.usage_bodies import UsageReport, UsageRow, day_text
from tuneplex.errors import UserError
from tuneplex.journal import Finished, Tried
from tuneplex.records.reconcile import Bounds, Line, Share

NOW = 1_796_083_200.0 + 3600  # 2026-12-01T01:00
KEY = b"k" * 32


def finished(number: int, **more: object) -> Finished:
    """A request of the tenant acme."""
    fields: dict[str, object] = {
        "id": f"j/{number}", "request_id": "r", "arrived": NOW + number, "closed": NOW + number + 2, "tenant": "acme",
        "key_id": "k1", "model": "sql", "version": "", "route": "chat", "outcome": "complete", "prompt": 5,
        "completion": 7, "session": "s1", "attempts": [Tried("default-0", "default-0/1", "default", NOW)],
    }  # fmt: skip
    return Finished(**(fields | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text, first", [("7d", "2026-11-25"), ("1d", "2026-12-01"), ("2h", "2026-12-01"), ("2026-11-30", "2026-11-30")]
)
def test_the_first_day(text: str, first: str) -> None:
    """`7d` are today and the six days before it, and a date is that day."""
    assert day_text(first_day(text, "--since", NOW)) == first


def test_moments_are_of_utc() -> None:
    """A date means its beginning, or its end where something ends; a time without a zone is of UTC."""
    assert moment_of("2026-12-01", "--since", NOW) == NOW - 3600
    assert moment_of("2026-12-01", "--until", NOW, end=True) == NOW - 3600 + 86400
    assert moment_of("2026-12-01T01:00", "--until", NOW, end=True) == NOW
    assert moment_of("2026-12-01T02:00+01:00", "--since", NOW) == NOW
    assert moment_of("2h", "--since", NOW) == NOW - 7200
    assert day_text(last_day("2026-11-30", "--until", NOW)) == "2026-11-30"


@pytest.mark.parametrize("text", ["2026-13-01", "yesterday", "2026-12-01Tnoon", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    """The option at fault is named."""
    with pytest.raises(UserError, match="--since"):
        moment_of(text, "--since", NOW)


def test_options_become_a_question() -> None:
    """Options are what the admin API takes, and what is wrong is said before anybody is asked."""
    only = {"tenant": "acme", "key": None}
    asked = question("day, model", "7d", None, only, NOW)
    assert asked == {"by": "day,model", "tenant": "acme", "since": "2026-11-25"}
    with pytest.raises(UserError, match="--by"):
        question("colour", None, None, {}, NOW)
    with pytest.raises(UserError, match="--since"):
        question("day", "2026-12-03", "2026-12-01", {}, NOW)


def report(*rows: UsageRow, total: UsageRow, by: tuple[str, ...] = ("tenant", "model")) -> UsageReport:
    """What a fleet has used."""
    return UsageReport("2026-11-02", "2026-12-01", by, rows, total)


def test_usage_is_a_table_with_a_total() -> None:
    """Numbers have separators, who is unknown is a dash, and what is estimated stands apart."""
    rows = (
        UsageRow({"tenant": "acme", "model": "sql"}, 1000, 12345, 5, 600, 2, 30, 40),
        UsageRow({"tenant": "", "model": ""}, 3),
    )
    total = UsageRow({}, 1003, 12345, 5, 600, 2, 30, 40)
    lines = [line.split() for line in plain(render_usage.usage(report(*rows, total=total))).splitlines()]
    assert lines == [
        ["TENANT", "MODEL", "REQUESTS", "PROMPT", "CACHED", "COMPLETION", "ESTIMATED"],
        ["acme", "sql", "1,000", "12,345", "5", "600", "2"],
        ["-", "-", "3", "0", "0", "0"],
        ["total", "1,003", "12,345", "5", "600", "2"],
        ["of", "which", "estimated", "2", "30", "40"],
    ]


def test_usage_of_nothing() -> None:
    """Without requests there is one word, and everything together is the total alone."""
    assert plain(render_usage.usage(report(total=UsageRow({})))) == "no requests"
    whole = plain(render_usage.usage(report(total=UsageRow({}, 2, 3), by=())))
    assert whole.splitlines()[1].split() == ["total", "2", "3", "0", "0"]


def test_csv_has_exact_numbers() -> None:
    """The names are those of JSON, and names with commas come back whole."""
    rows = (UsageRow({"tenant": "a,b", "model": "sql"}, 1000, 12345),)
    found = list(csv.DictReader(io.StringIO(render_usage.usage_csv(report(*rows, total=rows[0])))))
    assert found[0] | {"tenant": "a,b", "requests": "1000", "prompt_tokens": "12345"} == found[0]


def test_each_start_of_an_engine_says_what_its_numbers_mean() -> None:
    """A difference without an explanation is said in words, with its size."""
    shares = {"over": Share(3, Bounds(30, 30), Bounds(60, 60)), "left": Share(1, Bounds(0, 9), Bounds(4, None))}
    line = Line("default-0/1", "default-0", "default", 1.0, 2.0, 50, 70, shares, 11, -2, "unexplained")
    page = plain(render_reconcile.engines([line]))
    assert "4 or more" in page
    assert "0 to 9" in page
    (meaning,) = render_reconcile.meanings([line])
    assert "read 11 tokens for requests that came by another way" in meaning
    assert "written 2 tokens more than it has counted" in meaning


def test_a_trace_has_no_names() -> None:
    """A head with units, then sizes and times; the same tenant has the same hash, in this export only."""
    requests = [finished(1), finished(2, session=""), finished(3, attempts=[])]
    head, first, second = [json.loads(line) for _done, line in trace(requests, NOW, NOW + 10, KEY)]
    assert (head["format"], head["version"], head["start"]) == ("tuneplex-traffic", 1, NOW)
    assert set(head["units"]) <= set(first)
    assert (first["at"], first["prompt"], first["completion"], first["took"]) == (1.0, 5, 7, 2.0)
    assert first["tenant"] == second["tenant"] != "acme"
    assert first["session"] not in {"", "s1", first["tenant"]}
    assert second["session"] == ""
    (_, other), *_ = list(trace(requests, NOW, NOW + 10, b"another"))[1:]
    assert json.loads(other)["tenant"] != first["tenant"]


def test_a_key_is_made_once_and_kept(tmp_path: Path) -> None:
    """The key's file is for this user only, and something else in it is refused."""
    path = tmp_path / "key"
    made = traffic._key(path)
    assert traffic._key(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("secret")
    with pytest.raises(UserError, match="holds no key"):
        traffic._key(path)


def test_a_long_export_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From the third second on, and not before; the lines go out as they come."""
    seconds = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    written = io.BytesIO()
    lines = ((at / 2000, b"%d\n" % at) for at in range(2001))
    assert traffic._write(lines, written, Terminal.standard()) == 2000
    assert written.getvalue().count(b"\n") == 2001
    assert "writing requests" in capsys.readouterr().err
    assert traffic._write(iter([(0.0, b"head\n")]), written, Terminal.standard()) == 0
    assert capsys.readouterr().err == ""
