"""The audit log's writer: what it has taken is there, once, whatever ends it."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.audits import DAY_S, NOW, Clock, Files, events
from tuneplex.errors import AuditBusy, AuditError
from tuneplex.records.audit import CONTROL, AuditEvent, AuditLog, Report, checkpoint_due, newest_head
from tuneplex.records.audit.log import CHECKPOINT_S, IDLE_CHECKPOINT_S
from tuneplex.records.audit.segments import SegmentFile

SEGMENT = "000001.jsonl"


@pytest.fixture
def clock() -> Clock:
    """A clock that stands."""
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[AuditLog]:
    """An open log."""
    with AuditLog(tmp_path / "audit", clock=clock, patience_s=0) as log:
        yield log


def written(directory: Path) -> list[tuple[str, int, str]]:
    """Source, number and kind of all events, in the log's order."""
    lines = [json.loads(line) for path in sorted(directory.glob("0*.jsonl")) for line in path.read_text().splitlines()]
    return [(line["source"], line["seq"], line["event"]) for line in lines if line["kind"] == "event"]


def verdict(directory: Path) -> Report:
    """What `verify` says of a log."""
    files = Files(directory)
    return files.verify(files.segments)


def test_files_are_private(tmp_path: Path) -> None:
    """Nobody else can read the log, its key, or even its directory, however that was made."""
    (tmp_path / "audit").mkdir(mode=0o755)
    log = AuditLog(tmp_path / "audit")
    log.append(events(1, 1))
    log.close()
    modes = {path.name: path.stat().st_mode & 0o777 for path in log.directory.iterdir()}
    assert modes == dict.fromkeys([SEGMENT, "lock", "public.pem", "signing.pem"], 0o600)
    assert log.directory.stat().st_mode & 0o777 == 0o700


def test_events_are_there_when_append_returns(log: AuditLog) -> None:
    """What was appended is in the file, with the positions of its sources."""
    assert log.append([*events(1, 2), *events(1, 1, "gateway-1")]) == 3
    assert written(log.directory) == [
        ("gateway-0", 1, "admitted"),
        ("gateway-0", 2, "admitted"),
        ("gateway-1", 1, "admitted"),
    ]
    assert log.positions == {"gateway-0": 2, "gateway-1": 1}
    assert (log.unsigned, log.append([])) == (3, 0)


def test_event_has_all_that_it_says(log: AuditLog) -> None:
    """All members of an event are in its line, and those with a default are not."""
    event = AuditEvent(
        source="gateway-0", seq=1, at=NOW, event="completed", status=200, estimated=True, details={"a": 1, "b": None}
    )
    log.append([event])
    line = json.loads((log.directory / SEGMENT).read_text().splitlines()[-1])
    assert line | {"chain": ""} == {
        "n": 3,
        "kind": "event",
        "source": "gateway-0",
        "seq": 1,
        "at": NOW,
        "event": "completed",
        "status": 200,
        "estimated": True,
        "details": {"a": 1, "b": None},
        "chain": "",
    }


def test_journal_that_is_handed_over_again(log: AuditLog) -> None:
    """Events that are in the log are passed over, within one call and over calls."""
    log.append(events(1, 3))
    assert log.append([*events(2, 5), *events(4, 5)]) == 2
    assert [seq for _, seq, _ in written(log.directory)] == [1, 2, 3, 4, 5]


def test_numbers_may_have_gaps(log: AuditLog) -> None:
    """Not every entry of a journal is an event, so numbers only have to grow."""
    log.append([*events(3, 3), AuditEvent(source="gateway-0", seq=7, at=NOW, event="lost", count=4), *events(8, 8)])
    assert written(log.directory) == [
        ("gateway-0", 3, "admitted"),
        ("gateway-0", 7, "lost"),
        ("gateway-0", 8, "admitted"),
    ]


def test_control_needs_no_numbers(log: AuditLog) -> None:
    """What has no journal is numbered by the log."""
    own = AuditEvent(source=CONTROL, seq=0, at=NOW, event="control", action="keys.create")
    assert log.append([own, own]) == 2
    assert written(log.directory) == [("control", 1, "control"), ("control", 2, "control")]


def test_source_that_is_over_is_forgotten(log: AuditLog, clock: Clock) -> None:
    """The positions of sources that are over do not stay in each checkpoint for ever."""
    log.append([*events(1, 2), *events(1, 1, "gateway-1")])
    log.forget(["gateway-0", "nobody"])
    log.checkpoint()
    log.close()
    with AuditLog(log.directory, clock=clock) as again:
        assert again.positions == {"gateway-1": 1}


def test_text_that_somebody_chose_is_bounded(log: AuditLog) -> None:
    """A client cannot fill the log by a name that is long, nor stop it by one that is no text."""
    odd = AuditEvent(
        source="g", seq=1, at=NOW, event="refused", model="m" * 10**6, tenant="\ud800", details={"\ud800": "x" * 10**6}
    )
    log.append([odd])
    assert (log.directory / SEGMENT).stat().st_size < 4000
    assert verdict(log.directory).ok


def test_event_without_a_time_is_refused(log: AuditLog) -> None:
    """A time that is no number is a mistake in the program; nothing is written of that call."""
    with pytest.raises(ValueError, match="event 2 of gateway-0 has no time"):
        log.append([*events(1, 1), AuditEvent(source="gateway-0", seq=2, at=float("nan"), event="lost")])
    assert (written(log.directory), log.positions) == ([], {})


def test_only_one_process_writes(log: AuditLog) -> None:
    """A second writer is refused in words, until the first one has closed the log."""
    with pytest.raises(AuditBusy, match="another process writes the audit log") as refused:
        AuditLog(log.directory, patience_s=0.05)
    assert "only one can" in refused.value.hint


def test_positions_outlive_the_writer(tmp_path: Path, clock: Clock) -> None:
    """Opened again, a log knows where each source was, from checkpoints, from lines behind them and over segments."""
    with AuditLog(tmp_path, clock=clock, segment_bytes=2000) as log:
        for seq in range(1, 30):
            log.append([*events(seq, seq), *events(seq, seq, "gateway-1")])
        positions = dict(log.positions)
    with AuditLog(tmp_path, clock=clock, segment_bytes=2000) as log:
        assert log.positions == positions == {"gateway-0": 29, "gateway-1": 29}
        assert log.append(events(28, 31)) == 2
    assert len(list(tmp_path.glob("0*.jsonl"))) > 3
    assert verdict(tmp_path).ok


def _killed_at(source: Path, directory: Path, size: int, name: str = SEGMENT) -> None:
    """The directory as a kill leaves it when so many bytes of its newest segment have been written."""
    shutil.copytree(source, directory, dirs_exist_ok=True)
    with (directory / name).open("r+b") as file:
        file.truncate(size)


def test_killed_at_each_byte_of_a_write(tmp_path: Path, clock: Clock) -> None:
    """Wherever a write ends, what was there before stays, and the journal handed over again completes it, once."""
    with AuditLog(tmp_path / "a", clock=clock) as log:
        log.append(events(1, 2))
        before = (tmp_path / "a" / SEGMENT).stat().st_size
        log.append(events(3, 4))
        after = (tmp_path / "a" / SEGMENT).stat().st_size
        for size in range(before, after + 1):
            directory = tmp_path / "b"
            _killed_at(tmp_path / "a", directory, size)
            with AuditLog(directory, clock=clock) as again:
                assert again.positions["gateway-0"] in {2, 3, 4}
                assert again.torn == 0 or size not in {before, after}
                again.append(events(1, 5))
            assert [seq for _, seq, _ in written(directory)] == [1, 2, 3, 4, 5], size
    assert verdict(tmp_path / "b").ok


def test_killed_at_each_byte_of_a_checkpoint(tmp_path: Path, clock: Clock) -> None:
    """A checkpoint that was not written whole is not one; the log goes on without it, from the one before."""
    with AuditLog(tmp_path / "a", clock=clock) as log:
        first = log.signed
        log.append(events(1, 1))
        before = (tmp_path / "a" / SEGMENT).stat().st_size
        log.checkpoint()
        after = (tmp_path / "a" / SEGMENT).stat().st_size
        for size in range(before, after, 7):
            _killed_at(tmp_path / "a", tmp_path / "b", size)
            with AuditLog(tmp_path / "b", clock=clock) as again:
                assert (again.signed, again.unsigned, again.positions) == (first, 1, {"gateway-0": 1})
            assert verdict(tmp_path / "b").ok


@pytest.mark.parametrize("day", [0, 1])
def test_killed_at_each_byte_of_a_new_segment(tmp_path: Path, clock: Clock, day: int) -> None:
    """A segment that was only just begun is begun again, the first one of a log, too."""
    name = f"00000{day + 1}.jsonl"
    with AuditLog(tmp_path / "a", clock=clock) as log:
        for _ in range(day):
            log.append(events(1, 1))
            clock.now += DAY_S
            log.checkpoint()
        raw = (tmp_path / "a" / name).read_bytes()
        for size in range(0, raw.index(b"\n") + 2, 5):
            shutil.rmtree(tmp_path / "b", ignore_errors=True)
            _killed_at(tmp_path / "a", tmp_path / "b", size, name)
            with AuditLog(tmp_path / "b", clock=clock) as again:
                again.append(events(1, 3))
            assert [seq for _, seq, _ in written(tmp_path / "b")] == [1, 2, 3]
            assert verdict(tmp_path / "b").ok


def test_garbage_behind_the_last_line_is_cut(tmp_path: Path, clock: Clock) -> None:
    """Whole lines that are none, as a power failure leaves them, are cut off, too, and counted in bytes."""
    with AuditLog(tmp_path, clock=clock) as log:
        log.append(events(1, 2))
    with (tmp_path / SEGMENT).open("ab") as file:
        file.write(bytes(100) + b"\n" + bytes(20))
    with AuditLog(tmp_path, clock=clock) as log:
        assert (log.torn, log.damaged) == (121, 0)
        log.append(events(3, 3))
    assert verdict(tmp_path).ok


def test_changed_line_stays_for_verify(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A line that somebody changed does not stop the log and is not removed by it: `verify` still names it."""
    with AuditLog(tmp_path, clock=clock) as log:
        log.append(events(1, 3))
    raw = (tmp_path / SEGMENT).read_bytes()
    (tmp_path / SEGMENT).write_bytes(raw.replace(b'"seq":2', b'"seq":4'))
    with AuditLog(tmp_path, clock=clock) as log:
        assert (log.torn, log.damaged, log.append(events(4, 4))) == (0, 1, 1)
    assert "see `tuneplex audit verify`" in caplog.text
    assert [(finding.what, finding.line) for finding in verdict(tmp_path).findings] == [("changed", 4)]


def test_log_whose_first_line_was_changed_is_not_gone_on_with(tmp_path: Path, clock: Clock) -> None:
    """Nothing is known of a segment whose beginning is another one; the error says how a new log begins."""
    AuditLog(tmp_path, clock=clock).close()
    raw = (tmp_path / SEGMENT).read_bytes()
    (tmp_path / SEGMENT).write_bytes(raw.replace(b'"segment":1', b'"segment":2', 1))
    with pytest.raises(AuditError, match="its first line is not as it was written") as refused:
        AuditLog(tmp_path, clock=clock)
    assert "move it away" in refused.value.hint


def test_log_without_its_key(tmp_path: Path, clock: Clock) -> None:
    """A log whose key is gone, or another one, or none, is not gone on with: half of it could not be checked."""
    AuditLog(tmp_path / "a", clock=clock).close()
    AuditLog(tmp_path / "b", clock=clock).close()
    key = tmp_path / "a" / "signing.pem"
    other = (tmp_path / "b" / "signing.pem").read_bytes()
    for content, words in ((None, "is gone"), (b"nothing", "holds no private key"), (other, "with another key")):
        key.unlink(missing_ok=True)
        if content is not None:
            key.write_bytes(content)
        with pytest.raises(AuditError, match=words):
            AuditLog(tmp_path / "a", clock=clock)


def test_public_key_comes_back(tmp_path: Path, clock: Clock) -> None:
    """The public key follows from the private one, so its file is written again where it is gone."""
    AuditLog(tmp_path, clock=clock).close()
    pem = (tmp_path / "public.pem").read_bytes()
    (tmp_path / "public.pem").unlink()
    AuditLog(tmp_path, clock=clock).close()
    assert (tmp_path / "public.pem").read_bytes() == pem


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """What the system says is told with the directory's name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match=r"the audit log in .*file/audit cannot be written: Not a directory"):
        AuditLog(tmp_path / "file" / "audit")


_FULL = """
import resource, sys
from pathlib import Path
from tests.support.audits import events
from tuneplex.errors import AuditError
from tuneplex.records.audit import AuditLog
log = AuditLog(Path(sys.argv[1]))
log.append(events(1, 2))
size = (log.directory / "000001.jsonl").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 700, resource.RLIM_INFINITY))
try:
    log.append(events(3, 50))
except AuditError as error:
    print(error, "|", error.hint, "|", (log.directory / "000001.jsonl").stat().st_size == size, dict(log.positions))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(log.append(events(1, 50)))
log.close()
"""


def test_full_disk(tmp_path: Path) -> None:
    """A write that finds no room is an error that leaves nothing behind; with room again it succeeds."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", _FULL, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    error, count = done.stdout.splitlines()
    assert error.endswith("cannot be written: File too large | make room on its disk | True {'gateway-0': 2}")
    assert count == "48"
    assert [seq for _, seq, _ in written(tmp_path)] == list(range(1, 51))
    assert verdict(tmp_path).ok


def test_disk_that_does_not_sync(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk fails and even the way back does, the log takes nothing more until it is opened again."""

    def fail(_descriptor: int, _size: int = 0) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log.append(events(1, 1))
    with monkeypatch.context() as broken:
        broken.setattr("tuneplex.records.audit.segments.os.fsync", fail)
        with pytest.raises(AuditError, match="Input/output error"):
            log.append(events(2, 2))
        with pytest.raises(AuditError, match="takes nothing more"):
            log.append(events(2, 2))
    with pytest.raises(AuditError, match="takes nothing more"):
        log.checkpoint()
    assert log.positions == {"gateway-0": 1}
    log.close()
    with AuditLog(log.directory) as again:
        assert again.append(events(1, 3)) == 2
    assert [seq for _, seq, _ in written(log.directory)] == [1, 2, 3]


def test_next_segment_that_cannot_be_begun(log: AuditLog, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for a new segment nothing is lost and nothing half of one stays; later it succeeds."""
    log.append(events(1, 1))
    clock.now += DAY_S
    write = SegmentFile._write

    def full(file: SegmentFile, content: bytes) -> None:
        write(file, content[:100] if file.path.name != SEGMENT else content)
        if file.path.name != SEGMENT:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(SegmentFile, "_write", full)
        with pytest.raises(AuditError, match="No space left on device") as refused:
            log.append(events(2, 2))
    assert refused.value.hint == "make room on its disk"
    assert [path.name for path in log.directory.glob("0*")] == [SEGMENT]
    assert log.append(events(1, 2)) == 1
    assert log.append(events(1, 3)) == 1
    assert verdict(log.directory).segments == 2
    assert verdict(log.directory).ok


def test_new_day_has_a_new_segment(log: AuditLog, clock: Clock) -> None:
    """A segment ends with its day of UTC, by a checkpoint, also when nothing happens."""
    log.append(events(1, 1))
    clock.now += DAY_S
    signed = log.checkpoint()
    clock.now += DAY_S
    log.append(events(2, 2))
    ends = [json.loads(path.read_text().splitlines()[-1])["kind"] for path in sorted(log.directory.glob("0*"))]
    assert ends == ["checkpoint", "checkpoint", "event"]
    assert json.loads((log.directory / "000002.jsonl").read_text().splitlines()[0])["last_n"] == signed.n


def test_clock_that_is_set_back(log: AuditLog, clock: Clock) -> None:
    """A clock that jumps back begins no new segment, and neither order nor proof depend on it."""
    log.append(events(1, 1))
    clock.now -= 3 * DAY_S
    log.append(events(2, 2))
    log.checkpoint()
    clock.now += DAY_S
    log.append(events(3, 3))
    assert [path.name for path in log.directory.glob("0*")] == [SEGMENT]
    assert log.retain(0, clock.now) == 0
    assert verdict(log.directory).ok


def test_retention_drops_old_segments(log: AuditLog, clock: Clock) -> None:
    """Whole sealed segments go when they are old enough, the log says so, and the newest one always stays."""
    for day in range(4):
        log.append(events(day + 1, day + 1))
        clock.now += DAY_S
    assert log.retain(10 * DAY_S, clock.now) == 0
    assert log.retain(2.5 * DAY_S, clock.now) == 1
    assert log.retain(2.5 * DAY_S, clock.now) == 0
    assert log.retain(-1, clock.now) == 2
    assert [path.name for path in log.directory.glob("0*")] == ["000004.jsonl"]
    dropped = [json.loads(line) for line in (log.directory / "000004.jsonl").read_text().splitlines()]
    assert [line["through"] for line in dropped if line["kind"] == "dropped"] == [1, 3]
    assert verdict(log.directory).ok
    log.append(events(5, 5))
    assert (log.positions, verdict(log.directory).ok) == ({"gateway-0": 5}, True)


def test_retention_that_was_interrupted(log: AuditLog, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the word and the deed, the log still verifies, and the next time does the rest."""
    for day in range(3):
        log.append(events(day + 1, day + 1))
        clock.now += DAY_S

    def fail(_path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", fail)
        with pytest.raises(AuditError, match="Operation not permitted"):
            log.retain(0, clock.now)
    assert (verdict(log.directory).ok, verdict(log.directory).segments) == (True, 3)
    assert log.retain(0, clock.now) == 2
    assert verdict(log.directory).ok


def test_retention_stops_where_it_cannot_read(log: AuditLog, clock: Clock) -> None:
    """Segments go oldest first, and none whose end is not known, because somebody changed the line that says it."""
    for day in range(4):
        log.append(events(day + 1, day + 1))
        clock.now += DAY_S
    path = log.directory / "000003.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"last_n"', b'"LAST_N"', 1))
    assert log.retain(-1, clock.now) == 1
    assert [path.name for path in sorted(log.directory.glob("0*"))] == ["000002.jsonl", "000003.jsonl", "000004.jsonl"]


@pytest.mark.parametrize(
    "since, wrote, due",
    [
        (0, True, False),
        (CHECKPOINT_S - 1, True, False),
        (CHECKPOINT_S, True, True),
        (CHECKPOINT_S, False, False),
        (IDLE_CHECKPOINT_S, False, True),
        (-1, False, True),
    ],
)
def test_when_a_checkpoint_is_due(since: float, wrote: bool, due: bool) -> None:  # noqa: FBT001 - a row of the table
    """Soon after events, seldom without, and at once when the clock was set back."""
    assert checkpoint_due(NOW + since, NOW, wrote=wrote) is due


def test_newest_head_is_read_while_the_log_is_written(log: AuditLog, tmp_path: Path) -> None:
    """Whoever asks for the head gets the newest checkpoint, with or without lines behind it."""
    assert newest_head(tmp_path / "nothing") is None
    log.append(events(1, 1))
    signed = log.checkpoint()
    log.append(events(2, 2))
    assert newest_head(log.directory) == signed == log.signed
