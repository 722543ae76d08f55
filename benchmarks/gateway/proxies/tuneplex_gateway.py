"""A tuneplex gateway by itself, with a fleet of one replica that never changes.

It asks for a key, one of a thousand, counts for its metrics, renames the adapter and reports each second, as in a
fleet; only the feed that would carry the reports away is missing. On demand the tenant, the key and the model have
limits, the replica has so few places that requests wait, streams could be continued at another replica, several
gateways share the port, or a journal is written, of which a second process makes usage and the audit log.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
import uvloop
from tokenizers import Tokenizer, models

from tuneplex.gateway import Gateway, serve
from tuneplex.identity import Access, Key, Limits, Tenant
from tuneplex.journal import Journal
from tuneplex.types import FleetView, GatewaySettings, Model, Replica

_REPORT_S = 1.0
_OTHER_KEYS = 999
_PLENTY = Limits(
    requests_per_minute=10**9, tokens_per_minute=10**12, tokens_per_day=10**14, concurrent=10**6
)  # what is measured is the checking, not the refusing


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("upstream")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True, help="the adapter's name for clients")
    parser.add_argument("--engine-model", required=True, help="its name for the engine")
    parser.add_argument("--limits", action="store_true", help="limits of every kind for tenant, key and model")
    parser.add_argument("--records", action="store_true", help="a journal, and what control makes of it")
    parser.add_argument("--migrate", action="store_true", help="streams can be continued elsewhere")
    parser.add_argument("--processes", type=int, default=1, help="that share the port, as `--gateways` in a fleet")
    parser.add_argument("--places", type=int, default=2048, help="requests that the engine works on at a time")
    options = parser.parse_args()
    factory = uvloop.new_event_loop if options.loop == "uvloop" else asyncio.new_event_loop
    with socket.create_server(("127.0.0.1", options.port)) as sock, tempfile.TemporaryDirectory(prefix="tp") as folder:
        tokenizer = _any_tokenizer(Path(folder)) if options.migrate else ""
        index = _fork(options.processes)
        with asyncio.Runner(loop_factory=factory) as runner:
            journal = _journal(Path(folder)) if options.records else None
            with _control(Path(folder)) if options.records else nullcontext():
                runner.run(_serve(options, sock, tokenizer, index, journal))


def _any_tokenizer(folder: Path) -> str:
    """Without one no stream could be continued, so no ids would be asked for; none of them breaks here."""
    path = str(folder / "tokenizer.json")
    Tokenizer(models.BPE()).save(path)
    return path


def _journal(folder: Path) -> Journal:
    return Journal(folder / "journal", "gateway-0-bench", fleet="bench")


@contextmanager
def _control(folder: Path) -> Iterator[None]:
    """What control does with journals, in a process of its own, as in a fleet; its time is counted with ours."""
    script = Path(__file__).with_name("tuneplex_records.py")
    with subprocess.Popen([sys.executable, str(script), str(folder)]) as process:
        try:
            yield
        finally:
            process.terminate()


def _fork(processes: int) -> int:
    """Become so many; which of them this one is."""
    for index in range(1, processes):
        if os.fork() == 0:
            return index
    return 0


async def _serve(
    options: argparse.Namespace, sock: socket.socket, tokenizer: str, index: int, journal: Journal | None
) -> None:
    gateway = Gateway(index, _view(options, tokenizer), _access(options), journal=journal)
    await gateway.counter.loaded()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    reports = asyncio.create_task(_report(gateway))
    await serve(gateway, sock, stop=stop)
    reports.cancel()
    if journal is not None:
        await asyncio.to_thread(journal.close)


async def _report(gateway: Gateway) -> None:
    """Make a report each second, as a gateway in a fleet does."""
    while True:
        await asyncio.sleep(_REPORT_S)
        msgspec.msgpack.encode(gateway.report())


def _access(options: argparse.Namespace) -> Access:
    limits = _limits(options)
    secrets = (options.key, *(f"other-{number}" for number in range(_OTHER_KEYS)))
    keys = (
        Key(f"k{number}", "acme", hashlib.sha256(secret.encode()).hexdigest(), limits=limits)
        for number, secret in enumerate(secrets)
    )
    return Access(1, required=True, salt="s" * 32, tenants=(Tenant("acme", limits=limits),), keys=tuple(keys))


def _limits(options: argparse.Namespace) -> Limits:
    return _PLENTY if options.limits else Limits()


def _view(options: argparse.Namespace, tokenizer: str) -> FleetView:
    base = Model("base", "base")
    adapter = Model(options.model, options.engine_model, parent="base", limits=_limits(options))
    serves = {"base": "base", options.engine_model: options.engine_model}
    return FleetView(
        generation=1,
        models={base.name: base, adapter.name: adapter},
        replicas=(
            Replica(
                "default-0",
                "default",
                "vllm",
                options.upstream,
                serves=serves,
                concurrent=options.places,
                slots=4,
                context=131072,
            ),
        ),
        settings=GatewaySettings(require_key=True, migrate=options.migrate),
        gateways=options.processes,
        tokenizer=tokenizer,
    )


if __name__ == "__main__":
    main()
