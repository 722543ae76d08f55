"""`adapters check`: what the gate says of adapters, before any engine sees them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuneplex.adapters import Report, Verdict
from tuneplex.app.judging import Against, against, judge
from tuneplex.cli import render_gate
from tuneplex.cli.progress import shown
from tuneplex.cli.terminal import Terminal

__all__ = ["check"]

_STYLES = {Verdict.REFUSED: "bold red", Verdict.WARNED: "yellow"}


def check(sources: list[str], base: str | None, *, as_json: bool) -> int:
    """Print what the gate says of each adapter; 1 if it refuses one.

    Raises:
        UserError: An adapter or the base cannot be fetched or read at all.
    """
    terminal = Terminal.standard()
    with shown(terminal) as progress:
        beside = against(base, progress) if base is not None else Against()
        reports = []
        for source in sources:
            progress.step(f"reading {source}")
            reports.append((source, judge(source, beside, progress, deep=True)))
    if as_json:
        terminal.json([_as_json(source, report) for source, report in reports])
    else:
        _print(terminal, reports, without_base=beside.shape is None)
    return 1 if any(report.verdict is Verdict.REFUSED for _source, report in reports) else 0


def _print(terminal: Terminal, reports: list[tuple[str, Report]], *, without_base: bool) -> None:
    for source, report in reports:
        terminal.show(render_gate.facts(_name(source), report), render_gate.findings(report))
        terminal.gap()
    for source, report in reports:
        terminal.say(render_gate.summary(_name(source), report), _STYLES.get(report.verdict, "green"))
    if without_base:
        terminal.note("There was no base to hold it against: --base names one, or a fleet file.")


def _name(source: str) -> str:
    return Path(source).name or source


def _as_json(source: str, report: Report) -> dict[str, object]:
    built: dict[str, object] = msgspec.to_builtins(report)
    return {"source": source, "verdict": report.verdict.value, **built}
