"""`audit`: the log of a fleet is verified, its head is printed, its events are exported, and that is written down."""

from __future__ import annotations

import csv
import json
import os
import pwd
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.audits import DAY_S, NOW, Clock, events
from tuneplex.app.state import StateDir
from tuneplex.cli.main import run
from tuneplex.records.audit import CONTROL, AuditEvent, AuditLog, Selection, selected

ME = f"local:{pwd.getpwuid(os.getuid()).pw_name}"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    """The state directory of a fleet that has ended; its log has three days of two tenants."""
    state = StateDir(tmp_path / "shop")
    state.create()
    clock = Clock()
    with AuditLog(state.audit, clock=clock) as log:
        log.append(events(1, 2))
        clock.now += DAY_S
        log.append(events(1, 2, "gateway-1", tenant="zeta"))
    monkeypatch.setenv("TUNEPLEX_STATE_DIR", str(state.path))
    return state


def reads(state: StateDir) -> list[AuditEvent]:
    """Who has read the log, as it says."""
    found = [picked.event for picked in selected(state.audit, Selection()) if picked is not None]
    return [event for event in found if event.event == "read"]


def test_whole_log(state: StateDir, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A log that nobody touched is proven by the key and the head that were kept elsewhere, without a warning."""
    assert run(["audit", "head"]) == 0
    head = capsys.readouterr().out.strip()
    (tmp_path / "kept.pem").write_bytes((state.audit / "public.pem").read_bytes())
    assert run(["audit", "verify", "--public-key", str(tmp_path / "kept.pem"), "--expect", head]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith(f"proven up to record {head.split(':')[0]}, which was signed at 2024")
    assert said.out.splitlines()[1:] == [f"head {head}"]
    assert said.err == ""
    assert run(["audit", "head", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["head"] == head


def test_changed_log(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed record is named, in words and in JSON, with exit code 1; a head that is not there is, too."""
    path = state.audit / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"acme"', b'"zeta"', 1))
    assert run(["audit", "verify"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("000001.jsonl line 3: record 3 was changed\n")
    assert "taken from beside the log" in said.err
    assert run(["audit", "verify", str(state.audit), "--json", "--expect", f"99:{'0' * 64}"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(one["what"], one["n"]) for one in report["findings"]] == [("changed", 3), ("cut", 10)]
    assert (report["ok"], report["proven"]) == (False, 2)


def test_line_without_an_end_is_told(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    """A last line that is being written is a warning, not a finding."""
    with (state.audit / "000002.jsonl").open("ab") as file:
        file.write(b'{"n":')
    assert run(["audit", "verify"]) == 0
    assert "the last line of 000002.jsonl has no end" in capsys.readouterr().err


@pytest.mark.usefixtures("state")
def test_export_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    """All events come as lines of JSON, and the last one says who reads them."""
    assert run(["audit", "export"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 1, 2, 1]
    assert (lines[-1]["event"], lines[-1]["actor"], lines[-1]["source"]) == ("read", ME, CONTROL)
    assert run(["audit", "verify"]) == 0


def test_export_of_a_part_as_a_table(state: StateDir, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of one tenant and one day, into a private file that is not replaced unasked; what was read is written down."""
    file = tmp_path / "zeta.csv"
    words = ["audit", "export", "--from", "2024-10-04", "--to", "2024-10-04", "--tenant", "zeta", "--format", "csv"]
    assert run([*words, "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"2 events are in {file}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert [(row["tenant"], row["seq"]) for row in rows] == [("zeta", "1"), ("zeta", "2")]
    (read,) = reads(state)
    assert (read.actor, read.tenant, read.action) == (ME, "zeta", "audit.export")
    assert read.details == {"from": "2024-10-04T00:00:00.000Z", "to": "2024-10-05T00:00:00.000Z", "format": "csv"}
    assert run([*words, "-o", str(file)]) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert len(reads(state)) == 1
    assert run([*words, "-o", str(file), "--force"]) == 0


def test_export_that_cannot_be_written_down_shows_nothing(
    state: StateDir, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """While another process writes the log, and where a file cannot be made, nothing is shown."""
    log = AuditLog(state.audit)
    assert run(["audit", "export"]) == 1
    log.close()
    said = capsys.readouterr()
    assert (said.out, "another process writes the audit log" in said.err) == ("", True)
    assert run(["audit", "export", "-o", str(tmp_path / "nowhere" / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_export_of_a_damaged_log(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    """What can be read is shown, what cannot is counted, and the exit code says so."""
    path = state.audit / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"kind":"event"', b'"kind":"EVENT"', 1))
    assert run(["audit", "export"]) == 1
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 4
    assert "1 lines cannot be read" in said.err


@pytest.mark.parametrize(
    "words, message",
    [
        (["verify", "--expect", "7"], "--expect: '7' is not a head"),
        (["export", "--from", "soon"], "--from: 'soon' is not a date or a time"),
        (["export", "--format", "xml"], "'xml' is not one of"),
    ],
)
def test_wrong_input(state: StateDir, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a person has got wrong is told with exit code 2, and nothing is read."""
    assert run(["audit", *words]) == 2
    assert message in capsys.readouterr().err
    assert reads(state) == []


def test_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no log that is said, and none is begun."""
    for words in (["verify"], ["head"], ["export"]):
        assert run(["audit", *words, "--state-dir", str(tmp_path)]) == 1
        assert capsys.readouterr().err.startswith("error: there is no ")
    assert not (tmp_path / "audit").exists()


class _Control(BaseHTTPRequestHandler):
    """Control's end of the admin socket, as far as `export` needs it."""

    server: _Server

    def do_POST(self) -> None:
        self.server.noted.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        pass


class _Server(socketserver.ThreadingUnixStreamServer):
    """Takes what is asked, and answers with one status."""

    def __init__(self, socket: Path) -> None:
        super().__init__(str(socket), _Control)
        self.noted: list[tuple[str, bytes]] = []
        self.status = 204


@pytest.fixture
def control(state: StateDir) -> Iterator[_Server]:
    """A fleet that seems to run: its lock is taken, and its admin socket answers."""
    lock = state.lock()
    state.open_run()
    server = _Server(state.admin_socket)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        state.close_run()
        os.close(lock)


def test_running_fleet_writes_down_who_reads(control: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    """While a fleet runs, its control process is asked to write it down, and only then something is shown."""
    assert run(["audit", "export", "--tenant", "acme"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    ((path, body),) = control.noted
    read = json.loads(body)
    assert (path, read["event"], read["actor"], read["tenant"]) == ("/audit/reads", "read", ME, "acme")


@pytest.mark.parametrize("status, message", [(404, "does not write down who reads"), (500, "answered 500")])
def test_fleet_that_does_not_write_it_down(
    control: _Server, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where control cannot write it down nothing is shown."""
    control.status = status
    assert run(["audit", "export"]) != 0
    said = capsys.readouterr()
    assert (said.out, message in said.err) == ("", True)


def test_times_of_the_fixture() -> None:
    """The dates in these tests are those of the events."""
    assert (NOW, DAY_S) == (1728003600.0, 86400.0)
