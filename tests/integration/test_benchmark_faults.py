"""The script that plays faults on gateways runs, and tells what it saw."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.faults.fault import Expected, Fault
from benchmarks.faults.faults import FAULTS
from benchmarks.faults.gates import KINDS
from benchmarks.faults.page import PAGE, cells, write_page
from benchmarks.faults.seen import End, Reply, Seen
from benchmarks.faults.verdict import problems, words

REPOSITORY = Path(__file__).parents[2]


def test_run_tells_what_it_saw(tmp_path: Path) -> None:
    """A gateway in processes of its own is played on as in the tests, and a client that leaves is noticed."""
    file = tmp_path / "result.json"
    script = REPOSITORY / "benchmarks" / "faults" / "run.py"
    command = [sys.executable, str(script), "--only", "leave-mid-stream,400-always", "--gateways", "tuneplex"]
    result = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    left, refused = json.loads(file.read_bytes())["rows"]
    assert left["words"] == "the client left; the engine's side is closed at once"
    assert refused["words"].startswith("error 400")
    assert "leave-mid-stream" in result.stdout


def test_names_are_unique_and_there_are_enough() -> None:
    """At least 20 faults, each with a name and a sentence of its own."""
    assert len(FAULTS) >= 20
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(fault.what.endswith(".") for fault in FAULTS)


def test_verdict_finds_what_is_wrong() -> None:
    """Another end, more tries than allowed, doubled parts, and an address in the reply are all problems."""
    fault = Fault(name="any", what="Any.", expected=Expected(tries=(2, 2)), first=FAULTS[5].first)
    whole = Reply(end=End.WHOLE, status=200)
    assert not problems(fault, Seen(replies=(whole,), tries=2))
    assert problems(fault, Seen(replies=(whole,), tries=3)) == ["3 tries instead of 2 to 2"]
    assert problems(fault, Seen(replies=(Reply(end=End.CUT),), tries=2)) == [
        "a cut connection instead of: the whole answer"
    ]
    doubled = Reply(end=End.WHOLE, status=200, doubled=("role",), leaks=True)
    assert problems(fault, Seen(replies=(doubled,), tries=2)) == ["doubled: role", "the engine's address is told"]


def test_words_say_how_a_reply_ended() -> None:
    """Status, code, `retry-after`, shape and the number of tries are told."""
    reply = Reply(end=End.REFUSED, status=503, code="engine_unreachable", retry_after=1, openai=True)
    fault = Fault(name="any", what="Any.", expected=Expected())
    assert words(fault, Seen(replies=(reply,), tries=3)) == "error 503 `engine_unreachable`, retry-after 1; 3 tries"
    assert words(fault, Seen(began=False)) == "does not start"


def test_page_is_written_between_its_marks(tmp_path: Path) -> None:
    """What is told is written, other cells and the text around them stay, and a page without marks is refused."""
    page = tmp_path / "faults.md"
    shutil.copy(PAGE, page)
    before, gateways = cells(page), [kind.name for kind in KINDS]
    write_page(page, FAULTS, gateways, {(FAULTS[0].name, "tuneplex"): "a | b"})
    after = cells(page)
    assert after[0] == [before[0][0], "a \\| b", *before[0][2:]]
    assert after[1:] == before[1:]
    assert page.read_text().splitlines()[0] == PAGE.read_text().splitlines()[0]
    page.write_text("nothing")
    with pytest.raises(BenchmarkError, match="comments"):
        write_page(page, FAULTS, gateways, {})
