"""The example fine-tunes: their data, how replies are judged, and the files that are committed."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from tuneplex.shapes import read_adapter

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"
RANKS = {"contacts": 8, "triage": 16, "sql": 64}


@pytest.fixture(scope="module")
def score() -> Iterator[ModuleType]:
    """The scoring script, which imports `data` from its own directory."""
    sys.path.insert(0, str(ADAPTERS))
    try:
        yield importlib.import_module("score")
    finally:
        sys.path.remove(str(ADAPTERS))


@pytest.fixture(scope="module")
def data(score: ModuleType) -> ModuleType:
    """The module with the made-up data."""
    return sys.modules[score.Example.__module__]


@pytest.mark.parametrize("task", RANKS)
def test_held_out_prompts_are_never_trained_on(data: ModuleType, task: str) -> None:
    """What is trained on and what is scored share no prompt."""
    train = {one.prompt for one in islice(data.examples(task, "train"), 1000)}
    held_out = {one.prompt for one in islice(data.examples(task, "test"), 300)}
    assert len(train) == 1000
    assert len(held_out) == 300
    assert train.isdisjoint(held_out)


def test_the_splits_draw_from_different_words(data: ModuleType) -> None:
    """Names, companies, sentences, things and tables of one split do not occur in the other."""
    pools = [data._FIRST, data._LAST, data._COMPANY, data._CONTACT, data._ITEM, *data._MESSAGES.values()]
    pools.append({split: [table.name for table in tables] for split, tables in data._TABLES.items()})
    for pool in pools:
        assert set(pool["train"]).isdisjoint(pool["test"])


def test_examples_repeat_with_the_seed(data: ModuleType) -> None:
    """The same seed gives the same examples, another seed other ones."""
    first, again = (list(islice(data.examples("sql", "train"), 20)) for _ in range(2))
    assert first == again
    assert first != list(islice(data.examples("sql", "train", seed=1), 20))


def test_nothing_in_the_data_can_be_a_person(data: ModuleType) -> None:
    """Mail domains end in .example, and phone numbers come from ranges that are kept for fiction."""
    for split in data.SPLITS:
        for one in islice(data.examples("contacts", split), 200):
            contact = json.loads(one.answer)
            assert contact["email"].endswith(".example")
            assert " 555 01" in contact["phone"] or contact["phone"].startswith("+44 20 7946 0")


@pytest.mark.parametrize("task", RANKS)
def test_wanted_answers_are_right(score: ModuleType, data: ModuleType, task: str) -> None:
    """The judge accepts each wanted answer, bare and inside prose."""
    for one in islice(data.examples(task, "test"), 60):
        assert score.RIGHT[task](one, one.answer)
        assert score.RIGHT[task](
            one, f"Sure! Here it is:\n```{'sql' if task == 'sql' else ''}\n{one.answer}\n```\nBye."
        )


def test_sql_counts_by_its_rows(score: ModuleType, data: ModuleType) -> None:
    """Another way to write a query is right, another result is not, and neither is an empty reply."""
    table = data._TABLES["test"][0]
    one = data.Example("", "SELECT COUNT(*) FROM ships", table)
    assert score.sql_right(one, "The query is: select count(name) as n from ships;")
    assert not score.sql_right(one, "SELECT COUNT(*) + 1 FROM ships")
    assert not score.sql_right(one, "SELECT nonsense")
    assert not score.sql_right(one, "I cannot do that.")


def test_replies_cannot_write(score: ModuleType, data: ModuleType) -> None:
    """A reply that does more than read the table, or that would run for ever, is simply wrong."""
    table = data._TABLES["test"][0]
    one = data.Example("", "SELECT COUNT(*) FROM ships", table)
    assert not score.sql_right(one, "SELECT COUNT(*) FROM ships, pragma_database_list")
    assert not score.sql_right(one, "SELECT load_extension('x')")
    endless = ", ".join(f"ships t{i}" for i in range(12))
    assert not score.sql_right(one, f"SELECT COUNT(*) FROM {endless}")  # noqa: S608 - in memory, and read-only


def test_other_answers_are_wrong(score: ModuleType, data: ModuleType) -> None:
    """A missing field, another team and broken JSON do not count."""
    contact = next(data.examples("contacts", "test"))
    partial = json.loads(contact.answer)
    del partial["phone"]
    assert not score.contacts_right(contact, json.dumps(partial))
    assert not score.contacts_right(contact, "{name: x}")
    assert not score.contacts_right(contact, "no contact")
    assert score.triage_right(data.Example("", "returns"), "Return it, please: returns")
    assert not score.triage_right(data.Example("", "returns"), "billing, or returns")


@pytest.mark.parametrize("task", RANKS)
def test_committed_adapter_is_small_and_neutral(task: str) -> None:
    """Each adapter has its rank, names the base by its public name, and has a card with both scores."""
    directory = ADAPTERS / task
    assert read_adapter(directory).rank == RANKS[task]
    config = json.loads((directory / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "/work" not in (directory / "adapter_config.json").read_text()
    card = (directory / "README.md").read_text()
    assert "| base |" in card
    assert "held-out" in card


def test_all_adapters_together_stay_small() -> None:
    """The repository carries less than 8 MB of weights."""
    assert sum(path.stat().st_size for path in ADAPTERS.glob("*/*.safetensors")) < 8_000_000
