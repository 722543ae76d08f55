"""What a tenant pays whose records are required: `.venv/bin/python benchmarks/gateway/recorded.py`.

One client alone asks for short replies, in turns with and without that its tenant's records are required; the engine is
a FakeEngine in the same process. What is compared is the time of a request, because what is waited for is the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median

import uvloop

from tuneplex.gateway import Gateway, serve
from tuneplex.identity import Access, Key, Tenant
from tuneplex.journal import Journal
from tuneplex.testing import FakeEngine
from tuneplex.types import FleetView, Model, Replica

_KEYS = {"required": "sk-required", "best-effort": "sk-best-effort"}
_BODY = json.dumps({"model": "base", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}).encode()
_WARM = 20
_OK = b"HTTP/1.1 200"


def main() -> int:
    """Measure and print; 0 if every reply was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="of each kind, in turns (default 15)")
    parser.add_argument("--requests", type=int, default=200, help="in each round (default 200)")
    parser.add_argument("--directory", type=Path, help="where the journal lies; its disk is what is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tp", dir=options.directory) as folder:
        found = uvloop.run(_measure(Path(folder), options.rounds, options.requests))
    _print(found)
    return 0


async def _measure(folder: Path, rounds: int, requests: int) -> dict[str, list[float]]:
    """The median of each round, seconds."""
    found: dict[str, list[float]] = {name: [] for name in _KEYS}
    async with _gateway(folder) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(rounds):
            for name, key in _KEYS.items():
                times = [await _ask(reader, writer, key) for _ in range(_WARM + requests)]
                found[name].append(median(times[_WARM:]))
        writer.close()
    return found


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> float:
    began = time.perf_counter()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    writer.write(f"{head}content-length: {len(_BODY)}\r\n\r\n".encode() + _BODY)
    reply = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in reply.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.split(b":")[1]))
    took = time.perf_counter() - began
    if not reply.startswith(_OK):
        raise SystemExit(f"a wrong reply: {reply!r}")
    return took


@contextlib.asynccontextmanager
async def _gateway(folder: Path) -> AsyncIterator[int]:
    """A gateway with a journal before one engine; its port."""
    tenants = Tenant("required", recorded=True), Tenant("best-effort")
    keys = tuple(Key(name, name, hashlib.sha256(secret.encode()).hexdigest()) for name, secret in _KEYS.items())
    journal = Journal(folder, "benchmark")
    async with FakeEngine("base") as engine:
        replica = Replica("default-0", "default", "vllm", engine.url, serves={"base": "base"}, concurrent=64)
        view = FleetView(1, models={"base": Model("base", "base")}, replicas=(replica,))
        access = Access(1, required=True, salt="s" * 32, tenants=tenants, keys=keys)
        stop = asyncio.Event()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(serve(Gateway(0, view, access, journal=journal), listener, stop=stop))
            try:
                yield listener.getsockname()[1]
            finally:
                stop.set()
                await serving
    await asyncio.to_thread(journal.close)


def _print(found: dict[str, list[float]]) -> None:
    for name, times in found.items():
        print(f"{name:12} {median(times) * 1e3:6.3f} ms  ({_range(times)})")
    print(f"ratio        {median(found['required']) / median(found['best-effort']):6.2f}")


def _range(times: Sequence[float]) -> str:
    return f"{min(times) * 1e3:.3f} to {max(times) * 1e3:.3f} ms in {len(times)} rounds"


if __name__ == "__main__":
    sys.exit(main())
