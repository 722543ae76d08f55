"""The gate: what becomes of good and bad adapters, and what is said of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.support.adapter_corpus import CASES, Case, Recipe, encoded, write_tiny_base
from tuneplex.adapters import Verdict, digest, inspect, make_version
from tuneplex.errors import SourceError
from tuneplex.shapes import BaseShape, read_adapter, read_base, read_header


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseShape:
    """The base of all cases."""
    return read_base(write_tiny_base(tmp_path_factory.mktemp("gate") / "base"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict_and_reason(case: Case, base: BaseShape, tmp_path: Path) -> None:
    """Each adapter of the corpus gets its verdict, by the finding that says why."""
    report = inspect(case.recipe().write(tmp_path / "adapter"), base, deep=True)
    found = [one for one in report.findings if one.check == case.check and one.verdict == case.verdict]
    assert report.verdict == case.verdict, report.findings
    assert any(case.words in one.detail for one in found), report.findings
    if report.refusal is not None:
        assert report.refusal in found


def test_corpus_is_large_enough() -> None:
    """Each verdict has its cases, and no two cases one name."""
    assert len(CASES) >= 80
    assert {case.verdict for case in CASES} == {verdict.value for verdict in Verdict}
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [one for one in CASES if one.verdict == "refused"], ids=lambda case: case.name)
def test_nothing_that_is_refused_becomes_a_version(case: Case, base: BaseShape, tmp_path: Path) -> None:
    """What the gate refuses is given to no engine, and the error says the reason."""
    directory = case.recipe().write(tmp_path / "adapter")
    with pytest.raises(SourceError) as caught:
        make_version("a", "x", directory, base=base, cache=tmp_path / "cache")
    assert case.words in str(caught.value)
    assert str(caught.value).startswith("adapter a: ")


@pytest.mark.parametrize("case", [one for one in CASES if one.verdict == "converted"], ids=lambda case: case.name)
def test_names_are_converted_in_the_copy(case: Case, base: BaseShape, tmp_path: Path) -> None:
    """Tensors get their right names in the copy that is served, with the same bytes; the user's files stay."""
    source = case.recipe().write(tmp_path / "adapter")
    before = digest(source)
    version = make_version("a", "x", source, base=base, cache=tmp_path / "cache")
    usual = Recipe.plain().write(tmp_path / "usual")
    served = read_header(Path(version.path) / "adapter_model.safetensors")
    assert digest(source) == before
    assert version.digest == digest(Path(version.path)) != before
    assert sorted(served) == sorted(read_header(usual / "adapter_model.safetensors"))
    assert data(Path(version.path)) == data(source)
    assert inspect(Path(version.path), base).verdict is Verdict.ACCEPTED
    assert make_version("a", "x", source, base=base, cache=tmp_path / "cache") == version


def data(directory: Path) -> list[bytes]:
    """The tensors of an adapter, in the order of the file."""
    file = directory / "adapter_model.safetensors"
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    places = sorted(tensor.data_offsets for tensor in read_header(file).values())
    return [content[start + begin : start + end] for begin, end in places]


def test_names_are_not_converted_without_a_copy(base: BaseShape, tmp_path: Path) -> None:
    """Engines that run elsewhere read the user's own files, so there these must be right."""
    directory = Recipe.plain(tail=".default.weight").write(tmp_path / "adapter")
    with pytest.raises(SourceError, match=r"lora_A.default.weight should be called .*lora_A.weight") as caught:
        make_version("a", "x", directory, base=base)
    assert "only engines that run here get a copy" in caught.value.hint


def test_without_a_base_what_needs_one_is_left_out(tmp_path: Path) -> None:
    """Without a base, only the adapter itself is judged; a template of its own is named as not compared."""
    assert inspect(Recipe.plain(layers=(7,)).write(tmp_path / "far")).verdict is Verdict.ACCEPTED
    report = inspect(Recipe.plain().file("chat_template.jinja", "x").write(tmp_path / "template"))
    assert [one.check for one in report.findings if one.verdict is Verdict.WARNED] == ["chat template"]


@pytest.mark.parametrize(
    "name, verdict",
    [
        ("acme/tiny", Verdict.ACCEPTED),
        ("tiny", Verdict.ACCEPTED),
        ("other/Tiny-bnb-4bit", Verdict.ACCEPTED),
        ("acme/tiny-2", Verdict.WARNED),
        ("", Verdict.ACCEPTED),
    ],
)
def test_recorded_base(base: BaseShape, tmp_path: Path, name: str, verdict: Verdict) -> None:
    """Another name than that of the base it was trained on is a warning, wherever either lies and however packed."""
    assert inspect(Recipe.plain().write(tmp_path / "adapter"), base, base_name=name).verdict is verdict


def test_facts(base: BaseShape, tmp_path: Path) -> None:
    """The report tells what the adapter is: ranks, factors, types, bytes, modules."""
    facts = inspect(Recipe.plain(rank=9, dtype="BF16").set(lora_alpha=18).write(tmp_path / "a"), base, deep=True).facts
    assert (facts.rank, facts.max_lora_rank, facts.alpha, facts.scaling) == (9, 16, 18, (2, 2))
    assert (facts.dtypes, facts.size) == (("BF16",), 2 * 2 * 9 * (16 + 16 + 8 + 16))
    assert (facts.modules, facts.layers, facts.base_name) == (("q_proj", "v_proj"), 2, "acme/tiny")
    assert facts.effective_rank is not None
    assert 1 < facts.effective_rank <= 9


def test_factors_by_patterns(base: BaseShape, tmp_path: Path) -> None:
    """Factors go by the first pattern that fits a module, as in PEFT and vLLM, and by rsLoRA's rule where it is set."""
    case = next(one for one in CASES if one.name == "patterns")
    assert inspect(case.recipe().write(tmp_path / "one"), base).facts.scaling == (2, 4)
    rooted = inspect(case.recipe().set(use_rslora=True).write(tmp_path / "two"), base).facts.scaling
    assert rooted == pytest.approx((4, 32 / 8**0.5))


def test_a_model_for_more_than_text(tmp_path: Path) -> None:
    """Where class and files may name modules differently, names are compared from their layer on, and stay."""
    nested = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 40}
    base = read_base(write_tiny_base(tmp_path / "base", text_config=nested))
    report = inspect(Recipe.plain(prefix="base_model.model.model.language_model.").write(tmp_path / "a"), base)
    assert (report.verdict, report.renames) == (Verdict.WARNED, {})
    assert inspect(Recipe.plain(layers=(5,)).write(tmp_path / "b"), base).verdict is Verdict.REFUSED


def test_a_packed_base(tmp_path: Path) -> None:
    """Packed weights have other shapes, so only names are held against them."""
    base = read_base(write_tiny_base(tmp_path / "base", quantization_config={"quant_method": "awq"}))
    recipe = Recipe.plain()
    recipe.put("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", (4, 99))
    assert inspect(recipe.write(tmp_path / "a"), base).verdict is Verdict.ACCEPTED
    assert inspect(Recipe.plain(layers=(5,)).write(tmp_path / "b"), base).verdict is Verdict.REFUSED


def test_patterns_that_go_by_another_name(base: BaseShape, tmp_path: Path) -> None:
    """Where modules would be renamed, patterns that go by the old names are refused rather than guessed at."""
    recipe = Recipe.plain(prefix="base_model.model.").set(alpha_pattern={"^layers.0.self_attn.q_proj": 1})
    report = inspect(recipe.write(tmp_path / "a"), base)
    assert report.refusal is not None
    assert report.refusal.check == "names"


def test_a_turned_matrix_where_the_base_has_it_so(base: BaseShape, tmp_path: Path) -> None:
    """Modules whose weights lie the other way round in the base's files fit where the configuration says so."""
    recipe = Recipe.plain("up_proj").rename(lambda name: name.replace("up_proj", "down_proj"))
    report = inspect(recipe.set(fan_in_fan_out=True, target_modules=["down_proj"]).write(tmp_path / "a"), base)
    assert report.verdict is Verdict.ACCEPTED


def test_shallow_look_reads_headers_as_read_adapter_does(base: BaseShape, tmp_path: Path) -> None:
    """The gate and `read_adapter` agree about ranks, so a preview shows the pool that will be chosen."""
    for case in CASES:
        directory = case.recipe().write(tmp_path / case.name.replace(" ", "-").replace("/", "-"))
        report = inspect(directory, base)
        if report.refusal is None:
            assert read_adapter(directory).rank == report.facts.rank, case.name


@pytest.mark.parametrize(
    "dtype, factors, rank",
    [
        ("F32", [10, 1, 0.5, 0], 2),
        ("BF16", [10, 1, 0.5, 0], 2),
        ("F16", [10, 0.5, 0.5, 0], 1),
        ("F64", [1, 1, 1, 1], 4),
        ("F64", [1e200, 1e200, 1, 1], 2),
        ("F32", [0, 0, 0, 3], 1),
    ],
)
def test_effective_rank(base: BaseShape, tmp_path: Path, dtype: str, factors: list[float], rank: int) -> None:
    """The effective rank is how many of the largest singular values of B·A have 99 % of all their squares."""
    recipe = Recipe.plain("q_proj", layers=(0,)).set(layers_to_transform=[0])
    for letter, width, values in (("A", 16, [1.0] * 4), ("B", 4, factors)):
        numbers = [0.0] * 64
        for at, value in enumerate(values):
            numbers[at * width + at] = value
        name = recipe.first(letter)
        recipe.tensors[name] = (dtype, (4, 16) if letter == "A" else (16, 4), encoded(dtype, numbers))
    report = inspect(recipe.write(tmp_path / "a"), base, deep=True)
    assert report.facts.effective_rank == rank


def test_file_that_is_cut_while_it_is_read(base: BaseShape, tmp_path: Path) -> None:
    """Somebody who trains into the directory meanwhile gets the adapter refused, and nobody killed."""
    directory = Recipe.plain(rank=512).write(tmp_path / "a")

    def cut(_done: int, _total: int) -> None:
        with (directory / "adapter_model.safetensors").open("r+b") as file:
            file.truncate(100)

    report = inspect(directory, base, advance=cut)
    assert report.refusal is not None
    assert "changed while it was read" in report.refusal.detail
    assert report.refusal.way_out == "try again"


def test_every_kind_of_number(base: BaseShape, tmp_path: Path) -> None:
    """NaN and infinity of either sign are found in each type, at any place; the largest finite numbers are not."""
    largest = {"F64": 1.7976931348623157e308, "F32": 3.4028234663852886e38, "BF16": 3.3895313892515355e38, "F16": 65504}
    for dtype, most in largest.items():
        for value in (math.nan, -math.nan, math.inf, -math.inf):
            name = f"{dtype}{value}{math.copysign(1, value)}"
            directory = Recipe.plain(dtype=dtype).spoil("B", value, dtype).write(tmp_path / name)
            assert inspect(directory, base).verdict is Verdict.REFUSED, name
        directory = Recipe.plain(dtype=dtype).spoil("A", -most, dtype).write(tmp_path / dtype)
        assert inspect(directory, base).verdict is Verdict.ACCEPTED, dtype
