"""Reading logs from their end while they grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneplex.cli.logfiles import Follower, follow, tail


@pytest.mark.parametrize("count", [0, 1, 3, 5000, 9999])
def test_tail_returns_the_last_lines(tmp_path: Path, count: int) -> None:
    """However many lines are asked for, they are the last ones, in order."""
    path = tmp_path / "a.log"
    lines = [f"line {number} {'x' * 40}" for number in range(5000)]
    path.write_text("\n".join(lines) + "\n")
    assert tail(path, count) == lines[len(lines) - min(count, len(lines)) :]


def test_tail_of_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """A process that has not written yet has no lines."""
    assert tail(tmp_path / "none.log", 5) == []


def test_tail_goes_back_into_older_files(tmp_path: Path) -> None:
    """A process that has just started again has few lines; why the last one ended stands in the file before."""
    (tmp_path / "a.log").write_text("new\n")
    (tmp_path / "a.log.1").write_text("middle\nout of memory\n")
    (tmp_path / "a.log.2").write_text("oldest\n")
    assert tail(tmp_path / "a.log", 1) == ["new"]
    assert tail(tmp_path / "a.log", 2) == ["out of memory", "new"]
    assert tail(tmp_path / "a.log", 99) == ["oldest", "middle", "out of memory", "new"]


def test_tail_survives_bytes_that_are_no_text(tmp_path: Path) -> None:
    """An engine may write anything."""
    path = tmp_path / "a.log"
    path.write_bytes(b"good\n\xff\xfe bad\n")
    assert tail(path, 2) == ["good", "\ufffd\ufffd bad"]


def test_follower_gives_whole_new_lines_only(tmp_path: Path) -> None:
    """Old lines are not repeated, and half a line waits for its other half."""
    path = tmp_path / "a.log"
    path.write_text("old\n")
    follower = Follower(path)
    with path.open("a") as file:
        file.write("new\nhal")
    assert list(follower.lines()) == ["new"]
    with path.open("a") as file:
        file.write("f\n")
    assert list(follower.lines()) == ["half"]
    assert list(follower.lines()) == []


def test_follower_reads_a_replaced_file_from_its_beginning(tmp_path: Path) -> None:
    """A process that starts again begins a new file, and none of its lines is lost."""
    path = tmp_path / "a.log"
    path.write_text("old run, long line\n")
    follower = Follower(path)
    path.rename(tmp_path / "a.log.1")
    assert list(follower.lines()) == []
    path.write_text("new run\n")
    assert list(follower.lines()) == ["new run"]


def test_following_several_files_names_each_line(tmp_path: Path) -> None:
    """A line comes with the name of the process that wrote it."""
    paths = {name: tmp_path / f"{name}.log" for name in ("a", "b")}
    seen: list[tuple[str, str]] = []
    look = follow(paths, lambda name, line: seen.append((name, line)))
    for name, path in paths.items():
        path.write_text(f"from {name}\n")
    look()
    assert seen == [("a", "from a"), ("b", "from b")]
