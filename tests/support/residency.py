"""A real vLLM with the plugin's residency routes, spoken to as a client does; a witness says what the engine has."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import shutil
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.support.fleets import session
from tests.support.lora import LAYERS, write_adapter
from tests.support.real_engine import RealEngine

__all__ = [
    "LONG",
    "PREFIX",
    "RANK",
    "Residency",
    "Stream",
    "replace_adapter",
    "residency",
    "value_count",
    "write_big_adapter",
    "write_unmatched_adapter",
]

PREFIX = "/v1/tuneplex"
RANK = 32
"""Of the small random adapters: with a lower one, some of them happen to say the same."""
PATIENCE_S = 60.0
_WORDS = [
    "river",
    "stone",
    "apple",
    "seven",
    "under",
    "green",
    "letter",
    "walk",
    "because",
    "music",
    "garden",
    "never",
    "window",
    "paper",
    "cold",
    "eleven",
]
LONG = " ".join(random.Random(0).choices(_WORDS, k=300))  # noqa: S311 - a prompt is no secret
"""Longer than two of the blocks of 128 tokens in which vLLM's CPU build keeps its prefix cache; nothing repeats."""

_SHAPES = {
    "self_attn.q_proj": (576, 576),
    "self_attn.k_proj": (576, 192),
    "self_attn.v_proj": (576, 192),
    "self_attn.o_proj": (576, 576),
    "mlp.gate_proj": (576, 1536),
    "mlp.up_proj": (576, 1536),
    "mlp.down_proj": (1536, 576),
}


def write_big_adapter(directory: Path, *, rank: int = 128, seed: int = 0) -> Path:
    """Write an adapter of all linear modules in bfloat16: at rank 128, 156 MB once an engine has it in float32."""
    directory.mkdir(parents=True)
    chance = random.Random(seed)  # noqa: S311 - weights are no secret
    # The upper halves of 32-bit floats; one table that is read from changing places stands for random numbers.
    floats = array("f", (chance.uniform(-0.02, 0.02) for _ in range(65_537))).tobytes()
    table = b"".join(floats[index + 2 : index + 4] for index in range(0, len(floats), 4))
    header: dict[str, object] = {}
    end = 0
    for name, shape in _big_tensors(rank):
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with (directory / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _, shape in _big_tensors(rank):
            start, size = 2 * chance.randrange(len(table) // 2), 2 * math.prod(shape)
            file.write((table * (size // len(table) + 2))[start : start + size])
    modules = [module.rpartition(".")[2] for module in _SHAPES]
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": modules}
    (directory / "adapter_config.json").write_text(json.dumps(config | {"bias": "none"}))
    return directory


def _big_tensors(rank: int) -> Iterator[tuple[str, tuple[int, int]]]:
    for layer in range(LAYERS):
        for module, (inputs, outputs) in _SHAPES.items():
            stem = f"base_model.model.model.layers.{layer}.{module}"
            yield f"{stem}.lora_A.weight", (rank, inputs)
            yield f"{stem}.lora_B.weight", (outputs, rank)


def write_unmatched_adapter(directory: Path) -> Path:
    """Write an adapter whose modules have the right last names in a place that the base does not have."""
    write_adapter(directory)
    weights = directory / "adapter_model.safetensors"
    header, data = _split(weights)
    head = json.dumps(header).replace("model.model.layers", "model.decoder.blocks").encode()
    weights.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return directory


def value_count(directory: Path) -> int:
    """How many numbers an adapter holds."""
    header, _ = _split(directory / "adapter_model.safetensors")
    return sum(math.prod(entry["shape"]) for entry in header.values())


def _split(weights: Path) -> tuple[dict[str, Any], bytes]:
    content = weights.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def replace_adapter(directory: Path, other: Path) -> None:
    """Put another adapter's files into a directory; whoever still reads the old files keeps them."""
    for source in other.iterdir():
        target = directory / source.name
        fresh = target.with_suffix(".new")
        shutil.copyfile(source, fresh)
        fresh.replace(target)


@dataclass
class Stream:
    """A completion that is under way.

    Attributes:
        text: What came so far.
        finish: Why it ended; None while it goes on.
        error: What the engine said instead of going on.
    """

    lines: Iterator[str]
    text: str = ""
    finish: str | None = None
    error: Any = None

    def one(self) -> bool:
        """Wait for one more chunk; whether there was one."""
        for line in self.lines:
            if line.startswith("data: ") and line != "data: [DONE]":
                self._take(json.loads(line.removeprefix("data: ")))
                return True
        return False

    def rest(self) -> str:
        """Read to the end; the whole text."""
        while self.one():
            pass
        assert self.error is None, self.error
        return self.text

    def goes_on_with(self, words: str) -> bool:
        """Read until that much has come, however long it would go on; whether these are the words so far."""
        while len(self.text) < len(words) and self.one():
            pass
        return self.error is None and self.text.startswith(words)

    def _take(self, chunk: dict[str, Any]) -> None:
        self.error = chunk.get("error")
        for choice in chunk.get("choices", ()):
            self.text += choice["text"]
            self.finish = choice["finish_reason"]


@dataclass(frozen=True)
class Residency:
    """One engine and its routes.

    Attributes:
        engine: The vLLM.
        client: A client of it, with the key.
        witness: Whether the engine's developer routes are open, so that its workers can be asked directly.
    """

    engine: RealEngine
    client: httpx2.Client
    witness: bool = True
    _paths: dict[str, Path] = field(default_factory=dict)

    # What the routes do.

    def listing(self) -> dict[str, Any]:
        """The list of adapters with its totals."""
        reply = self.client.get(f"{PREFIX}/adapters")
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def entries(self) -> dict[str, dict[str, Any]]:
        """The list's entries by name."""
        return {entry["name"]: entry for entry in self.listing()["adapters"]}

    def entry(self, name: str) -> dict[str, Any]:
        """One entry of the list."""
        return self.entries()[name]

    def post(self, route: str, **body: object) -> httpx2.Response:
        """Call one of the plugin's routes."""
        return self.client.post(f"{PREFIX}/{route}", json=body)

    def done(self, route: str, **body: object) -> dict[str, Any]:
        """Call a route that must succeed; its answer."""
        reply = self.post(route, **body)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def refused(self, route: str, **body: object) -> tuple[int, str, str]:
        """Call a route that must refuse; status, code and message."""
        reply = self.post(route, **body)
        assert reply.status_code >= 400, reply.text
        error = reply.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return reply.status_code, str(error["code"]), str(error["message"])

    def load(self, name: str, path: Path | None = None, **more: object) -> dict[str, Any]:
        """Load an adapter, by default the small random one that always belongs to this name; its entry."""
        return self.done("load", name=name, path=str(path or self.adapter(name)), **more)

    def adapter(self, name: str) -> Path:
        """The directory of the small random adapter of that name."""
        if name not in self._paths:
            # A seed that is the same in every process, so that the same name has the same weights everywhere.
            self._paths[name] = write_adapter(
                self.engine.adapters / name, rank=RANK, seed=int.from_bytes(name.encode())
            )
        return self._paths[name]

    def clear(self) -> None:
        """Unpin and unload everything."""
        self.post("resume")
        for name, entry in self.entries().items():
            if entry["pinned"]:
                self.done("unpin", name=name)
            self.done("unload", name=name)

    # What models say.

    def say(self, model: str, prompt: str = "The river runs", tokens: int = 8) -> str:
        """What a model says, decoded greedily."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        reply = self.client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["text"])

    def say_all(self, models: Iterable[str], prompt: str = "The river runs", tokens: int = 8) -> dict[str, str]:
        """What several models say, asked all at once."""
        wanted = [*models]
        with ThreadPoolExecutor(len(wanted)) as pool:
            return dict(zip(wanted, pool.map(lambda model: self.say(model, prompt, tokens), wanted), strict=True))

    @contextlib.contextmanager
    def stream(self, model: str, prompt: str = "The river runs", tokens: int = 40) -> Iterator[Stream]:
        """A completion of which the first tokens have come."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        with self.client.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
            assert reply.status_code == 200, reply.read()
            stream = Stream(reply.iter_lines())
            while not stream.text:
                assert stream.one(), stream.error
            yield stream

    # What the engine itself says.

    def engine_ids(self) -> set[int]:
        """The ids of the adapters that the engine has in its host memory, as its worker says."""
        reply = self.client.post("/collective_rpc", json={"method": "list_loras"})
        assert reply.status_code == 200, reply.text
        (ids,) = reply.json()["results"]
        return set(ids)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a series' values; there must be one."""
        values = [value for found, value in self._samples(name) if labels.items() <= found.items()]
        assert values, f"{name} has no sample with {labels}"
        return sum(values)

    def _samples(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        for line in self.client.get("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name:
                yield dict(re.findall(r'(\w+)="([^"]*)"', series)), float(value)

    def memory(self) -> int:
        """The memory of all the engine's processes in bytes; what they share is counted once."""
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        return sum(_proportional(pid) for pid in pids if session(pid) == self.engine.leader)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.listing()
            time.sleep(0.02)


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def residency(engine: RealEngine) -> Iterator[Residency]:
    """Speak to an engine; the connections are closed at the end."""
    with engine.client() as client:
        yield Residency(engine, client)
