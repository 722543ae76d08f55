"""Puts what was measured into README.md, between the comments that mark its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu import record as records
from benchmarks.lora_cpu.engines import ENGINES
from benchmarks.lora_cpu.plan import DEFAULT_BASE, Plan
from benchmarks.lora_cpu.plot import draw, plot
from benchmarks.lora_cpu.record import Record
from benchmarks.lora_cpu.report import CLAIMED_CLIENTS, agreement, figures, interval, others_busy, rows, verdicts
from benchmarks.lora_cpu.workloads import BASE, WORKLOADS

__all__ = ["between", "check_plan", "sections", "write_readme"]

_HERE = Path(__file__).parent
_MODES = ("targets", "full")
_PLOT = "lora_cpu.svg"


def check_plan(plan: Plan) -> None:
    """Whether a run of this plan may end up in README.md.

    Raises:
        BenchmarkError: It is a first look only, of another base, or lacks the engine that the plot compares with.
    """
    compares = any((cell.engine, cell.workload) == ("none", BASE) for cell in plan.cells)
    if plan.mode not in _MODES or plan.base != DEFAULT_BASE or not compares:
        raise BenchmarkError(f"README.md takes the targets or --full only, of {DEFAULT_BASE}, with the base on `none`")


def write_readme(record: Record, home: Path = _HERE) -> None:
    """Keep the run beside README.md as `MODE.json`, and write tables and plot from what is there.

    Args:
        record: A complete run.
        home: The directory of README.md.

    Raises:
        BenchmarkError: The run is not complete, or README.md lacks the marks.
    """
    check_plan(record.plan)
    if record.rounds < record.plan.rounds:
        raise BenchmarkError(f"{record.rounds} of {record.plan.rounds} rounds are not a whole run")
    records.write(record, home / f"{record.plan.mode}.json")
    kept = {mode: records.read(file) for mode in _MODES if (file := home / f"{mode}.json").exists()}
    draw(plot(kept.get("full", record)), home / _PLOT)
    readme = home / "README.md"
    text = readme.read_text("utf-8")
    for mode, run in kept.items():
        text = between(text, mode, "\n".join(sections(run)))
    readme.write_text(between(text, "plot", f"![tokens per second relative to the base]({_PLOT})"), "utf-8")


def between(text: str, mark: str, content: str) -> str:
    """Replace what stands between the two comments of a mark.

    Raises:
        BenchmarkError: They are not there.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise BenchmarkError(f"README.md lacks {begin} or {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def sections(record: Record) -> list[str]:
    """The lines for one run: where and how it was measured, the claims if it is for them, the figures."""
    cells = [
        (ENGINES[row.cell.engine].title, WORKLOADS[row.cell.workload].title, str(row.cell.clients), *figures(row))
        for row in rows(record)
    ]
    heads = ("engine", "requests for", "clients", "tokens/s", "of its base", "TTFT p50 / p95, s", "TPOT p50 / p95, ms")
    claims = [*_claims(record), ""] if record.plan.mode == "targets" else []
    return [_origin(record), "", *claims, *_table(heads, cells)]


def _claims(record: Record) -> list[str]:
    lines = [
        (v.claim.text, interval(v.ratio, 1 if v.claim.goal > 1 else 3), f">= {v.claim.goal:g}", v.word)
        for v in verdicts(record)
    ]
    return _table((f"ratio of tokens/s, {CLAIMED_CLIENTS} clients", "measured", "goal", ""), lines)


def _origin(record: Record) -> str:
    machine, session, others = record.machine, record.sessions[-1], others_busy(record)
    versions = ", ".join(f"{name} {version}" for name, version in session.versions.items())
    file = f"{record.plan.mode}.json"
    starts = "" if len(record.sessions) == 1 else f" in {len(record.sessions)} starts"
    return (
        f"{record.rounds} rounds{starts}, {session.started[:10]}, {machine['cpu']}, {machine['cores']} cores, "
        f"Linux {machine['kernel']}; {versions}. Others used {others.median:.0%} of a core meanwhile (median; at most "
        f"{others.max:.0%}).{agreement(record)} Medians, 95 % intervals in brackets; all of it is in [{file}]({file})."
    )


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """As Markdown."""
    return [_line(heads), _line(["---"] * len(heads)), *(_line(line) for line in lines)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
