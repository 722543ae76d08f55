"""Whatever is done to an audit log, `verify` names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.audits import DAY_S, NOW, Clock, Files, events, small_log
from tuneplex.records.audit import AuditLog, Head, PublicKey, Report, newest_head, verify
from tuneplex.records.audit.chain import START, digest, seal, split
from tuneplex.records.audit.keys import Signer
from tuneplex.records.audit.segments import lines


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A log of three segments."""
    directory = tmp_path_factory.mktemp("whole") / "audit"
    small_log(directory)
    return Files(directory)


def head_of(line: bytes) -> Head:
    """The place of the chain that a line is."""
    found = split(line)
    assert found is not None
    return Head(found.n, found.chain)


def test_whole_log_is_proven(log: Files) -> None:
    """A log that nobody touched is proven up to its newest checkpoint."""
    head = head_of(log.lines[-1])
    report = log.verify(log.segments, head)
    assert (report.ok, report.findings, report.unsigned, report.segments) == (True, (), 0, 3)
    assert (report.proven, report.records, report.head) == (len(log.lines), len(log.lines), str(head))
    assert (report.at, report.key_id) == (NOW + 2 * DAY_S, log.key.id)


def test_chain_is_what_the_documentation_says(log: Files) -> None:
    """Each chain value is the SHA-256 of the one before and the line's bytes in front of it; no number is left out."""
    previous = START
    for n, raw in enumerate(log.lines, start=1):
        body, _, chain = raw.decode().rstrip('"}\n').partition(',"chain":"')
        assert body.startswith(f'{{"n":{n},')
        previous = digest(previous, body.encode())
        assert previous.hex() == chain


def test_each_byte_counts(tmp_path: Path) -> None:
    """Whichever byte is another one, the line that it is in is named, and no other one."""
    with AuditLog(tmp_path, clock=Clock()) as log:
        log.append(events(1, 1))
    files = Files(tmp_path)
    ((name, raw),) = files.segments.items()
    for at in range(len(raw)):
        report = _flip(files, name, at, 1 << at % 8)
        assert len({finding.line for finding in report.findings}) == 1, at


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_each_change_of_a_byte_counts(log: Files, data: st.DataObject) -> None:
    """Whatever a byte becomes, also a newline or a digit, the line that it is in is named first."""
    name = data.draw(st.sampled_from(sorted(log.segments)))
    at = data.draw(st.integers(0, len(log.segments[name]) - 1))
    byte = data.draw(st.integers(0, 255) | st.sampled_from(b'\n0123456789abcdef"{}, '))
    if log.segments[name][at] != byte:
        _flip(log, name, at, log.segments[name][at] ^ byte)


def _flip(log: Files, name: str, at: int, mask: int) -> Report:
    raw = bytearray(log.segments[name])
    raw[at] ^= mask
    report = log.verify(log.segments | {name: bytes(raw)})
    line = 1 + log.segments[name][:at].count(b"\n")
    assert not report.ok, (name, at, mask)
    assert (report.findings[0].segment, report.findings[0].line) == (name, line), (at, mask, report.findings)
    assert report.findings[0].n == 1 + log.places.index((name, line))
    assert report.proven < report.findings[0].n
    return report


def test_each_removed_line_is_named(log: Files) -> None:
    """A line that is missing is named by its number; at the end of the log only a head that was kept tells."""
    placed = [(name, line) for (name, _), line in zip(log.places, log.lines, strict=True)]
    for gone in range(len(placed)):
        kept = log.with_lines(placed[:gone] + placed[gone + 1 :])
        report = log.verify(kept, head_of(log.lines[-1]))
        assert not report.ok
        what = "cut" if gone == len(placed) - 1 else "removed"
        assert (report.findings[0].what, report.findings[0].n) == (what, gone + 1)


def test_several_heads(log: Files) -> None:
    """Of several heads all must be in the log; the first that is not, and what the last one proves gone, are named."""
    heads = [head_of(line) for line in log.lines]
    assert log.verify(log.segments, heads).ok
    wrong = [Head(head.n, bytes(32)) for head in heads[4:6]]
    found = log.verify(log.segments, [*heads, *wrong, Head(len(heads) + 7, bytes(32))]).findings
    assert [(one.what, one.n) for one in found] == [("cut", len(heads) + 1), ("rebuilt", 5)]


def test_heads_of_segments_that_were_dropped(tmp_path: Path) -> None:
    """Heads from before retention prove nothing, which matters only where there is no newer one."""
    small_log(tmp_path)
    heads = [head_of(line) for line in Files(tmp_path).lines]
    with AuditLog(tmp_path, clock=Clock(NOW + 3 * DAY_S)) as log:
        log.retain(1.5 * DAY_S, NOW + 3 * DAY_S)
        log.checkpoint()
    files = Files(tmp_path)
    assert "000001.jsonl" not in files.segments
    assert files.verify(files.segments, heads).ok
    assert [one.what for one in files.verify(files.segments, heads[:2]).findings] == ["removed"]


def test_each_repeated_line_is_named(log: Files) -> None:
    """A line that stands somewhere again is named there, with its own number."""
    placed = [(name, line) for (name, _), line in zip(log.places, log.lines, strict=True)]
    for at in range(len(placed)):
        for copied in range(at + 1):
            again = (placed[at][0], placed[copied][1])
            report = log.verify(log.with_lines([*placed[: at + 1], again, *placed[at + 1 :]]))
            found = report.findings[0]
            where = (log.places[at][0], log.places[at][1] + 1)
            assert (found.what, (found.segment, found.line), found.n) == ("moved", where, copied + 1)
            assert len(report.findings) == 1


def test_any_two_exchanged_lines_are_named(log: Files) -> None:
    """Where two lines have changed places, the first of the two is named first, and none of those between them."""
    names = [name for name, _ in log.places]
    for one in range(len(names)):
        for other in range(one + 1, len(names)):
            order = list(log.lines)
            order[one], order[other] = order[other], order[one]
            report = log.verify(log.with_lines(zip(names, order, strict=True)))
            assert not report.ok
            found = [(finding.segment, finding.line) for finding in report.findings]
            assert found[0] == log.places[one]
            assert set(found) <= {log.places[one], log.places[one + 1], log.places[other]}


@pytest.mark.parametrize("gone", [("000001",), ("000002",), ("000001", "000002")])
def test_removed_segment_is_named(log: Files, gone: tuple[str, ...]) -> None:
    """A segment that is missing, with no word of it in the log, is named as removed."""
    names = [f"{name}.jsonl" for name in gone]
    report = log.verify({name: raw for name, raw in log.segments.items() if name not in names})
    assert [(finding.what, finding.segment) for finding in report.findings] == [("removed", names[0])]
    assert all(name in report.findings[0].words for name in names)
    assert "missing" in report.findings[0].words


def test_exchanged_segments_are_named(log: Files) -> None:
    """Two files that have each other's names are not taken for each other."""
    a, b, c = log.segments.values()
    report = log.verify(dict(zip(log.segments, (a, c, b), strict=True)))
    assert "says that it begins segment 000003.jsonl" in " ".join(finding.words for finding in report.findings)


def test_cut_tail_is_found_by_a_head_that_was_kept(log: Files) -> None:
    """Cut back to an older checkpoint, a log still looks right by itself, and not to somebody who kept its head."""
    checkpoints = [at for at, line in enumerate(log.lines, start=1) if b'"kind":"checkpoint"' in line]
    names = [name for name, _ in log.places]
    for at in checkpoints[:-1]:
        cut = log.with_lines(list(zip(names, log.lines, strict=True))[:at])
        cut = {name: raw for name, raw in cut.items() if raw}
        assert log.verify(cut).ok
        report = log.verify(cut, head_of(log.lines[-1]))
        assert [finding.what for finding in report.findings] == ["cut"]
        assert f"ends with record {at}," in report.findings[0].words


def test_rebuilt_log_is_found_by_a_head_that_was_kept(log: Files, tmp_path: Path) -> None:
    """A log that was made anew with the right key is right by itself, and not the one whose head was kept."""
    with AuditLog(tmp_path, clock=Clock()) as other:
        other.append(events(1, 20))
        other.append(events(21, 30))
    anew = Files(tmp_path)
    assert anew.verify(anew.segments).ok
    report = anew.verify(anew.segments, head_of(log.lines[4]))
    assert [(finding.what, finding.n) for finding in report.findings] == [("rebuilt", 5)]


def test_chain_that_was_made_anew_lacks_a_signature(log: Files) -> None:
    """Whoever changes a record and all hashes behind it is stopped at the next checkpoint, which nothing can sign."""
    first = log.segments["000001.jsonl"].splitlines(keepends=True)
    previous, anew = START, b""
    for raw in first:
        line = split(raw)
        assert line is not None
        sealed, previous = seal(previous, line.body.replace(b'"seq":2', b'"seq":9'))
        anew += sealed
    report = log.verify({"000001.jsonl": anew})
    assert report.findings[0].what == "forged"
    assert re.search(r"line 5: record 5 .* the records 3 to 5 may have been made anew", report.findings[0].words)
    assert report.proven == 2


def test_last_records_have_only_the_chain(tmp_path: Path) -> None:
    """What follows the newest checkpoint is counted as unsigned, and can be made anew without a trace."""
    log = AuditLog(tmp_path, clock=Clock())
    log.append(events(1, 3))
    files = Files(tmp_path)
    assert (files.verify(files.segments).proven, files.verify(files.segments).unsigned) == (2, 3)
    log.close()
    assert Files(tmp_path).verify(Files(tmp_path).segments).unsigned == 0


def forged(previous: Head, n: int, text: str) -> bytes:
    """A line that somebody without the key has put behind the last one."""
    return seal(previous.chain, f'{{"n":{n},{text}'.encode())[0]


def test_retention_is_not_believed_without_a_signature(log: Files) -> None:
    """Whoever removes segments cannot excuse that by a line that says so: it would have to be signed."""
    first, last = log.segments["000001.jsonl"].splitlines(keepends=True)[-1], head_of(log.lines[-1])
    word = (
        f'"kind":"dropped","at":1.0,"through":1,"last_n":{head_of(first).n},"last_chain":"{head_of(first).chain.hex()}"'
    )
    rest = {name: raw for name, raw in log.segments.items() if name != "000001.jsonl"}
    rest["000003.jsonl"] += forged(last, last.n + 1, word)
    report = log.verify(rest)
    assert [finding.what for finding in report.findings] == ["removed"]
    assert report.dropped == 0


def test_numbers_without_a_signature_have_no_gap(log: Files) -> None:
    """A line that follows by its hash and not by its number is named, also where nothing is signed yet."""
    last = head_of(log.lines[-1])
    segments = log.segments | {
        "000003.jsonl": log.segments["000003.jsonl"] + forged(last, last.n + 5, '"kind":"event"')
    }
    assert [finding.what for finding in log.verify(segments).findings] == ["changed"]


def test_another_key_proves_nothing(log: Files, tmp_path: Path) -> None:
    """With somebody else's public key each checkpoint looks forged, and nothing is proven."""
    report = log.verify(log.segments, key=Signer.make(tmp_path).public)
    assert (report.ok, report.proven, report.head) == (False, 0, "")
    assert {finding.what for finding in report.findings} == {"forged"}


def test_no_log_is_not_a_proof(log: Files) -> None:
    """A directory without segments is told as such, and as cut where a head was kept."""
    assert [finding.what for finding in log.verify({}).findings] == ["empty"]
    assert [finding.what for finding in log.verify({}, Head(5, START)).findings] == ["empty", "cut"]


def test_dropped_segments_do_not_disturb(tmp_path: Path) -> None:
    """After retention the rest is proven; one more missing segment, or the word of it missing, is not."""
    small_log(tmp_path)
    old = Files(tmp_path)
    with AuditLog(tmp_path, clock=Clock(NOW + 2 * DAY_S)) as log:
        assert log.retain(DAY_S / 2, NOW + 2 * DAY_S) == 1
    files = Files(tmp_path)
    report = files.verify(files.segments)
    assert (report.ok, report.dropped, report.segments) == (True, old.segments["000001.jsonl"].count(b"\n"), 2)
    less = files.verify({"000003.jsonl": files.segments["000003.jsonl"]})
    assert [finding.what for finding in less.findings] == ["removed"]
    silent = files.verify({name: old.segments[name] for name in files.segments})
    assert [finding.what for finding in silent.findings] == ["removed"]


def test_heads_of_dropped_segments(tmp_path: Path) -> None:
    """A head from before retention proves nothing any more, except where the rest begins."""
    small_log(tmp_path)
    old = Files(tmp_path).lines
    with AuditLog(tmp_path, clock=Clock(NOW + 2 * DAY_S)) as log:
        log.retain(DAY_S / 2, NOW + 2 * DAY_S)
    files = Files(tmp_path)
    dropped = files.verify(files.segments).dropped
    assert files.verify(files.segments, head_of(old[dropped - 1])).ok
    report = files.verify(files.segments, head_of(old[dropped - 2]))
    assert "expect a newer one" in report.findings[0].words


def test_begin_of_the_remainder_must_be_there(log: Files) -> None:
    """Where the first line of what is left is gone, too, that is not taken for retention."""
    rest = log.segments["000003.jsonl"]
    for raw in (rest[rest.index(b"\n") + 1 :], b"nothing\n" + rest[rest.index(b"\n") + 1 :]):
        assert "removed" in {finding.what for finding in log.verify({"000003.jsonl": raw}).findings}


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_line_that_is_being_written(log: Files, cut: int) -> None:
    """A last line without its end is what a reader sees while it is written: it is told, and held against nobody."""
    last = max(log.segments)
    report = log.verify(log.segments | {last: log.segments[last][:-cut]})
    assert (report.ok, report.incomplete) == (True, last)


def test_findings_are_bounded(log: Files) -> None:
    """A file of garbage gives a number of findings that can be read, and says how many more there are."""
    report = log.verify({"000001.jsonl": b"garbage\n" * 1000})
    assert (len(report.findings), report.more) == (100, 900)


def test_endless_line_is_not_kept_in_memory(tmp_path: Path) -> None:
    """A line that never ends is read in pieces, and counts as one."""
    path = tmp_path / "000001.jsonl"
    path.write_bytes(b"x" * 9_000_000 + b"\nnext\n" + b"y" * 9_000_000)
    found = list(lines(path))
    assert [raw[:1] for raw in found] == [b"x", b"n", b"y"]
    assert max(len(raw) for raw in found) < 5_000_000
    assert found[0].endswith(b"\n")


def test_only_files_and_public_key_are_needed(tmp_path: Path) -> None:
    """A copy of the segments verifies elsewhere, where there is no private key, and stays as it is."""
    head = small_log(tmp_path / "here")
    there = tmp_path / "there"
    there.mkdir()
    for path in (tmp_path / "here").glob("0*.jsonl"):
        (there / path.name).write_bytes(path.read_bytes())
    key = PublicKey.read(tmp_path / "here" / "public.pem")
    assert verify(there, key, Head.parse(str(head))).ok
    signed = newest_head(there)
    assert signed is not None
    assert signed.head == head
    assert {path.suffix for path in there.iterdir()} == {".jsonl"}
