"""What the commands show of the gate: pure functions from reports to sheets and lines."""

from __future__ import annotations

from tuneplex.adapters import Report, Verdict
from tuneplex.cli.terminal import Cell, Sheet
from tuneplex.units import format_bytes

__all__ = ["facts", "findings", "summary", "verdict_cell"]

_STYLES = {
    Verdict.ACCEPTED: "green",
    Verdict.CONVERTED: "cyan",
    Verdict.WARNED: "yellow",
    Verdict.REFUSED: "bold red",
}


def verdict_cell(verdict: Verdict) -> Cell:
    """A verdict, in its colour."""
    return Cell(verdict.value, _STYLES[verdict])


def findings(report: Report) -> Sheet:
    """One row for each thing that was looked at."""
    return Sheet(
        columns=("CHECK", "VERDICT", "FOUND", "WAY OUT"),
        rows=tuple(
            (Cell(one.check, "bold"), verdict_cell(one.verdict), Cell(one.detail), Cell(one.way_out, "cyan"))
            for one in report.findings
        ),
        empty="nothing was looked at",
        flexible=frozenset({"FOUND", "WAY OUT"}),
    )


def facts(name: str, report: Report) -> Sheet:
    """What the adapter is; only its name where its files could not be read."""
    found = report.facts
    rows = (
        ("rank", _rank(report)),
        ("pool", f"max_lora_rank {found.max_lora_rank} or more" if found.max_lora_rank else ""),
        ("alpha", f"{found.alpha:g}; B·A is multiplied by {_scaling(report)}" if found.alpha else ""),
        ("changes", f"{', '.join(found.modules)} in {found.layers} layers" if found.modules else ""),
        ("weights", f"{format_bytes(found.size)} of {', '.join(found.dtypes)}" if found.size else ""),
        ("base", found.base_name),
        ("directory", report.path),
    )
    return Sheet(
        columns=("ADAPTER", name),
        rows=tuple((Cell(about, "bold"), Cell(text)) for about, text in rows if text),
        flexible=frozenset({name}),
    )


def _rank(report: Report) -> str:
    rank, effective = report.facts.rank, report.facts.effective_rank
    if not rank:
        return ""
    return str(rank) if effective is None else f"{rank}; 99 % of the change is within rank {effective}"


def _scaling(report: Report) -> str:
    least, largest = report.facts.scaling
    return f"{least:.4g}" if least == largest else f"{least:.4g} to {largest:.4g}"


def summary(name: str, report: Report) -> str:
    """The verdict in one line."""
    refusal = report.refusal
    if refusal is not None:
        way_out = f". Way out: {refusal.way_out}" if refusal.way_out else ""
        return f"{name}: refused, because of {refusal.check}: {refusal.detail}{way_out}"
    doubts = [one for one in report.findings if one.verdict is Verdict.WARNED]
    changed = f", with {len(report.renames)} tensors renamed in tuneplex's own copy" if report.renames else ""
    doubtful = f", with {len(doubts)} warning{'' if len(doubts) == 1 else 's'}" if doubts else ""
    return f"{name}: accepted{changed}{doubtful}"
