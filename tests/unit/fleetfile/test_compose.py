"""New fleet files: what is composed is what is read."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneplex.adapters.found import find_adapters, names_for
from tuneplex.errors import UserError
from tuneplex.fleetfile.compose import Draft, DraftAdapter, DraftPool, compose
from tuneplex.fleetfile.document import read_document
from tuneplex.fleetfile.vllm_line import Module, read_line

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
PART = st.sampled_from(["a", "b c", "é", "..x", "run", "sql", "A"])


@settings(max_examples=40)
@given(st.dictionaries(TEXT, TEXT, min_size=1, max_size=4), TEXT, st.lists(TEXT, max_size=3))
def test_any_text_is_read_as_it_was_given(sources: dict[str, str], base: str, flags: list[str]) -> None:
    """Names, paths and flags of any characters come back, whatever they look like to YAML, and notes are comments."""
    adapters = tuple(DraftAdapter(name, source, f"note {source}") for name, source in sources.items())
    pool = DraftPool("default", {"max_loras": 2, "engine": base}, tuple(flags))
    with TemporaryDirectory() as name:
        file = Path(name) / "fleet.yaml"
        draft = Draft(base, base_name=base, adapters=adapters, pools=(pool,), gateway={"port": 1}, head=(base,))
        file.write_text(compose(draft), encoding="utf-8")
        document, _places = read_document(file)
    pool_read = {"max_loras": 2, "engine": base} | ({"engine_args": flags} if flags else {})
    assert document == {
        "base": {"source": base, "name": base},
        "adapters": sources,
        "pools": {"default": pool_read},
        "gateway": {"port": 1},
    }


@pytest.mark.parametrize("text", ["no", "2024", "1e3", "true", "~", "", "- a", "a: b", "a #b", "hf:a/b@c", "./a", "/a"])
def test_words_that_yaml_takes_for_more(text: str, tmp_path: Path) -> None:
    """Text that YAML could take for something else stays text."""
    (tmp_path / "fleet.yaml").write_text(compose(Draft(text)))
    assert read_document(tmp_path / "fleet.yaml")[0] == {"base": text}


@given(st.sets(st.tuples(PART, PART, PART), min_size=1, max_size=12), st.frozensets(PART))
def test_names_are_valid_and_differ(paths: set[tuple[str, ...]], taken: frozenset[str]) -> None:
    """Whatever directories are called, each gets a name of its own that a fleet file takes."""
    root = Path("/runs")
    named = names_for(root, sorted(root.joinpath(*parts) for parts in paths), taken)
    assert len(set(named.values())) == len(paths)
    assert not taken & set(named.values())
    assert all(name.isascii() and name[0].isalnum() and " " not in name for name in named.values())


def test_a_tree_may_be_an_adapter_itself(tmp_path: Path) -> None:
    """A directory that is an adapter is found, and is called as it is."""
    (tmp_path / "adapter_config.json").write_text("{}")
    tree = find_adapters(tmp_path)
    assert tree.directories == (tmp_path,)
    assert names_for(tmp_path, tree.directories) == {tmp_path: tmp_path.name.strip("-._")}


@pytest.mark.parametrize(
    "words",
    [
        ("--lora-modules", "a=/a", "b=b=c"),
        ("--lora-modules a=/a \\\n  b=b=c",),
        ("--lora_modules=a=/a", "--lora-modules", "b=b=c"),
        ('--lora-modules [{"name":"a","path":"/a"},{"name":"b","path":"b=c"}]'.replace('"', '\\"'),),
        ("python -m vllm.entrypoints.openai.api_server --lora-modules a=/a b=b=c --model m",),
    ],
)
def test_forms_of_lora_modules(words: tuple[str, ...]) -> None:
    """Both of vLLM's forms are read, on one line or over several, once or repeated."""
    assert read_line(words).modules == (Module("a", "/a"), Module("b", "b=c"))


@given(
    st.lists(TEXT | st.sampled_from(["--lora-modules", "a=b", "vllm", "serve", "--port", "9", "'", "{"]), max_size=8)
)
def test_any_words(words: list[str]) -> None:
    """Words of any kind are read, or refused by a UserError."""
    try:
        line = read_line(words)
    except UserError:
        return
    assert line.modules
