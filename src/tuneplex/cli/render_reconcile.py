"""What `usage reconcile` shows: pure functions from values to sheets and lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tuneplex.cli.terminal import Cell, Sheet
from tuneplex.cli.times import moment
from tuneplex.records.reconcile import Bounds, Line, Share

__all__ = ["engines", "meanings"]

_COLUMNS = ("ENGINE", "", "ATTEMPTS", "PROMPT", "COMPLETION")
_CLASSES = {
    "over": "requests that are over",
    "under_way": "under way now",
    "left": "clients that left",
    "failed": "failed, stopped or moved",
    "crashed": "a gateway crashed",
    "edge": "at the edge of what was seen",
}
_STYLES = {"exact": "green", "explained": "green", "cached": "yellow", "added_up": "yellow", "unexplained": "red"}


def engines(lines: Sequence[Line]) -> Sheet:
    """Some rows for each start of an engine: what it has counted, and what requests say of it."""
    return Sheet(
        columns=_COLUMNS,
        rows=tuple(row for line in lines for row in _rows(line)),
        empty="no engine has told what it has counted",
        right=frozenset(_COLUMNS[2:]),
        flexible=frozenset({_COLUMNS[0]}),
    )


def _rows(line: Line) -> Iterator[tuple[Cell, ...]]:
    style = _STYLES[line.verdict]
    name, counted = Cell(line.engine, "bold"), (Cell(f"{line.prompt:,}"), Cell(f"{line.completion:,}"))
    yield (name, Cell("the engine has counted"), Cell(""), *counted)
    for kind, words in _CLASSES.items():
        share = line.shares.get(kind)
        if share is not None:
            yield _share(words, share)
    rest = Cell(f"{line.prompt_rest:,}", style), Cell(f"{line.completion_rest:,}", style)
    yield (Cell(""), Cell("left to explain", style), Cell(""), *rest)


def _share(words: str, share: Share) -> tuple[Cell, ...]:
    numbers = Cell(f"{share.attempts:,}"), Cell(_range(share.prompt)), Cell(_range(share.completion))
    return (Cell(""), Cell(words), *numbers)


def _range(bounds: Bounds) -> str:
    if bounds.most is None:
        return f"{bounds.least:,} or more"
    return f"{bounds.least:,}" if bounds.most == bounds.least else f"{bounds.least:,} to {bounds.most:,}"


def meanings(lines: Iterable[Line]) -> Iterator[str]:
    """One line for each start of an engine: what its numbers mean."""
    for line in lines:
        yield f"{line.engine}, up to {moment(line.at)}: {_meaning(line)}"


def _meaning(line: Line) -> str:
    if line.verdict == "unexplained":
        found = (_unexplained(line.prompt_rest, "read"), _unexplained(line.completion_rest, "written"))
        return "; ".join(filter(None, found))
    return {
        "exact": "it has counted what requests say, to the token",
        "explained": "the difference is within what such requests can make",
        "cached": "it does not count what it had in its prefix cache",
        "added_up": "its first requests are only kept added up by the day, so it cannot be told any more",
    }[line.verdict]


def _unexplained(rest: int, verb: str) -> str:
    if not rest:
        return ""
    if rest < 0:
        return f"requests say that it has {verb} {-rest:,} tokens more than it has counted"
    return f"it has {verb} {rest:,} tokens for requests that came by another way"
