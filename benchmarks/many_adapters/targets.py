"""What is compared: a fleet before a vLLM, and a vLLM alone; both engines are started in the same way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from benchmarks.errors import BenchmarkError
from tests.support.fleets import Fleet
from tests.support.real_engine import RealEngine, real_engine
from tests.support.residency import write_big_adapter
from tuneplex.types import AdapterVersion, Base, FleetSpec, GatewaySettings, Listen, PoolSpec, Waiting

__all__ = ["TARGETS", "Sizes", "Target", "body", "client", "flags", "fleet", "plain", "write_adapters"]

TARGETS = {
    "tuneplex": "gateway and residency ledger before vLLM with the plugin",
    "plain": "vLLM with the plugin's kernels, asked directly: first come, first served",
}
_POOL = "default"
_PATIENCE_S = 600.0
_RANKS = (8, 8, 8, 16)
_ENV = {"VLLM_PLUGINS": "tuneplex"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many slots, adapters in host memory, and requests at a time each engine has."""

    slots: int
    host: int
    concurrent: int


@dataclass(frozen=True)
class Target:
    """Something that can be asked.

    Attributes:
        name: As in `TARGETS`.
        url: Where requests go.
        uds: The Unix socket that they take, if it is none of TCP.
        key: The bearer token.
        engine: Whose slots are counted.
    """

    name: str
    url: str
    uds: str | None
    key: str
    engine: RealEngine

    def switches(self) -> int:
        """How often the engine has put an adapter into a slot so far.

        Raises:
            BenchmarkError: It does not tell.
        """
        with self.engine.client() as client:
            reply = client.get("/v1/tuneplex/adapters")
        count = reply.json()["activations"]["count"] if reply.is_success else None
        if not isinstance(count, int):
            raise BenchmarkError(f"{self.name}: the engine does not count: {reply.text[:300]}")
        return count


def flags(sizes: Sizes) -> str:
    """What both engines are started with."""
    return (
        f"--enable-lora --max-loras {sizes.slots} --max-cpu-loras {sizes.host} --max-lora-rank 16 "
        f"--max-num-seqs {sizes.concurrent} --max-model-len 512 --dtype bfloat16 --enforce-eager "
        "--no-enable-prefix-caching --disable-uvicorn-access-log"
    )


def write_adapters(directory: Path, names: list[str]) -> dict[str, AdapterVersion]:
    """Random adapters of all linear modules, by name: three of rank 8 for each of rank 16."""
    found = {}
    for number, name in enumerate(names):
        rank = _RANKS[number % len(_RANKS)]
        path = write_big_adapter(directory / name, rank=rank, seed=number)
        found[name] = AdapterVersion(name, f"{number:064x}"[::-1], str(path), rank, _POOL)
    return found


@contextlib.contextmanager
def plain(python: Path, base: Path, sizes: Sizes, adapters: Mapping[str, AdapterVersion]) -> Iterator[Target]:
    """An engine alone, with all adapters loaded by its own route."""
    with real_engine(python, base, flags=flags(sizes), env=_ENV) as engine:
        with engine.client() as client:
            for name, version in adapters.items():
                reply = client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": version.path})
                if not reply.is_success:
                    raise BenchmarkError(f"{name} cannot be loaded: {reply.text[:300]}")
        yield Target("plain", "http://engine", str(engine.uds), engine.secret, engine)


@contextlib.contextmanager
def fleet(
    python: Path, base: Path, sizes: Sizes, adapters: Mapping[str, AdapterVersion], directory: Path
) -> Iterator[Target]:
    """A fleet with one such vLLM, which it loads all adapters into."""
    with real_engine(python, base, flags=flags(sizes), env=_ENV) as engine:
        pool = PoolSpec(
            _POOL,
            launcher="external",
            urls=(engine.endpoint,),
            secret=engine.secret,
            max_loras=sizes.slots,
            max_cpu_loras=sizes.host,
            concurrent=sizes.concurrent,
        )
        spec = FleetSpec(
            "many",
            Base("base", str(base)),
            tuple(adapters.values()),
            pools=(pool,),
            listen=Listen(port=0),
            gateway=GatewaySettings(waiting=Waiting(requests=10_000, longest_s=_PATIENCE_S)),
        )
        running = Fleet(directory / "state", spec, patience_s=_PATIENCE_S)
        try:
            running.start()
            running.ready()
            info = running.state.supervisor()
            if info is None:
                raise BenchmarkError("the fleet has ended")
            yield Target("tuneplex", info.url.removesuffix("/v1"), None, "", engine)
        finally:
            running.end()


def body(adapter: str, prompt: tuple[int, ...], tokens: int) -> bytes:
    """A request for a stream."""
    asked = {"model": adapter, "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return json.dumps({**asked, "stream": True}).encode()


def client(target: Target) -> httpx2.AsyncClient:
    """A client of a target, with as many connections as it takes."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {target.key}"} if target.key else {})
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    transport = httpx2.AsyncHTTPTransport(uds=target.uds, limits=limits, verify=False)
    return httpx2.AsyncClient(transport=transport, base_url=target.url, headers=headers, timeout=_PATIENCE_S)
