"""A whole fleet as processes, driven from outside and never trusted to end by itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tuneplex.app.state import StateDir
from tuneplex.errors import StateError
from tuneplex.types import AdapterVersion, Base, Change, FleetSpec, Listen, PoolSpec, Status

T = TypeVar("T")
MakeFleet = Callable[..., "Fleet"]


class _Connection(HTTPConnection):
    """One request over a UNIX socket. Unlike httpcore2 it does not leak the socket when nobody listens."""

    def __init__(self, path: Path) -> None:
        super().__init__("control", timeout=10)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Fleet:
    """One fleet under test. Every process of it carries a mark in its environment, by which it is found again.

    Args:
        directory: For its state.
        spec: What it should be; the mark is added to its pools.
        patience_s: How long to wait for anything.
    """

    def __init__(self, directory: Path, spec: FleetSpec, *, patience_s: float = 30.0) -> None:
        self._patience_s = patience_s
        self.mark = f"TUNEPLEX_TEST_MARK={uuid.uuid4().hex}"
        self.spec = self.marked(spec)
        self.state = StateDir(directory)
        self.process: subprocess.Popen[str] | None = None
        self._life: int | None = None
        self._sessions: set[int] = set()

    def marked(self, spec: FleetSpec) -> FleetSpec:
        """The same fleet, with the mark in the environment of its engines."""
        name, _, value = self.mark.partition("=")
        pools = (msgspec.structs.replace(pool, env={**pool.env, name: value}) for pool in spec.pools)
        return msgspec.structs.replace(spec, pools=tuple(pools))

    def start(self, prefix: Sequence[str] = ()) -> None:
        """Start the supervisor, with a lifeline; `prefix` is put before its command line."""
        self.state.create()
        self.state.write_spec(self.spec)
        reading, self._life = os.pipe()
        name, _, value = self.mark.partition("=")
        command = [sys.executable, "-m", "tuneplex.app.supervisor", "--state-dir", str(self.state.path)]
        self.process = subprocess.Popen(
            [*prefix, *command, "--lifeline", str(reading)],
            env={**os.environ, name: value},
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(reading,),
        )
        os.close(reading)

    def close_lifeline(self) -> None:
        """What happens when the process that started the fleet ends."""
        if self._life is not None:
            os.close(self._life)
            self._life = None

    def end(self) -> None:
        """End whatever is left, for sure."""
        self.close_lifeline()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self._patience_s)
            self.process.kill()
            self.process.wait()
            if self.process.stderr is not None:
                self.process.stderr.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.state.close_run()

    def wait(self) -> int:
        """Wait for the supervisor's end; its exit code."""
        assert self.process is not None
        return self.process.wait(self._patience_s)

    def processes(self) -> dict[int, str]:
        """Every live process of the fleet with its command line: by the mark, and by the sessions of marked ones.

        A process that renames itself may overwrite its environment, but it cannot leave its session unseen.
        """
        everything = {int(entry.name): entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
        marked = {pid for pid, entry in everything.items() if self.mark.encode() in _read(entry / "environ")}
        self._sessions |= {pid for pid in marked if session(pid) == pid}
        mine = {pid for pid in everything if pid in marked or session(pid) in self._sessions}
        return {pid: _read(everything[pid] / "cmdline").replace(b"\0", b" ").decode() for pid in mine}

    def pid(self, role: str) -> int:
        """The process whose command line holds `role`: `control_process`, `gateway_process`, `keeper`."""
        return next(pid for pid, command in self.processes().items() if role in command)

    def kill(self, pid: int) -> None:
        """SIGKILL."""
        os.kill(pid, signal.SIGKILL)

    def admin(self) -> httpx2.Client:
        """A client of the admin API."""
        # Loading certificates takes 40 ms each time, and neither client speaks TLS.
        return httpx2.Client(
            transport=httpx2.HTTPTransport(uds=str(self.state.admin_socket), verify=False),
            base_url="http://control",
            timeout=10,
        )

    def client(self) -> httpx2.Client:
        """A client of the gateway."""
        info = self.state.supervisor()
        assert info is not None
        return httpx2.Client(base_url=info.url, timeout=60, verify=False)

    def status(self) -> Status | None:
        """The status, or None while nobody answers."""
        try:
            with contextlib.closing(_Connection(self.state.admin_socket)) as connection:
                connection.request("GET", "/status")
                response = connection.getresponse()
                return msgspec.json.decode(response.read(), type=Status) if response.status == HTTPStatus.OK else None
        except (HTTPException, OSError, StateError):
            return None

    def until(self, condition: Callable[[Status], Any]) -> Status:
        """Wait for a status that meets a condition."""

        def met() -> Status | None:
            status = self.status()
            return status if status is not None and condition(status) else None

        return self.wait_for(met)

    def ready(self, *, restarts: int | None = None) -> Status:
        """Wait until the fleet is ready, with all its adapters on all their replicas.

        Args:
            restarts: How often the first replica must have been started again, if that matters.
        """

        def complete(status: Status) -> bool:
            if restarts is not None and (not status.replicas or status.replicas[0].restarts != restarts):
                return False
            pools = {pool.name: pool.replicas for pool in self.spec.pools}
            full = all(len(adapter.replicas) == pools.get(adapter.version.pool, 1) for adapter in status.adapters)
            count = sum(replica.state == "ready" for replica in status.replicas)
            return status.ready and full and count == sum(pools.values()) == len(status.replicas)

        return self.until(complete)

    def wait_for(self, condition: Callable[[], T | None]) -> T:
        """Wait until a condition holds."""
        deadline = time.monotonic() + self._patience_s
        while not (found := condition()):
            logs = sorted(self.state.logs.glob("*.log"))
            if time.monotonic() > deadline:
                raise AssertionError("\n".join(f"== {log.name}\n{log.read_text()[-2000:]}" for log in logs))
            time.sleep(0.05)
        return found

    def gone(self, *pids: int) -> None:
        """Wait until these processes, or all of the fleet, are gone."""
        self.wait_for(lambda: not (set(self.processes()) & set(pids) if pids else self.processes()))

    def apply(self, spec: FleetSpec, *, dry_run: bool = False) -> tuple[Change, ...]:
        """Apply another description."""
        marked = self.marked(spec)
        with self.admin() as admin:
            reply = admin.post(
                "/apply", params={"dry_run": "1"} if dry_run else {}, content=msgspec.json.encode(marked)
            )
        reply.raise_for_status()
        if not dry_run:
            self.spec = marked
        return msgspec.json.decode(reply.content, type=tuple[Change, ...])

    def counted(self, name: str, **labels: str) -> int:
        """A counter of the fleet, all samples with these labels together; `name` is without `_total`."""
        with self.client() as client:
            page = client.get(str(client.base_url).replace("/v1/", "/metrics")).text
        families = [family for family in text_string_to_metric_families(page) if family.name == name]
        samples = [
            sample for family in families for sample in family.samples if labels.items() <= sample.labels.items()
        ]
        return round(sum(sample.value for sample in samples))

    def ask(self, model: str = "base") -> str:
        """One short answer from a model."""
        with self.client() as client:
            reply = client.post("/completions", json={"model": model, "prompt": "hello", "max_tokens": 8})
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["text"])

    @contextlib.contextmanager
    def stream(self, model: str = "base", **body: Any) -> Iterator[Iterator[dict[str, Any]]]:  # noqa: ANN401 - any JSON
        """A stream of chunks from a model."""
        request = {"model": model, "prompt": "hello", "max_tokens": 60, "stream": True, "ignore_eos": True, **body}
        with self.client() as client, client.stream("POST", "/completions", json=request) as reply:
            assert reply.status_code == 200
            lines = (line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: "))
            yield (json.loads(line) if line != "[DONE]" else {"done": True} for line in lines)


def one_pool(
    python: str,
    *versions: AdapterVersion,
    base: str = "/models/base",
    gateways: int = 1,
    **pool: Any,  # noqa: ANN401 - PoolSpec's
) -> FleetSpec:
    """A fleet of one pool on an ephemeral port."""
    pools = (PoolSpec("default", **{"python": python, **pool}),)
    listen = Listen(port=0, gateways=gateways)
    return FleetSpec("fleet", Base("base", base), versions, pools=pools, listen=listen)


def session(pid: int) -> int:
    """The session of a process, -1 for one that is gone or a zombie."""
    state, _parent, _group, found = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()[:4] or (b"Z",) * 4
    return -1 if state in b"ZX" else int(found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
