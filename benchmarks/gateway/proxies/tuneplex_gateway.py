"""A tuneplex gateway by itself, with a fleet of one replica that never changes.

It asks for a key, counts for its metrics, renames the adapter and reports each second, as in a fleet; only the feed
that would carry the reports away is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import signal
import socket

import msgspec
import uvloop

from tuneplex.gateway import Gateway, serve
from tuneplex.identity import Access
from tuneplex.types import FleetView, GatewaySettings, Model, Replica

_REPORT_S = 1.0


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("upstream")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True, help="the adapter's name for clients")
    parser.add_argument("--engine-model", required=True, help="its name for the engine")
    options = parser.parse_args()
    factory = uvloop.new_event_loop if options.loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    gateway = Gateway(0, _view(options), Access())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    reports = asyncio.create_task(_report(gateway))
    with socket.create_server(("127.0.0.1", options.port)) as sock:
        await serve(gateway, sock, stop=stop)
    reports.cancel()


async def _report(gateway: Gateway) -> None:
    """Make a report each second, as a gateway in a fleet does."""
    while True:
        await asyncio.sleep(_REPORT_S)
        msgspec.msgpack.encode(gateway.report())


def _view(options: argparse.Namespace) -> FleetView:
    base = Model("base", "base")
    adapter = Model(options.model, options.engine_model, parent="base")
    serves = {"base": "base", options.engine_model: options.engine_model}
    return FleetView(
        generation=1,
        models={base.name: base, adapter.name: adapter},
        replicas=(Replica("default-0", "default", "vllm", options.upstream, serves=serves),),
        settings=GatewaySettings(key_sha256=hashlib.sha256(options.key.encode()).hexdigest()),
    )


if __name__ == "__main__":
    main()
