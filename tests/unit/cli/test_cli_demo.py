"""The demo's files and what it prints, without an engine."""

from __future__ import annotations

import ast
import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from tuneplex import fleetfile
from tuneplex.app import demo
from tuneplex.app.demo import Answers, Question
from tuneplex.cli.demo import answers_table, answers_text, howto
from tuneplex.errors import SourceError
from tuneplex.types import AdapterStatus, AdapterVersion, Base, FleetSpec, Status

ASKED = {
    "contacts": Question("contact as JSON", "Who is 'Ada'?\nSay it in JSON, please."),
    "sql": Question("SQL", "It's\nhow many?"),
}
SAID = tuple(Answers(name, question, "The answer\nis long " * 12, '{"a": 1}') for name, question in ASKED.items())
UP = Status(
    "demo",
    "http://127.0.0.1:8000/v1",
    "tiny",
    ready=True,
    started=0.0,
    adapters=tuple(AdapterStatus(AdapterVersion(name, "0" * 64, "/", 8, "default")) for name in ASKED),
)


def test_each_example_has_a_question() -> None:
    """The demo's fleet file is valid, its adapters are there, and each is asked something."""
    directory = demo.examples() / "demo"
    fleet = fleetfile.load(directory / "fleet.yaml")
    assert set(demo.questions(directory / "questions.yaml")) == set(fleet.adapters)
    assert all(Path(adapter.source, "adapter_config.json").is_file() for adapter in fleet.adapters.values())


@pytest.mark.parametrize("text", ["contacts: [", "contacts: {about: x}", "contacts: {about: x, prompt: y, more: z}"])
def test_wrong_questions_are_a_clear_error(tmp_path: Path, text: str) -> None:
    """A file that does not fit names itself."""
    path = tmp_path / "questions.yaml"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"questions\.yaml"):
        demo.questions(path)


def test_key_of_a_run_is_random_and_only_its_hash_is_kept() -> None:
    """Two runs have two keys, and the fleet's description does not hold them."""
    key, other = demo.new_key(), demo.new_key()
    spec = demo.with_port(demo.with_key(FleetSpec("demo", Base("tiny", "")), key), 1234)
    assert key != other
    assert key not in repr(spec)
    assert spec.gateway.key_sha256
    assert spec.listen.port == 1234


@pytest.mark.parametrize("width", [80, 120])
def test_answers_stand_side_by_side(width: int) -> None:
    """The table fills the terminal, exceeds it nowhere, and has each adapter beside the base."""
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(answers_table(SAID, "tiny"))
    lines = file.getvalue().splitlines()
    assert {len(line) for line in lines} == {width}
    assert any("tiny (base)" in line and "its fine-tune" in line for line in lines)
    assert all(any(name in line for line in lines) for name in ASKED)


def test_answers_in_a_pipe_are_lines() -> None:
    """Each answer is one line, with who gave it."""
    question, base, tuned = answers_text(SAID[:1], "tiny").splitlines()
    assert question == "asked (contact as JSON): Who is 'Ada'? Say it in JSON, please."
    assert base.startswith("  tiny (base): The answer is long The answer")
    assert tuned == '  contacts: {"a": 1}'


def test_howto_can_be_copied_and_pasted() -> None:
    """The shell and Python both read the examples as they stand, with URL, key and question intact."""
    text = howto(UP, "sk-demo-1", ASKED)
    shell = text[text.index("curl") : text.index("from openai")]
    words = shlex.split(shell.replace("\\\n", " "))
    assert words[1] == "http://127.0.0.1:8000/v1/chat/completions"
    assert "Authorization: Bearer sk-demo-1" in words
    body = json.loads(words[words.index("-d") + 1])
    assert body == {"model": "sql", "messages": ASKED["sql"].messages}
    python = text[text.index("from openai") : text.index("In another terminal")]
    _, _, question, _, _ = ast.parse(python).body
    assert isinstance(question, ast.Assign)
    assert ast.literal_eval(question.value) == ASKED["sql"].prompt
