"""`adapters check` and `adapters import`, as they are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.adapter_corpus import Recipe, write_tiny_base
from tuneplex.cli.main import run
from tuneplex.fleetfile import load

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in a directory of their own, with a base in it."""
    monkeypatch.chdir(tmp_path)
    write_tiny_base(tmp_path / "tiny")


def test_check_shows_findings_and_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each adapter has facts and findings, the last lines say what becomes of each, and a refusal is exit code 1."""
    Recipe.plain().write(tmp_path / "good")
    Recipe.plain().set(use_dora=True).write(tmp_path / "bad")
    assert run(["adapters", "check", "good", "--base", "tiny"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["ADAPTER", "good"]
    assert any(line.split()[:2] == ["base", "accepted"] for line in shown)
    assert shown[-1] == "good: accepted"
    assert run(["adapters", "check", "good", "bad", "--base", "tiny"]) == 1
    *_, good, bad = capsys.readouterr().out.splitlines()
    assert good == "good: accepted"
    assert bad.startswith("bad: refused, because of DoRA: use_dora is set")


def test_check_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` has verdict, findings, facts and renames of each adapter."""
    Recipe.plain(tail=".default.weight").write(tmp_path / "named")
    assert run(["adapters", "check", "named", "--base", "tiny", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["source"], found["verdict"], found["facts"]["rank"]) == ("named", "converted", 4)
    assert len(found["renames"]) == 8
    assert {one["verdict"] for one in found["findings"]} == {"accepted", "converted"}


def test_check_without_a_base_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a base the adapter is judged by itself, and a note names the option."""
    Recipe.plain(layers=(9,)).write(tmp_path / "far")
    assert run(["adapters", "check", "far"]) == 0
    assert "--base" in capsys.readouterr().err


def test_check_against_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fleet file brings its base and its pools: the pool that would serve it is named, or none is."""
    Recipe.plain(rank=9).write(tmp_path / "nine")
    Recipe.plain(rank=33).write(tmp_path / "large")
    pools = "pools:\n  small: {max_lora_rank: 8}\n  large: {max_lora_rank: 32}\n"
    (tmp_path / "fleet.yaml").write_text(f"base: tiny\n{pools}")
    assert run(["adapters", "check", "nine", "--base", "fleet.yaml"]) == 0
    assert "large, with max_lora_rank 32" in capsys.readouterr().out
    assert run(["adapters", "check", "large", "--base", "fleet.yaml"]) == 1
    assert "above max_lora_rank of every pool, at most 32" in capsys.readouterr().out


def test_check_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A path that is not there, and a base that is none, are wrong input."""
    assert run(["adapters", "check", "nowhere"]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert run(["adapters", "check", "tiny", "--base", "nowhere"]) == 2
    assert run(["adapters", "check", "tiny", "--base", "ftp:x"]) == 2


def test_examples_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples, which PEFT has saved, are accepted without a doubt."""
    paths = [str(path.parent) for path in sorted((ROOT / "examples" / "adapters").glob("*/adapter_config.json"))]
    assert run(["adapters", "check", *paths, "--json"]) == 0
    assert [one["verdict"] for one in json.loads(capsys.readouterr().out)] == ["accepted"] * 3


def tree(root: Path) -> None:
    """Adapters as trainers leave them: nested, with earlier states, one twice, one that cannot be served."""
    Recipe.plain().write(root / "sql" / "final")
    Recipe.plain(rank=16).write(root / "contacts" / "final")
    Recipe.plain().write(root / "contacts" / "final" / "checkpoint-10")
    Recipe.plain(rank=64).write(root / "legal texts")
    Recipe.plain().set(bias="all").write(root / "old" / "final")
    Recipe.plain().write(root / ".trash" / "gone")


def test_import_of_a_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tree becomes a fleet file that loads; names are valid and differ; what is refused is left out, told why."""
    tree(tmp_path / "runs")
    assert run(["adapters", "import", "runs", "--base", "tiny", "--to", "fleet.yaml"]) == 1
    shown = capsys.readouterr()
    file = load(tmp_path / "fleet.yaml")
    assert {name: Path(one.source).relative_to(tmp_path).as_posix() for name, one in file.adapters.items()} == {
        "contacts-final": "runs/contacts/final",
        "legal-texts": "runs/legal texts",
        "sql-final": "runs/sql/final",
    }
    assert (file.base.source, file.pools) == (str(tmp_path / "tiny"), {})
    assert "base: ./tiny" in (tmp_path / "fleet.yaml").read_text()
    assert "biases were trained too" in shown.out
    assert "1 left out" in shown.out
    assert "inside of adapters, 1 more" in shown.err


def test_import_prints_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--to`, standard output is the fleet file and nothing else, and notes go to standard error."""
    tree(tmp_path / "runs")
    assert run(["adapters", "import", "runs", "--base", "tiny"]) == 1
    shown = capsys.readouterr()
    (tmp_path / "piped.yaml").write_text(shown.out)
    assert len(load(tmp_path / "piped.yaml").adapters) == 3
    assert "old/final is left out: bias is 'all'" in shown.err


def test_import_by_rank(tmp_path: Path) -> None:
    """`--by-rank` writes a pool for each rank that is needed."""
    tree(tmp_path / "runs")
    run(["adapters", "import", "runs", "--base", "tiny", "--to", "fleet.yaml", "--by-rank"])
    pools = load(tmp_path / "fleet.yaml").pools
    assert {name: pool.max_lora_rank for name, pool in pools.items()} == {"rank-8": 8, "rank-16": 16, "rank-64": 64}


def test_import_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fleet file that is there stays, unless `--force` is given."""
    Recipe.plain().write(tmp_path / "runs" / "one")
    (tmp_path / "fleet.yaml").write_text("# mine\nbase: tiny\n")
    assert run(["adapters", "import", "runs", "--base", "tiny", "--to", "fleet.yaml"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "fleet.yaml").read_text().startswith("# mine")
    assert run(["adapters", "import", "runs", "--base", "tiny", "--to", "fleet.yaml", "--force"]) == 0
    assert list(load(tmp_path / "fleet.yaml").adapters) == ["one"]


@pytest.mark.parametrize("quoted", [True, False])
def test_import_of_a_line_of_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, quoted: bool) -> None:
    """A whole line, quoted or not, brings model, adapters and flags along, and says which secrets it leaves out."""
    Recipe.plain().write(tmp_path / "a")
    Recipe.plain(rank=16).write(tmp_path / "b")
    entry = '{"name": "b", "path": "b", "base_model_name": "smol"}'
    line = ["vllm", "serve", "tiny", "--enable-lora", "--lora-modules", "a=a", entry, "--max-lora-rank", "64"]
    line += ["--max_loras=4", "-tp", "2", "--port", "9000", "--api-key", "sk-1", "--dtype", "bfloat16"]
    line += ["--served-model-name", "smol"]
    words = [" ".join(f"'{word}'" if " " in word else word for word in line)] if quoted else line
    assert run(["adapters", "import", *words, "--to", "fleet.yaml"]) == 0
    file = load(tmp_path / "fleet.yaml")
    pool = file.pools["default"]
    assert (file.base.name, file.gateway.port, sorted(file.adapters)) == ("smol", 9000, ["a", "b"])
    assert (pool.max_lora_rank, pool.max_loras, pool.gpus, pool.engine_args) == (64, 4, 2, ["--dtype", "bfloat16"])
    assert "sk-1" not in (tmp_path / "fleet.yaml").read_text()
    assert "--api-key is left out" in capsys.readouterr().err


def test_import_of_modules_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a base, what all adapters say is taken: a repository on the hub, where no such directory is there."""
    Recipe.plain().write(tmp_path / "a")
    assert run(["adapters", "import", "--lora-modules a=a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "base: hf:acme/tiny\n" in found["text"]
    assert [(one["name"], one["taken"], one["report"]["facts"]["rank"]) for one in found["adapters"]] == [
        ("a", True, 4)
    ]


@pytest.mark.parametrize(
    "words, message",
    [
        (("nowhere",), "neither a directory nor a line of vLLM"),
        (("tiny",), "tiny holds no adapters"),
        (("tiny", "--too", "x"), "a directory needs no '--too'"),
        (("--lora-modules", "a"), "should be NAME=PATH"),
        (("--lora-modules", '{"name": 1}'), "is not what it should be"),
        (("vllm serve tiny --max-loras 3",), "names no adapters"),
        (("vllm serve tiny --max-loras x --lora-modules a=a",), "should be a whole number"),
        (("--lora-modules 'a=a",), "cannot be read"),
        (("--lora-modules", "a=nowhere", "--base", "tiny"), "no adapter can be served; the first one: "),
    ],
)
def test_import_of_what_is_none(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is neither a tree with adapters nor a line of vLLM is wrong input, and the message says what is wrong."""
    assert run(["adapters", "import", *words]) == 2
    assert message in capsys.readouterr().err


def test_import_of_several_bases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Adapters of several bases belong in several fleets; the bases are named."""
    Recipe.plain().write(tmp_path / "runs" / "one")
    Recipe.plain().set(base_model_name_or_path="acme/other").write(tmp_path / "runs" / "two")
    assert run(["adapters", "import", "runs"]) == 2
    assert "several bases: acme/other, acme/tiny" in capsys.readouterr().err


def test_import_leaves_no_trace_when_it_fails(tmp_path: Path) -> None:
    """A file that would not load is not written: two adapters of one name, which a line of vLLM may have."""
    Recipe.plain().write(tmp_path / "a")
    before = sorted(tmp_path.iterdir())
    assert run(["adapters", "import", "--lora-modules a=a tiny=a", "--base", "tiny", "--to", "fleet.yaml"]) == 2
    assert sorted(tmp_path.iterdir()) == before
