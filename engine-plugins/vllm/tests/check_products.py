"""A script for the engine's Python: the wrapper's products against a row-by-row float64 reference. Prints JSON.

`PYTHON check_products.py [EXAMPLES] [--random]`. Hypothesis makes up the shapes: the largest rank and each slot's own,
merged modules with parts that an adapter leaves out, float32 and bfloat16, batches of up to 300 rows in any order, and
slots that get other weights between steps. The stacks are what vLLM's LoRA layers hold (padded to the largest rank),
and the wrapper is driven as a step of the engine drives it. All runs with each unit of the CPU that the native kernel
knows, and without the kernel, as if there had been no C compiler. Without `--random` the examples are always the same.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from vllm.lora.layers import LoRAMapping

from tuneplex_vllm import native
from tuneplex_vllm.wrapper import RankExactWrapper

VOCABULARY = 200
MAX_ROWS = 300
MODULES = {
    "small": {"o_proj": (48, (40,)), "gate_up": (48, (96, 96)), "qkv": (48, (48, 16, 16))},
    "large": {"down_proj": (1536, (576,)), "qkv": (576, (576, 192, 192)), "gate_up": (576, (1536, 1536))},
}
POISON = (float("nan"), float("inf"), float("-inf"))
Slots = list[int]


@dataclass
class Layer:
    """The weights of one module for all slots, as vLLM's layers hold them.

    Attributes:
        lora_a_stacked: `[slots, 1, max_rank, inputs]`, one for each merged part; a bare tensor for heads.
        lora_b_stacked: `[slots, 1, outputs, max_rank]`, the same.
    """

    lora_a_stacked: tuple[torch.Tensor, ...] | torch.Tensor
    lora_b_stacked: tuple[torch.Tensor, ...] | torch.Tensor

    def parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A and B of each merged part."""
        a, b = self.lora_a_stacked, self.lora_b_stacked
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            return iter([(a, b)])
        return zip(a, b, strict=True)


def layer_of(slots: int, max_rank: int, inputs: int, outputs: tuple[int, ...], dtype: torch.dtype) -> Layer:
    """Empty stacks for a module with these merged parts."""
    a = tuple(torch.zeros(slots, 1, max_rank, inputs, dtype=dtype) for _ in outputs)
    b = tuple(torch.zeros(slots, 1, size, max_rank, dtype=dtype) for size in outputs)
    return Layer(a, b)


def bare(layer: Layer) -> Layer:
    """The same with bare tensors, as the layers of heads have them."""
    return Layer(layer.lora_a_stacked[0], layer.lora_b_stacked[0])


@dataclass
class Embedding:
    """The weights of an embedding for all slots, as vLLM's layer holds them.

    Attributes:
        lora_a_stacked: `[slots, vocabulary, max_rank]`.
        lora_b_stacked: `[slots, 1, outputs, max_rank]`.
        lora_a_stacked_2d: A as one table, in which vLLM looks tokens up.
    """

    lora_a_stacked: torch.Tensor
    lora_b_stacked: torch.Tensor

    def __post_init__(self) -> None:
        self.lora_a_stacked_2d = self.lora_a_stacked.view(-1, self.lora_a_stacked.shape[2])

    def parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A as for the other layers, and B."""
        return iter([(self.lora_a_stacked.transpose(1, 2)[:, None], self.lora_b_stacked)])


@dataclass
class Engine:
    """A wrapper, the modules of a model, and what the test knows of them.

    Attributes:
        linear: The linear modules by name.
        head: The logits' module.
        embedding: The embedding.
        poisoned: The slots with weights that are not finite.
    """

    max_rank: int
    slots: int
    dtype: torch.dtype
    linear: dict[str, Layer]
    head: Layer
    embedding: Embedding
    wrapper: RankExactWrapper
    poisoned: set[int] = field(default_factory=set)

    def layers(self) -> list[Layer | Embedding]:
        """All modules."""
        return [*self.linear.values(), self.head, self.embedding]

    def write(self, slot: int, pattern: list[int], poison: float | None) -> None:
        """Write an adapter into a slot in place, as vLLM does, and say so as the plugin's manager does."""
        self.poisoned.discard(slot)
        ranks = itertools.cycle(pattern)
        for layer in self.layers():
            for a, b in layer.parts():
                a[slot] = 0
                b[slot] = 0
                rank = next(ranks)
                a[slot, 0, :rank].copy_(torch.randn(rank, a.shape[3]))
                b[slot, 0, :, :rank].copy_(torch.randn(b.shape[2], rank))
                if rank and poison is not None:
                    a[slot, 0, rank - 1, ::3] = poison
                    b[slot, 0, ::3, rank - 1] = poison
                    self.poisoned.add(slot)
        self.wrapper.slot_changed(slot, self.layers())


def engine_of(max_rank: int, slots: int, modules: dict[str, tuple[int, tuple[int, ...]]], dtype: torch.dtype) -> Engine:
    """An engine whose slots are all empty."""
    hidden = next(iter(modules.values()))[0]
    linear = {name: layer_of(slots, max_rank, *shape, dtype) for name, shape in modules.items()}
    head = bare(layer_of(slots, max_rank, hidden, (VOCABULARY,), dtype))
    embedding = Embedding(
        torch.zeros(slots, VOCABULARY, max_rank, dtype=dtype), torch.zeros(slots, 1, hidden, max_rank, dtype=dtype)
    )
    wrapper = RankExactWrapper(4096, max_batches=MAX_ROWS, device=torch.device("cpu"))
    return Engine(max_rank, slots, dtype, linear, head, embedding, wrapper)


@dataclass(frozen=True)
class Product:
    """What should come out, element by element, and what rounding may do to it.

    Attributes:
        value: The exact result in float64.
        terms: The magnitudes of all that is added up on the way, for sums in float32.
        rounded: The magnitudes of what is kept between the two products, and of the result, for copies in bfloat16.
    """

    value: torch.Tensor
    terms: torch.Tensor
    rounded: torch.Tensor

    def allowed(self, dtype: torch.dtype) -> torch.Tensor:
        """How far a product may be off. bfloat16 rounds three times, by up to 2**-8 each. Never 0, to divide by it."""
        return 2.0**-100 + self.terms * 2.0**-20 + (self.rounded * 2.0**-6 if dtype == torch.bfloat16 else 0.0)


def reference(y: torch.Tensor, x: torch.Tensor, layer: Layer | Embedding, slots: Slots, scale: float) -> Product:
    """Row by row in float64: `y + (x @ A.T) @ B.T * scale` for each merged part."""
    value, terms, rounded = y.double(), y.double().abs(), y.double().abs()
    for row, slot in enumerate(slots):
        offset = 0
        for a, b in layer.parts():
            columns = slice(offset, offset + b.shape[2])
            offset = columns.stop
            if slot >= 0:
                up, down, given = b[slot, 0].double(), a[slot, 0].double(), x[row].double()
                low = down @ given
                value[row, columns] += up @ low * scale
                terms[row, columns] += up.abs() @ (down.abs() @ given.abs()) * scale
                rounded[row, columns] += up.abs() @ low.abs() * scale
    return Product(value, terms, rounded)


def compare(got: torch.Tensor, before: torch.Tensor, want: Product, slots: Slots, engine: Engine) -> float:
    """The largest difference in units of what the precision allows; above 1 is wrong.

    Raises:
        AssertionError: A row without an adapter was touched.
    """
    base = [row for row, slot in enumerate(slots) if slot < 0]
    if not torch.equal(got[base], before[base]):
        raise AssertionError("a row without an adapter was changed")
    rows = [row for row, slot in enumerate(slots) if slot not in engine.poisoned]
    off = ((got.double() - want.value).abs() / want.allowed(engine.dtype))[rows]
    worst = float(off.max()) if rows else 0.0
    if worst <= 1:  # false for NaN as well
        return worst
    raise AssertionError(f"a row is off by {worst} times of what rounding explains")


def rows_for(engine: Engine, slots: Slots, width: int) -> torch.Tensor:
    """Random inputs; rows of an adapter that is not finite have become NaN further up in the model."""
    x = torch.randn(len(slots), width).to(engine.dtype)
    for row, slot in enumerate(slots):
        if slot in engine.poisoned:
            x[row] = float("nan")
    return x


def check_step(engine: Engine, tokens: Slots, sampled: Slots, scale: float) -> float:
    """Every module once, for the batch that the wrapper was told of."""
    worst = 0.0
    for layer in engine.linear.values():
        a, b = layer.lora_a_stacked, layer.lora_b_stacked
        sizes = tuple(part.shape[2] for part in b)
        x, y = rows_for(engine, tokens, a[0].shape[3]), torch.randn(len(tokens), sum(sizes)).to(engine.dtype)
        before, want = y.clone(), reference(y, x, layer, tokens, scale)
        engine.wrapper.add_lora_linear(y, x, a, b, scale, sizes)
        worst = max(worst, compare(y, before, want, tokens, engine))
    return max(worst, check_head(engine, sampled, scale), check_embedding(engine, tokens))


def check_head(engine: Engine, sampled: Slots, scale: float) -> float:
    """The logits of the rows that are sampled; vLLM may compute them in float32 whatever the adapter's type is."""
    a, b = engine.head.lora_a_stacked, engine.head.lora_b_stacked
    worst = 0.0
    for dtype in {torch.float32, engine.dtype}:
        x, y = rows_for(engine, sampled, a.shape[3]), torch.randn(len(sampled), VOCABULARY).to(dtype)
        before, want = y.clone(), reference(y, x, engine.head, sampled, scale)
        engine.wrapper.add_lora_logits(y, x, a, b, scale)
        worst = max(worst, compare(y, before, want, sampled, engine))
    return worst


def check_embedding(engine: Engine, tokens: Slots) -> float:
    """The embedding; vLLM looks the tokens up in A by offsets that the wrapper knows, and leaves B to the wrapper."""
    ids = torch.randint(0, VOCABULARY, (len(tokens),))
    layer = engine.embedding
    offsets = engine.wrapper._embeddings_indices[: len(ids)]  # noqa: SLF001 - vLLM's layer reads it, too
    looked_up = functional.embedding(ids + offsets, layer.lora_a_stacked_2d)
    y = torch.randn(len(tokens), layer.lora_b_stacked.shape[2]).to(engine.dtype)
    before, want = y.clone(), reference(y, functional.one_hot(ids, VOCABULARY), layer, tokens, 1.0)
    engine.wrapper.add_lora_embedding(y, looked_up, layer.lora_b_stacked, add_input=True)
    return compare(y, before, want, tokens, engine)


@st.composite
def batches(draw: st.DrawFn, slots: int) -> tuple[LoRAMapping, Slots, Slots]:
    """A batch in runs of rows with one adapter or none: prefills are long runs, decodes are runs of one."""
    prefill = draw(st.booleans())
    length = st.one_of(st.just(1), st.integers(1, MAX_ROWS)) if prefill else st.just(1)
    runs = draw(st.lists(st.tuples(st.integers(-1, slots - 1), length), min_size=1, max_size=24))
    tokens = [slot for slot, count in runs for _ in range(count)][:MAX_ROWS]
    sampled = draw(st.lists(st.integers(-1, slots - 1), min_size=1, max_size=24))
    mapping = LoRAMapping(
        index_mapping=tuple(slot + 1 for slot in tokens),
        prompt_mapping=tuple(slot + 1 for slot in sampled),
        is_prefill=prefill,
    )
    return mapping, tokens, sampled


@st.composite
def contents(draw: st.DrawFn, max_rank: int) -> tuple[list[int], float | None]:
    """What is written into a slot: the rank of every module's part in turn (0: not there), and perhaps poison."""
    own = st.sampled_from(sorted({1, 8, max_rank // 2, max_rank} & set(range(max_rank + 1)))) | st.integers(0, max_rank)
    rank = draw(own)
    pattern = draw(st.lists(st.sampled_from([rank, rank, rank, 0, max(rank - 1, 0)]), min_size=1, max_size=7))
    poison = draw(st.sampled_from([None, None, None, None, *POISON]))
    return pattern, poison


def run(data: st.DataObject) -> Iterator[float]:
    """Some steps of one engine: slots are written, then batches run; a slot may change while the batch stays."""
    torch.manual_seed(data.draw(st.integers(0, 2**32 - 1), "seed"))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]), "dtype")
    max_rank = data.draw(st.sampled_from([1, 8, 16, 64, 128]), "max_rank")
    slots = data.draw(st.integers(1, 5), "slots")
    modules = MODULES[data.draw(st.sampled_from(["small", "small", "small", "large"]), "modules")]
    scale = data.draw(st.sampled_from([1.0, 1.0, 0.5]), "scale")
    engine = engine_of(max_rank, slots, modules, dtype)
    batch = None
    for _ in range(data.draw(st.integers(1, 3), "steps")):
        for slot in sorted(data.draw(st.sets(st.integers(0, slots - 1)), "written")):
            content = data.draw(contents(max_rank), f"content of {slot}")
            with torch.inference_mode(data.draw(st.booleans(), "within a step")):
                engine.write(slot, *content)
        # vLLM tells the wrapper of a batch only when batch or slots are not the last step's.
        if batch is None or data.draw(st.booleans(), "another batch"):
            batch = data.draw(batches(slots), "batch")
            engine.wrapper.update_metadata(batch[0], list(range(1, slots + 1)), slots + 1, VOCABULARY)
        yield check_step(engine, batch[1], batch[2], scale)


def written_in_and_between_steps(dtype: torch.dtype) -> Iterator[float]:
    """Slots are filled within steps, in inference mode, and between them; what one way made the other must change."""
    for first in (True, False):
        engine = engine_of(16, 2, MODULES["small"], dtype)
        mapping = LoRAMapping(index_mapping=(1, 2, 2), prompt_mapping=(1, 2), is_prefill=False)
        engine.wrapper.update_metadata(mapping, [1, 2], 3, VOCABULARY)
        for rank, mode in ((8, first), (16, not first), (3, first)):
            with torch.inference_mode(mode):
                engine.write(1, [rank], None)
            yield check_step(engine, [0, 1, 1], [0, 1], 1.0)


def main(examples: int, *, fixed: bool) -> dict[str, Any]:
    """Run that many examples; the result is the largest error, in units of what rounding explains."""
    found: list[float] = []

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=fixed,
        database=None,
        suppress_health_check=list(HealthCheck),  # an example is a whole engine
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        found.extend(run(data))

    for dtype in (torch.float32, torch.bfloat16):
        found.extend(written_in_and_between_steps(dtype))
    check()
    return {"worst": max(found), "steps": len(found), "obstacle": native.obstacle(torch.bfloat16, 1)}


def every(examples: int, *, fixed: bool) -> dict[str, Any]:
    """With each unit of the native kernel, and without the kernel."""
    torch.set_num_threads(1)  # several spin at their barriers when the machine is busy
    found = {}
    for unit in native.units():
        native.choose(unit)
        found[unit] = main(examples, fixed=fixed)
    with mock.patch.object(native, "_native", None):
        return {**found, "PyTorch": main(examples, fixed=fixed)}


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    print("RESULT " + json.dumps(every(*numbers or [60], fixed="--random" not in sys.argv)))
