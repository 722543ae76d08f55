"""Log files that cannot fill the disk."""

from __future__ import annotations

import os
from pathlib import Path

from tuneplex.launchers.logfile import LogFile, open_log, read_tail


def test_a_full_file_moves_on(tmp_path: Path) -> None:
    """At its limit the file becomes number one, and the oldest one goes."""
    log = LogFile(tmp_path / "engine.log", limit=10, keep=2)
    for number in range(5):
        log.write(f"line {number}\n".encode())
    log.close()
    contents = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert contents == {"engine.log": "line 4\n", "engine.log.1": "line 3\n", "engine.log.2": "line 2\n"}


def test_each_start_has_a_file_of_its_own(tmp_path: Path) -> None:
    """The log of an earlier start is kept beside the new one, which starts empty."""
    path = tmp_path / "engine.log"
    path.write_text("why it died\n")
    LogFile(path).close()
    assert path.read_text() == ""
    assert (tmp_path / "engine.log.1").read_text() == "why it died\n"


def test_services_append(tmp_path: Path) -> None:
    """A log that is opened again goes on, until it is too large."""
    path = tmp_path / "control.log"
    for _start in range(2):
        os.close(open_log(path, limit=5))
        with path.open("a") as file:
            file.write("four")
    assert path.read_text() == "fourfour"
    os.close(open_log(path, limit=5))
    assert path.read_text() == ""


def test_the_tail_begins_with_a_line(tmp_path: Path) -> None:
    """The end of a long log starts at the beginning of a line, and a missing log is empty."""
    path = tmp_path / "engine.log"
    path.write_text("first\nsecond\nthird\n")
    assert read_tail(path, 9) == "third\n"
    assert read_tail(path) == "first\nsecond\nthird\n"
    assert read_tail(tmp_path / "none") == ""


def test_log_of_an_earlier_start_is_not_read(tmp_path: Path) -> None:
    """What an engine wrote before this start says nothing about this one."""
    path = tmp_path / "engine.log"
    path.write_text("serving\n")
    written = path.stat().st_mtime
    assert read_tail(path, since=written - 1) == "serving\n"
    assert read_tail(path, since=written + 1) == ""


def test_a_log_that_cannot_be_opened_stops_nobody(tmp_path: Path) -> None:
    """Lines are lost while there is no room for the file, and kept from the first one on that finds some."""
    directory = tmp_path / "logs"
    log = LogFile(directory / "engine.log")
    log.write(b"lost\n")
    directory.mkdir()
    log.write(b"kept\n")
    log.close()
    assert (directory / "engine.log").read_text() == "kept\n"


def test_a_log_that_cannot_move_on_goes_on_later(tmp_path: Path) -> None:
    """Where the old file cannot be moved, nothing more is written into it, and the next try begins a new one."""
    log = LogFile(tmp_path / "engine.log", limit=10, keep=1)
    log.write(b"line 0\n")
    (tmp_path / "engine.log.1").mkdir()
    log.write(b"line 1\n")
    (tmp_path / "engine.log.1").rmdir()
    log.write(b"line 2\n")
    log.close()
    contents = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert contents == {"engine.log": "line 2\n", "engine.log.1": "line 0\n"}


def test_a_service_starts_without_a_log(tmp_path: Path) -> None:
    """Where its log cannot be opened, what it says goes nowhere."""
    descriptor = open_log(tmp_path / "none" / "control.log")
    try:
        assert os.fstat(descriptor).st_rdev == Path(os.devnull).stat().st_rdev
    finally:
        os.close(descriptor)
