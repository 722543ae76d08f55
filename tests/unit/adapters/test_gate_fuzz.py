"""Whatever an adapter's files hold, the gate answers, soon, and with a verdict or a SourceError."""

from __future__ import annotations

import json
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.adapter_corpus import Recipe, write_tiny_base
from tuneplex.adapters import Report, Verdict, inspect, make_version
from tuneplex.errors import SourceError
from tuneplex.shapes import read_base, read_header

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
TOKENIZER = ("tokenizer_config.json", "tokenizer.json", "added_tokens.json", "generation_config.json")
MIB = 1 << 20

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NUMBER = st.integers(-(1 << 70), 1 << 70) | st.integers(-2, 300)
NAME = st.sampled_from(
    [
        f"{MODULE}.lora_A.weight",
        f"{MODULE}.lora_B.weight",
        f"{MODULE}.lora_A.default.weight",
        "lora_A.weight",
        ".lora_embedding_A",
        "x",
    ]
) | st.text(max_size=20)
TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "I8", "F99", ""]),
        "shape": st.lists(NUMBER, max_size=4),
        "data_offsets": st.lists(NUMBER, min_size=2, max_size=2),
    }
)
HEADER = st.dictionaries(NAME, TENSOR | JSON, max_size=5)


def judged(change: Callable[[Path], object]) -> Report:
    """The report about a good adapter after something was done to its files; an engine never gets a refused one."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        base = read_base(write_tiny_base(root / "base"))
        directory = Recipe.plain("q_proj").write(root / "adapter")
        change(directory)
        report = inspect(directory, base)
        try:
            made = make_version("a", "x", directory, base=base, cache=root / "cache")
        except SourceError:
            assert report.refusal is not None
        else:
            assert report.refusal is None
            assert inspect(Path(made.path), base).verdict is not Verdict.REFUSED
        return report


def with_header(header: bytes, data: int = 0) -> Callable[[Path], object]:
    """Replaces the weights by ones with this header."""
    return lambda path: (path / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(data))


@contextmanager
def within(limit: int) -> Iterator[None]:
    """Python takes no more memory than this meanwhile."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from(["r", "lora_alpha", "rank_pattern", "target_modules", "bias", "q"]), JSON))
def test_any_configuration(values: dict[str, Any]) -> None:
    """Configurations of any values are judged."""
    judged(lambda path: (path / CONFIG).write_text(json.dumps({"peft_type": "LORA"} | values)))


@settings(max_examples=25)
@given(HEADER, st.integers(0, 64))
def test_any_header(header: dict[str, Any], data: int) -> None:
    """Headers of any names, types, shapes and places are judged."""
    judged(with_header(json.dumps(header).encode(), data))


@settings(max_examples=25)
@given(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=4))
def test_any_damage(at: int, bits: bytes) -> None:
    """Bytes that were changed anywhere in the weights are found, or change no more than numbers."""

    def damage(path: Path) -> None:
        content = bytearray((path / WEIGHTS).read_bytes())
        start = at % len(content)
        content[start : start + len(bits)] = bits
        (path / WEIGHTS).write_bytes(content)

    judged(damage)


@settings(max_examples=15)
@given(st.integers(0, 1 << 20))
def test_any_cut(at: int) -> None:
    """Weights that end early are refused wherever they end."""

    def cut(path: Path) -> None:
        content = (path / WEIGHTS).read_bytes()
        (path / WEIGHTS).write_bytes(content[: at % len(content)])

    assert judged(cut).verdict is Verdict.REFUSED


@settings(max_examples=15)
@given(
    st.sampled_from(["tokenizer_config.json", "tokenizer.json", "added_tokens.json", "generation_config.json"]), JSON
)
def test_any_tokenizer(name: str, content: object) -> None:
    """Files beside the weights may hold anything; what is no such file refuses the adapter, or says nothing."""
    judged(lambda path: (path / name).write_text(json.dumps(content)))


def entry(shape: str, begin: object, end: object, dtype: str = "F32") -> bytes:
    """One tensor of a header, as text."""
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}'.encode()


A, B = f'"{MODULE}.lora_A.weight":'.encode(), f'"{MODULE}.lora_B.weight":'.encode()
PAIR = b"{" + A + entry("[1,16]", 0, 64) + b"," + B + entry("[16,1]", 64, 128)


@pytest.mark.parametrize(
    "header, words",
    [
        (b"{" * 1_000_000, "damaged"),
        (b'{"a":' + b"[" * 1_000_000, "damaged"),
        (b'{"a":' * 100_000, "damaged"),
        (b"{" + A + entry("[1,16]", 0, 64) + b"," + B + entry("[16,1]", 32, 96) + b"}", "overlaps"),
        (b"{" + A + entry("[1,16]", 0, 64) + b"," + B + entry("[15,1]", 68, 128) + b"}", "gap"),
        (PAIR + b"," + A + entry("[1,16]", 0, 64) + b"}", "a tensor twice"),
        (PAIR + b"," + B + entry("[1,16]", 64, 128) + b"}", "a tensor twice"),
        (b"{" + A + entry("[" + "9," * 200_000 + "9]", 0, 64) + b"}", "cannot be"),
        (b"{" + A + entry(f"[{10**18},{10**18}]", 0, 64) + b"}", "cannot be"),
        (b"{" + A + entry("[1" + "0" * 5000 + "]", 0, 64) + b"}", "damaged|cannot be"),
        (b"{" + A + entry("[1,16]", 0, 64, "F" * 100_000) + b"}", "unknown type"),
        (PAIR + b',"' + b"x" * 1_000_000 + b'":' + entry("[0]", 128, 128) + b"}", "not A or B"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_headers_made_to_hurt(header: bytes, words: str) -> None:
    """Deep, doubled, overlapping and gigantic headers are refused in words of a bearable length."""
    with within(64 * MIB):
        report = judged(with_header(header, 128))
    assert report.refusal is not None
    assert any(word in report.refusal.detail for word in words.split("|"))
    assert len(report.refusal.detail) < 1000


def test_many_tensors(tmp_path: Path) -> None:
    """Many thousand tensors of nothing are counted and refused."""
    names = ",".join(f'"t{at}":{entry("[0]", 0, 0).decode()}' for at in range(20_000))
    with_header(f"{{{names}}}".encode())(tmp_path)
    assert len(read_header(tmp_path / WEIGHTS)) == 20_000
    report = judged(with_header(f"{{{names}}}".encode()))
    assert report.verdict is Verdict.REFUSED
    assert len(report.findings) < 10


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(.*)*x", "((q|q)*)*z", "(x+x+)+y", ".*.*.*.*.*z", r"(q)\1", "(?:a|a)*c", "q{1,9999}" * 9]
)
def test_patterns_made_to_hurt(pattern: str) -> None:
    """Expressions that could be tried for ever are not tried at all, here or in an engine."""

    def change(path: Path) -> None:
        config = json.loads((path / CONFIG).read_text())
        (path / CONFIG).write_text(json.dumps(config | {"rank_pattern": {pattern: 4}}))

    refusal = judged(change).refusal
    assert refusal is not None
    assert "is not tried" in refusal.detail


def test_names_made_to_hurt() -> None:
    """Hundreds of patterns of the hardest kind that is tried, on the longest names, come to an end."""

    def change(path: Path) -> None:
        recipe = Recipe.plain("q_proj").set(rank_pattern={f".*{'a' * 9}.*{at}": 4 for at in range(300)})
        recipe.pair(f"base_model.model.{'a.' * 200}q_proj", (16, 16), 4)
        (path / CONFIG).write_text(json.dumps(recipe.config))
        recipe.write(path / "other")
        (path / WEIGHTS).write_bytes((path / "other" / WEIGHTS).read_bytes())

    refusal = judged(change).refusal
    assert refusal is not None
    assert refusal.check == "base"


def test_pipe_in_the_place_of_weights() -> None:
    """What is no plain file is not waited for."""

    def change(path: Path) -> None:
        (path / WEIGHTS).unlink()
        os.mkfifo(path / WEIGHTS)

    assert judged(change).verdict is Verdict.REFUSED
