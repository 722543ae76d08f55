"""The keeper: nothing of an engine outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tuneplex.launchers.processes import kill_session, session_members

T = TypeVar("T")


class Kept:
    """An engine, given as a Python program, under a keeper.

    Args:
        program: The engine.
        log: Where its output goes.
        grace_s: Between SIGTERM and SIGKILL.
    """

    def __init__(self, program: str, log: Path, *, grace_s: float = 5.0) -> None:
        self.log = log
        lifeline, self._life = os.pipe()
        options = ["--lifeline", str(lifeline), "--log", str(log), "--grace", str(grace_s), "--"]
        self.keeper = subprocess.Popen(
            [sys.executable, "-m", "tuneplex.launchers.keeper", *options, sys.executable, "-uc", program],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(lifeline,),
            start_new_session=True,
        )
        os.close(lifeline)
        assert self.keeper.stdout is not None
        self.engine = int(self.keeper.stdout.readline() or 0)

    def cut(self) -> None:
        """Close the lifeline."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1

    def code(self) -> int:
        """Wait for the keeper's end; its exit code, after which its session must be empty."""
        code = self.keeper.wait(20)
        assert session_members(self.keeper.pid) == []
        return code

    def says(self, text: str) -> None:
        """Wait until the engine has said something."""
        until(lambda: text in self.log.read_text())

    def end(self) -> None:
        """End what is left."""
        self.cut()
        kill_session(self.keeper.pid)
        self.keeper.wait(20)
        assert self.keeper.stdout is not None
        self.keeper.stdout.close()


MakeKept = Callable[..., Kept]


def until(condition: Callable[[], T]) -> T:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[MakeKept]:
    """Start an engine under a keeper; at the end nothing is left of it."""
    made: list[Kept] = []

    def make(program: str, *, grace_s: float = 5.0) -> Kept:
        made.append(Kept(program, tmp_path / "engine.log", grace_s=grace_s))
        return made[-1]

    yield make
    for kept in made:
        kept.end()


WITH_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("child", child.pid)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(1000)"


def test_the_exit_code_is_the_engines(keep: MakeKept) -> None:
    """The keeper ends with its engine's code, and its log holds the engine's last words."""
    kept = keep("import sys; print('out of memory', file=sys.stderr); sys.exit(3)")
    assert kept.code() == 3
    assert kept.log.read_text() == "out of memory\n"


def test_a_signal_becomes_a_code(keep: MakeKept) -> None:
    """An engine that a signal ended is told as shells tell it."""
    kept = keep("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert kept.code() == 128 + signal.SIGSEGV


def test_what_an_engine_leaves_behind_is_killed(keep: MakeKept) -> None:
    """When the first process ends, its children end."""
    kept = keep(WITH_CHILD + "sys.exit(1)")
    assert kept.code() == 1
    kept.says("child")


def test_nobody_escapes_by_leaving_the_session(keep: MakeKept) -> None:
    """A grandchild that made a session of its own and lost its parent ends with the engine, too."""
    program = """
import os, subprocess, sys, time
daemon = "import os, time; os.setsid(); print('daemon', os.getpid(), flush=True); time.sleep(1000)"
code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {daemon!r}])"
subprocess.run([sys.executable, "-c", code])
time.sleep(1)
"""
    kept = keep(program)
    kept.says("daemon")
    daemon = int(kept.log.read_text().split()[1])
    kept.keeper.terminate()
    kept.code()
    assert not Path(f"/proc/{daemon}").exists()


def test_sigterm_reaches_the_engine(keep: MakeKept) -> None:
    """SIGTERM to the keeper is SIGTERM to the engine, which may end in its own way."""
    program = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up'); time.sleep(99)"
    )
    kept = keep(program)
    kept.says("up")
    kept.keeper.terminate()
    assert kept.code() == 7


def test_an_engine_that_ignores_sigterm_is_killed(keep: MakeKept) -> None:
    """After its grace an engine is ended for sure."""
    kept = keep(DEAF, grace_s=0.3)
    kept.says("deaf")
    kept.keeper.terminate()
    assert kept.code() == 128 + signal.SIGKILL


def test_the_lifeline_ends_the_engine(keep: MakeKept) -> None:
    """When the supervisor is gone, in whatever way, the engine ends, with all its children."""
    kept = keep(WITH_CHILD + "time.sleep(1000)")
    kept.says("child")
    kept.cut()
    assert kept.code() == 128 + signal.SIGTERM


def test_a_killed_keeper_takes_the_engine_with_it(keep: MakeKept) -> None:
    """The kernel ends the engine's first process when its keeper is killed; the rest is the supervisor's."""
    kept = keep(DEAF)
    kept.says("deaf")
    kept.keeper.kill()
    until(lambda: not Path(f"/proc/{kept.engine}").exists() or kept.engine not in session_members(kept.keeper.pid))


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    """A Python that is not there is named in the log, and the code is the one that shells use."""
    lifeline, life = os.pipe()
    log = tmp_path / "engine.log"
    command = [sys.executable, "-m", "tuneplex.launchers.keeper", "--lifeline", str(lifeline), "--log", str(log), "--"]
    done = subprocess.run([*command, "/no/such/python"], pass_fds=(lifeline,), check=False, timeout=20)
    os.close(lifeline)
    os.close(life)
    assert done.returncode == 127
    assert "cannot start /no/such/python" in log.read_text()


def test_the_log_is_bounded(keep: MakeKept) -> None:
    """An engine that talks without end fills a few files of bounded size, and is not held up."""
    kept = keep("for number in range(400): print('x' * 100_000)\nprint('done')")
    assert kept.code() == 0
    files = sorted(path.name for path in kept.log.parent.glob("engine.log*"))
    assert files == ["engine.log", "engine.log.1", "engine.log.2"]
    assert kept.log.read_text().endswith("done\n")
