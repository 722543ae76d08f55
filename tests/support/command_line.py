"""The command line as a person uses it: a directory with a fleet file, a home of its own, and real processes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from zlib import crc32

from tuneplex.testing import write_fake_python

__all__ = ["CommandLine", "Running", "write_adapter", "write_base"]

Shapes = Mapping[str, tuple[int, ...]]
_PATIENCE_S = 120.0  # for one command; machines that run tests are busy


def write_base(directory: Path) -> Path:
    """A base model of width 32 with one layer; its numbers are all zero."""
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1}
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    _write_tensors(directory / "model.safetensors", {"model.layers.0.self_attn.q_proj.weight": (32, 32)})
    return directory


def write_adapter(directory: Path, rank: int = 8, width: int = 32) -> Path:
    """An adapter for that base, or of another width for none."""
    config: dict[str, object] = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"]}
    config |= {"base_model_name_or_path": directory.name}
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes = {f"{module}.lora_A.weight": (rank, width), f"{module}.lora_B.weight": (width, rank)}
    _write_tensors(directory / "adapter_model.safetensors", shapes, value=0.01 + crc32(directory.name.encode()) / 2**40)
    return directory


def _write_tensors(file: Path, shapes: Shapes, value: float = 0.0) -> None:
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * 4
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + struct.pack("<f", value) * (end // 4))


class Running:
    """A command that runs in the background; its lines can be awaited."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()

    def line(self, text: str) -> str:
        """Wait for a line that holds `text`; return it."""
        with self._news:
            found = self._news.wait_for(lambda: self._find(text) or self.process.poll() is not None, _PATIENCE_S)
        assert found, f"no line with {text!r} in {self.lines}"
        line = self._find(text)
        assert line, f"ended without a line with {text!r}: {self.lines}"
        return line

    def _find(self, text: str) -> str:
        return next((line for line in self.lines if text in line), "")

    def end(self, number: signal.Signals) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit code."""
        code = self.process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        return code


class CommandLine:
    """Runs `tuneplex` in one directory, with state and cache of its own.

    Args:
        directory: Where the fleet file is.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._home = Path(tempfile.mkdtemp(prefix="tp", dir="/tmp"))
        self._mark = f"TUNEPLEX_TEST_MARK={uuid.uuid4().hex}"
        self._running: list[Running] = []
        self.env = {
            name: value
            for name, value in os.environ.items()
            if name not in {"TUNEPLEX_API_KEY", "TUNEPLEX_STATE_DIR", "FORCE_COLOR"}
        }
        self.env |= dict([self._mark.split("=")])
        self.env |= {"XDG_STATE_HOME": str(self._home / "state"), "XDG_CACHE_HOME": str(self._home / "cache")}
        self.python = write_fake_python(self._home / "python")

    @property
    def states(self) -> Path:
        """The directory of all state directories."""
        return self._home / "state" / "tuneplex"

    def write_fleet(self, more: str = "", *, name: str = "shop", pool: str = "replicas: 1", env: str = "") -> Path:
        """Write fleet.yaml: a base, the adapters `contacts` and `sql`, one pool with FakeEngine, any free port."""
        models = self.directory / "models"
        if not models.exists():
            write_base(models / "tiny")
            write_adapter(models / "contacts")
            write_adapter(models / "sql", rank=16)
        mark, _, value = self._mark.partition("=")
        path = self.directory / "fleet.yaml"
        path.write_text(
            f"name: {name}\n"
            "base: models/tiny\n"
            f"engine: {{python: {self.python}}}\n"
            f"pools: {{default: {{{pool}, env: {{{mark}: '{value}'{env}}}}}}}\n"
            "adapters:\n  contacts: models/contacts\n  sql: models/sql\n"
            f"{more or 'gateway: {port: 0}'}\n"
        )
        return path

    def run(
        self,
        *words: str,
        stdin: str = "",
        stdout: int | IO[bytes] = subprocess.PIPE,
        patience_s: float = _PATIENCE_S,
        **env: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with further environment variables."""
        return subprocess.run(
            self._command(words),
            cwd=self.directory,
            env=self.env | env,
            input=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=patience_s,
            check=False,
        )

    def completed(self, *words: str) -> list[str]:
        """What the shell offers for the last of these words, by typer's own mechanism."""
        env = {"_TUNEPLEX_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        script = "import sys; sys.argv[0] = 'tuneplex'; import tuneplex.cli as c; c.main()"
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=self.env | env, capture_output=True, text=True, check=False)
        return done.stdout.split()

    def start(self, *words: str) -> Running:
        """Start a command in the background."""
        process = subprocess.Popen(
            self._command(words),
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running.append(Running(process))
        return self._running[-1]

    @staticmethod
    def _command(words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "tuneplex.cli", *words]

    def processes(self) -> dict[int, str]:
        """All processes that came out of commands and live, with their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and self._mark.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def all_gone(self) -> bool:
        """Wait until no process is left; whether that came true."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """End whatever is left, for sure."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for running in self._running:
            running.wait()
            if running.process.stdout is not None:
                running.process.stdout.close()
        for link in self.states.glob("*/run"):
            shutil.rmtree(link.resolve(), ignore_errors=True)
        shutil.rmtree(self._home)
