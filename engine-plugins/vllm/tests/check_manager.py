"""A script for the engine's Python: where adapters go, who must leave, and what is told. Prints JSON.

The managers run with vLLM's own code, over a few small layers instead of a model, and with adapters made in memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.model_manager import AdapterLRUCache, LoRAModelManager
from vllm.lora.request import LoRARequest
from vllm.lora.worker_manager import WorkerLoRAManager
from vllm.platforms import current_platform

import tuneplex_vllm
from tuneplex_vllm import decide, snapshot
from tuneplex_vllm.bodies import Paths, RefusedError, counts_of, digest_of
from tuneplex_vllm.manager import ChangedError, WorkerManager
from tuneplex_vllm.slots import LastSlotError, MatchesNothingError, SlotManager
from tuneplex_vllm.snapshot import Reader, Row, State, Writer
from tuneplex_vllm.unknown import PublicService

RANK, WIDTH = 4, 6


class Layer:
    """What the managers use of one of vLLM's LoRA layers."""

    def __init__(self, slots: int) -> None:
        self.lora_a_stacked = (torch.zeros(slots, 1, RANK, WIDTH),)
        self.lora_b_stacked = (torch.zeros(slots, 1, WIDTH, RANK),)

    def reset_lora(self, slot: int) -> None:
        """Empty a slot."""
        self.lora_a_stacked[0][slot] = 0
        self.lora_b_stacked[0][slot] = 0

    def set_lora(self, slot: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """Fill a slot."""
        self.reset_lora(slot)
        self.lora_a_stacked[0][slot, 0, : a.shape[0]].copy_(a)
        self.lora_b_stacked[0][slot, 0, :, : b.shape[1]].copy_(b)


class Kernels:
    """What the managers use of a LoRA wrapper; it knows the slots that it was told of."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def slot_changed(self, slot: int, _layers: object) -> None:
        """Remember."""
        self.told.append(slot)

    def update_metadata(self, mapping: LoRAMapping, index_to_id: list[int | None], *_rest: object) -> None:
        """As in vLLM, raise when a row's adapter has no slot."""
        for adapter in mapping.prompt_mapping:
            if adapter > 0:
                index_to_id.index(adapter)


def slot_manager(slots: int, host: int) -> SlotManager:
    """A manager over two layers."""

    def bare(self: Any, _model: object, vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's own
        self.lora_config = vllm_config.lora_config
        self.device = torch.device("cpu")
        self.modules = {"layers.0.q": Layer(slots), "layers.1.q": Layer(slots)}
        self.packed_modules, self.supports_mm, self.is_pooling_model = {}, False, False
        self._use_ep = self._enable_mixed_moe_lora_format = False
        self._classification_head = None
        self._last_mapping = self._last_slot_layout = None
        self.vocab_size = 10
        self.punica_wrapper_mapping = {"language_model": Kernels()}
        self._registered_adapters = AdapterLRUCache(host, self.deactivate_adapter)
        self._active_adapters = AdapterLRUCache(slots, self._deactivate_adapter)
        self.lora_index_to_id = [None] * slots

    original = LoRAModelManager.__init__
    LoRAModelManager.__init__ = bare
    try:
        return SlotManager(
            None,
            vllm_config=SimpleNamespace(
                model_config=SimpleNamespace(enforce_eager=False),
                parallel_config=SimpleNamespace(pipeline_parallel_size=1),
                lora_config=SimpleNamespace(max_loras=slots, max_cpu_loras=host, max_lora_rank=RANK),
            ),
        )
    finally:
        LoRAModelManager.__init__ = original


class Worker(WorkerManager):
    """A worker's manager whose adapters are made in memory instead of read; `lost` cannot be read."""

    def __init__(self, slots: int, host: int) -> None:
        self._adapter_manager = slot_manager(slots, host)
        self._requests, self._files, self._retired = {}, {}, set()
        self._batch, self.writer = frozenset(), None
        self.lost: set[int] = set()

    def step(self, *batch: int, names: str = "") -> None:
        """Run a step for these adapters, each of a name of its own, or all of the same."""
        requests = {request(number, names) for number in batch}
        self.set_active_adapters(requests, LoRAMapping(batch, batch, is_prefill=True))

    def on_device(self) -> set[int]:
        """Who has a slot."""
        return {number for number in self.slots.lora_index_to_id if number is not None}

    def true(self) -> bool:
        """Whether each slot holds the weights of the adapter that it is said to hold."""
        layers = [*self.slots.modules.values()]
        held = [float(layers[0].lora_a_stacked[0][slot, 0, 0, 0]) for slot in range(self.slots.lora_slots)]
        said = self.slots.lora_index_to_id
        return all(number is None or held[slot] == number for slot, number in enumerate(said))


def read(worker: Worker, lora_request: LoRARequest) -> LoRAModel:
    """In the place of vLLM's reader of files."""
    if lora_request.lora_int_id in worker.lost:
        raise FileNotFoundError(lora_request.lora_path)
    return adapter(lora_request.lora_int_id)


def adapter(number: int, module: str = "layers.0.q", rank: int = 2) -> LoRAModel:
    """An adapter whose weights are its id."""
    a, b = torch.full((rank, WIDTH), float(number)), torch.full((WIDTH, rank), float(number))
    return LoRAModel(number, rank, {module: LoRALayerWeights(module, rank, rank, a, b)})


def request(number: int, name: str = "") -> LoRARequest:
    """A request's adapter."""
    return LoRARequest(name or f"adapter-{number}", number, f"/adapters/{number}")


def raises(kind: type[Exception], call: Callable[[], object]) -> bool:
    """Whether a call raises that."""
    try:
        call()
    except kind:
        return True
    return False


def decisions() -> bool:
    """The pure choices: by last use, never who is needed, pins only when a batch has nobody else."""
    return (
        decide.slot_victim([1, 2, 3], {1}, {2}, pins_yield=True) == 3
        and decide.slot_victim([1, 2, 3], {1}, {2, 3}, pins_yield=True) == 1
        and decide.slot_victim([1, 2, 3], {1}, {2, 3}, pins_yield=False) is None
        and decide.host_victims([1, 2, 3, 4], {1}, {2}, {3}, 3) == [4, 1]
        and decide.host_victims([1, 2], (), (), (), 0) == []
        and decide.can_pin(1, {}, 2)
        and not decide.can_pin(2, {1: None}, 2)
        and decide.can_pin(1, {1: None}, 2)
        and not decide.can_pin(1, {}, 1)
        and decide.who_returns([1, 2, 3], {1}) == 2
        and decide.who_returns([1], {1}) is None
        and counts_of([(1, True), (1, False), (2, True)]) == {1: (1, 1), 2: (1, 0)}
    )


def a_batch_is_never_evicted() -> bool:
    """However adapters are mixed and pinned, each step has all of its own, with the right weights."""
    worker = Worker(slots=3, host=4)
    worker.step(1)
    worker.step(2)
    worker.pin_adapter(1)
    worker.pin_adapter(2)
    steps = [(3, 4, 5), (1, 3, 4), (5, 6, 7), (7,), (1, 2, 8), (8, 9, 3), (2,), (), (4, 5)]
    for step in steps * 3:
        worker.step(*step)
        if not set(step) <= worker.on_device() or not worker.true():
            return False
    return True


def pins_yield_and_return() -> bool:
    """Pinned adapters lend their slots to a batch that needs all, and have them back as soon as it does not."""
    worker = Worker(slots=3, host=6)
    for number in (1, 2):
        worker.step(number)
        worker.pin_adapter(number)
    worker.step(3)
    kept = worker.on_device() == {1, 2, 3} and worker.slots.yields == 0
    worker.step(3, 4, 5)
    lent = worker.on_device() == {3, 4, 5} and worker.slots.yields == 2
    worker.step(3)
    worker.step(3)
    back = worker.on_device() == {1, 2, 3} and worker.true()
    refused = raises(LastSlotError, lambda: worker.pin_adapter(3)) and [*worker.slots.pinned] == [1, 2]
    worker.slots.unpin_adapter(1)
    worker.step(4)
    worker.step(5)
    return kept and lent and back and refused and 1 not in worker.on_device() and 2 in worker.on_device()


def host_memory_keeps_its_capacity() -> bool:
    """Least recently used adapters leave, never pinned ones; a batch may exceed the capacity and is not cut short."""
    worker = Worker(slots=2, host=3)
    worker.step(1)
    worker.pin_adapter(1)
    for number in range(2, 9):
        with worker.wish(()):
            worker.to_host(request(number))
    kept = worker.list_adapters() == {1, 7, 8}
    tight = Worker(slots=2, host=2)
    tight.step(1, 2)
    with tight.wish({1, 2}):
        tight.to_host(request(3))
    over = tight.list_adapters() == {1, 2, 3}
    tight.step(1, 2)
    return kept and over and tight.list_adapters() == {1, 2}


def both_versions_of_a_name() -> bool:
    """Requests of vLLM are equal by name; a batch with two versions of one still computes with both."""
    worker = Worker(slots=2, host=4)
    for number in (1, 2, 3, 4):
        with worker.wish(()):
            worker.to_host(request(number, "same"))
    worker.step(1, 2, names="same")
    first = worker.on_device() == {1, 2}
    worker.step(3, 4, names="same")
    return first and worker.on_device() == {3, 4} and worker.true()


def retired_is_gone() -> bool:
    """A retired adapter leaves host memory and slot with its weights; one that comes in late leaves after its batch."""
    worker = Worker(slots=2, host=4)
    worker.step(1, 2)
    slot = worker.slots.lora_index_to_id.index(1)
    kernels = worker.slots.punica_wrapper_mapping["language_model"]
    kernels.told.clear()
    worker.retire(1)
    layers = worker.slots.modules.values()
    zero = all(not layer.lora_a_stacked[0][slot].any() for layer in layers)
    gone = worker.list_adapters() == {2} and worker.on_device() == {2} and zero and kernels.told == [slot]
    worker.step(1, 2)
    served = worker.on_device() == {1, 2} and worker.true()
    worker.step(2)
    return gone and served and worker.list_adapters() == {2}


def a_lost_adapter_ends_no_step() -> bool:
    """What cannot be read in a step gets an empty slot and is told as broken at each step; the others compute."""
    worker = Worker(slots=2, host=2)
    worker.step(1)
    worker.slots.remove_adapter(1)
    worker.lost.add(1)
    worker.step(1, 2)
    rows = {row.id: row for row in worker.slots.state().rows}
    slot = worker.slots.lora_index_to_id.index(1)
    empty = all(not layer.lora_a_stacked[0][slot].any() for layer in worker.slots.modules.values())
    worker.step(2)
    quiet = worker.slots.failures == 1
    worker.step(1)
    again = worker.slots.failures == 2
    fresh = Worker(slots=2, host=2)
    fresh.lost.add(1)
    outside = raises(FileNotFoundError, lambda: fresh.add_adapter(request(1)))
    told = rows[1].broken and not rows[2].broken and quiet and again
    return worker.on_device() == {1, 2} and told and empty and outside


def a_changed_adapter_is_not_mixed_up() -> bool:
    """Whoever left host memory comes back only from the files that it came from."""
    worker = Worker(slots=1, host=1)
    with tempfile.TemporaryDirectory() as name:
        weights = Path(name) / "adapter_model.safetensors"
        weights.write_bytes(b"one")
        here = LoRARequest("here", 1, name)
        worker.add_adapter(here)
        worker.add_adapter(request(2))
        back = worker.list_adapters() == {2} and worker.add_adapter(here) and worker.list_adapters() == {1}
        worker.add_adapter(request(2))
        weights.write_bytes(b"other")
        return back and raises(ChangedError, lambda: worker.add_adapter(here)) and worker.list_adapters() == {2}


def nothing_applied_is_an_error() -> bool:
    """An adapter without weights for any module is refused, named, and leaves nothing behind."""
    slots = slot_manager(2, 2)
    try:
        slots.add_adapter(adapter(1, "decoder.blocks.0.q"))
    except MatchesNothingError as error:
        return "decoder.blocks.0.q" in str(error) and not slots.residents and not slots.list_adapters()
    return False


def figures_are_true() -> bool:
    """Rank, bytes, use, slots and activations are told as they are."""
    worker = Worker(slots=2, host=4)
    before = time.time()
    worker.step(1)
    with worker.wish(()):
        worker.to_host(request(2))
    worker.step(1)
    state = worker.slots.state()
    first, second = state.rows
    return (
        (first.rank, first.size, first.slot) == (2, 2 * 2 * WIDTH * 4, 0)
        and before <= (first.used_at or 0) <= time.time()
        and (first.activation_s or 0) > 0
        and (second.slot, second.used_at, second.activation_s) == (None, None, None)
        and (state.slots, state.host_capacity, state.max_rank) == (2, 4, RANK)
        and state.slot_bytes == 2 * 2 * RANK * WIDTH * 4
        and (state.activations, state.activation_bytes) == (1, first.size)
    )


def a_snapshot_survives_torn_writes() -> bool:
    """A reader sees only whole states: the last one while a write is half done, the newest afterwards."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"tuneplex-vllm-{os.geteuid()}-test"
        reader = Reader(path)
        nothing = reader.read() is None
        writer = Writer(path, 4)
        old = State(1.0, 2, 4, 100, 8, rows=(Row(1, 8, 0, 10, used_at=5.0), Row(2, 8, None, 10, pinned=True)))
        writer.write(old)
        whole = reader.read() == old and Reader(path).read() == old
        with path.open("r+b") as file:
            file.seek(8)
            (sequence,) = struct.unpack("<Q", file.read(8))
            file.seek(8)
            file.write(struct.pack("<Q", sequence + 1))  # a writer that was stopped in the middle
        torn = reader.read() == old and Reader(path).read() is None
        with path.open("r+b") as file:
            file.seek(8)
            file.write(struct.pack("<Q", sequence + 2))
            file.seek(100)
            file.write(b"\xff")
        spoilt = reader.read() == old
        writer.write(old)
        writer.touch([2], 7.0)
        found = reader.read()
        touched = found is not None and found.rows[1].used_at == 7.0 and found.at > old.at
        return nothing and whole and torn and spoilt and touched and path.stat().st_mode & 0o777 == 0o600


def a_snapshot_is_whole_under_fire() -> bool:
    """While one thread writes as fast as it can, whatever another reads is a state that was written."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"tuneplex-vllm-{os.geteuid()}-fire"
        writer, reader, over = Writer(path, 40), Reader(path), threading.Event()

        def write() -> None:
            count = 0
            while not over.is_set():
                count += 1
                writer.write(State(0.0, count, count, 0, 0, rows=tuple(Row(count, count, None, 0) for _ in range(40))))

        thread = threading.Thread(target=write)
        thread.start()
        states = []
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            states.append(reader.read())
        over.set()
        thread.join()
        seen = [state for state in states if state is not None]
        whole = all({row.id for row in state.rows} == {state.slots} == {state.host_capacity} for state in seen)
        return whole and len({state.slots for state in seen}) > 5


def the_dead_leave_nothing() -> bool:
    """The file of a process that was killed is removed by the next one; that of a living one stays."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        prefix = f"tuneplex-vllm-{os.geteuid()}-"
        code = (
            "import os, sys; from pathlib import Path; from tuneplex_vllm.snapshot import Writer;"
            "writer = Writer(Path(sys.argv[1]), 1); print('up', flush=True);"
            "sys.exit() if sys.argv[2] == 'ends' else os.kill(os.getpid(), 9)"
        )
        living = Writer(directory / f"{prefix}living", 1)
        for how in ("ends", "killed"):
            path = directory / f"{prefix}{how}"
            subprocess.run([sys.executable, "-c", code, path, how], check=False, capture_output=True)
            if path.exists() != (how == "killed"):
                return False
        cleaned = snapshot.clean_up(directory)
        second = raises(OSError, lambda: Writer(directory / f"{prefix}living", 1))
        stays = [path.name for path in directory.iterdir()] == [f"{prefix}living"]
        living.close()
        told = [path.name for path in cleaned] == [f"{prefix}killed"]
        return told and second and stays and not any(directory.iterdir())


def warming_up_leaves_nothing() -> bool:
    """What vLLM loads for its warm-up is not counted, and is not told any more once it is gone."""
    worker = Worker(slots=2, host=2)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"tuneplex-vllm-{os.geteuid()}-warm"
        worker.writer = Writer(path, 4)
        for number in (1, 2):
            worker.slots.add_adapter(adapter(number))
        worker.step(1, 2)
        reader = Reader(path)
        during = reader.read()
        worker.remove_all_adapters()
        after = reader.read()
        worker.step(1)
        again = reader.read()
    if during is None or after is None or again is None:
        return False
    return len(during.rows) == 2 and during.activations == 0 and not after.rows and again.activations == 1


def content_is_told_by_its_digest() -> bool:
    """The digest follows the files' contents, not their times."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        nothing = digest_of(name) is None and digest_of(f"{name}/none") is None
        weights = directory / "adapter_model.safetensors"
        weights.write_bytes(b"one")
        first = digest_of(name)
        os.utime(weights, (1, 1))
        same = digest_of(name) == first
        weights.write_bytes(b"two")
        changed = digest_of(name) != first
        return nothing and same and changed


def each_content_has_a_path() -> bool:
    """Two contents of a name never share a path, one content keeps its own, and all paths are the same place."""
    with tempfile.TemporaryDirectory() as name:
        paths = Paths()
        told = [paths.of("a", f"{name}{end}", digest) for digest in ("1", "2", "3", "1") for end in ("", "/.", "/")]
        same = {*map(os.path.realpath, told)} == {os.path.realpath(name)}
        kept = told[:3] == [name] * 3 == told[9:] and paths.of("b", name, "2") == name
        return same and kept and len({*told}) == 3


def unknown_versions_get_what_is_public() -> bool:
    """Beside an unknown vLLM names are listed, and the rest is refused with the version in the words."""
    models = SimpleNamespace(lora_requests={"a": request(7, "a")})
    service = PublicService(models, "9.9.9", ("0.32.0",))
    listed = asyncio.run(service.listing())["adapters"][0]
    for wish in (service.unload("a", "wait", 1.0), service.move("pin", "a"), service.load("b", "/b", "host")):
        try:
            asyncio.run(wish)
        except RefusedError as refusal:
            error = refusal.body()["error"]
            if (int(refusal.status), error["code"]) != (501, "not_supported") or "9.9.9" not in error["message"]:
                return False
        else:
            return False
    return (listed["name"], listed["tier"]) == ("a", None)


def step_cost_us() -> float:
    """What a step pays for being known: four adapters of a batch of 64, in microseconds."""
    worker = Worker(slots=4, host=8)
    with tempfile.TemporaryDirectory() as name:
        worker.writer = Writer(Path(name) / f"tuneplex-vllm-{os.geteuid()}-cost", 28)
        batch = (1, 2, 3, 4) * 16
        requests = {request(number) for number in batch}
        mapping = LoRAMapping(batch, batch, is_prefill=True)
        worker.set_active_adapters(requests, mapping)
        times = []
        for _ in range(500):
            start = time.perf_counter()
            worker.set_active_adapters(requests, mapping)
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e6


if __name__ == "__main__":
    if not tuneplex_vllm.is_known("0.32.0+cpu") or not current_platform.is_cpu():
        raise SystemExit("this script is for the pinned CPU build")
    checks = (
        decisions,
        a_batch_is_never_evicted,
        pins_yield_and_return,
        host_memory_keeps_its_capacity,
        both_versions_of_a_name,
        retired_is_gone,
        a_lost_adapter_ends_no_step,
        a_changed_adapter_is_not_mixed_up,
        nothing_applied_is_an_error,
        figures_are_true,
        a_snapshot_survives_torn_writes,
        a_snapshot_is_whole_under_fire,
        the_dead_leave_nothing,
        warming_up_leaves_nothing,
        content_is_told_by_its_digest,
        each_content_has_a_path,
        unknown_versions_get_what_is_public,
    )
    WorkerLoRAManager._load_adapter = read  # noqa: SLF001 - there are no files
    found: dict[str, float] = {check.__name__: check() for check in checks}
    print("RESULT " + json.dumps(found | {"step_cost_us": step_cost_us()}))
