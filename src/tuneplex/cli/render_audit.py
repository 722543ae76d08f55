"""What the commands show of the audit log: pure functions from values to lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from tuneplex.cli.times import distance
from tuneplex.records.audit import AuditEvent, Picked, Report

__all__ = ["COLUMNS", "csv_head", "csv_row", "instant_text", "report"]

COLUMNS = ("n", *AuditEvent.__struct_fields__)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def report(found: Report, now: float) -> Iterator[str]:
    """What was found out, the worst first."""
    yield from (finding.words for finding in found.findings)
    if found.more:
        yield f"… and {found.more} more"
    if found.proven:
        yield (
            f"proven up to record {found.proven}, which was signed at {instant_text(found.at)}"
            f" ({distance(found.at, now)}) with the key {found.key_id}"
        )
        yield f"head {found.head}"
    else:
        yield f"nothing is proven: there is no checkpoint of the key {found.key_id} before the first mishap"
    if found.unsigned:
        yield f"{found.unsigned} records behind it are not signed{' yet' if found.ok else ''}"
    if found.dropped:
        yield f"the records up to {found.dropped} are gone by retention"


def instant_text(at: float) -> str:
    """A moment in UTC, to the millisecond: `2026-12-01T14:29:41.123Z`; one that no calendar has as it is."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(at)


class _Echo:
    """Where `csv` writes to get its line back."""

    def write(self, text: str) -> str:
        return text


_CSV = csv.writer(_Echo(), lineterminator="\n")


def csv_head() -> str:
    """The first line: the names of all columns."""
    return _line(COLUMNS)


def csv_row(picked: Picked) -> str:
    """An event as a line. A text that a spreadsheet would take for a formula gets a `'` in front: clients chose it."""
    members = msgspec.structs.asdict(picked.event) | {"at": instant_text(picked.event.at)}
    return _line((picked.n, *map(_cell, members.values())))


def _cell(value: object) -> object:
    """What has its default is empty, as it is left out of the log."""
    if isinstance(value, str):
        text = f"'{value}" if value.startswith(_FORMULA) else value
        return text if text.isprintable() else "".join(map(_visible, text))
    return msgspec.json.encode(value).decode() if value else ""


def _visible(character: str) -> str:
    """What a terminal would obey is not shown to it."""
    return character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"


def _line(cells: tuple[object, ...]) -> str:
    return str(_CSV.writerow(cells))
